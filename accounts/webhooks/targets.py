"""Where messages may go: https, and only to addresses that the whole Internet reaches, unless an operator allowed more.

A tenant names the URL, and the server calls it: without this rule it would reach into the operator's own network for
whoever asks. What is checked is the address, not the name, and the connection is made to the very one that was checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

Address = IPv4Address | IPv6Address

LONGEST_URL = 500
_HTTPS_PORT = 443
_PRINTABLE = re.compile(r"[\x21-\x7e]+")
#: Addresses in it stand for IPv4 addresses, which a gateway translates to.
_NAT64 = IPv6Network("64:ff9b::/96")


class TargetRefused(Exception):
    """Nothing is sent there. The message says why, and what would be accepted."""


@dataclass(frozen=True, slots=True)
class Target:
    """A URL in its parts. ``path``: what is asked for, with its query. ``address``: its host, if that is one."""

    host: str
    port: int
    path: str

    @property
    def address(self) -> Address | None:
        try:
            return ip_address(self.host)
        except ValueError:
            return None

    @property
    def host_header(self) -> str:
        """As HTTP names it: the port only where it is not the usual one."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _HTTPS_PORT else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class AllowedHosts:
    """Hosts that an operator allows although they are not public."""

    names: frozenset[str] = frozenset()
    networks: tuple[IPv4Network | IPv6Network, ...] = ()

    def allow(self, host: str, address: Address) -> bool:
        """Whether ``address``, which ``host`` has, is one of them."""
        return host in self.names or any(address in network for network in self.networks)


@cache
def allowed_hosts(entries: tuple[str, ...]) -> AllowedHosts:
    """The hosts that a setting names: addresses and networks, and, of what is neither, names."""
    names, networks = set(), []
    for entry in entries:
        try:
            networks.append(ip_network(entry, strict=False))
        except ValueError:
            names.add(entry.lower())
    return AllowedHosts(frozenset(names), tuple(networks))


def target_of(url: str) -> Target:
    """The parts of ``url``. Raises ``TargetRefused`` for one that is not ``https://`` with a host and nothing odd."""
    if len(url) > LONGEST_URL or not _PRINTABLE.fullmatch(url):
        raise TargetRefused(
            f"A URL has at most {LONGEST_URL} characters, all of them ASCII: write other names in punycode (xn--…)."
        )
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise TargetRefused(f"This is no URL: {error}.") from error
    if parts.scheme != "https" or not host or host.startswith("."):
        raise TargetRefused(
            "Webhooks are sent over https only: the URL begins with https:// and names a host."
        )
    if parts.username is not None or parts.password is not None:
        raise TargetRefused("The URL carries a user name or password. Leave it out: messages are signed.")
    if parts.fragment or port == 0:
        raise TargetRefused("The URL has a fragment (#…) or the port 0. Leave it out.")
    path = parts.path or "/"
    return Target(host, port or _HTTPS_PORT, f"{path}?{parts.query}" if parts.query else path)


def check(target: Target, addresses: Iterable[Address], allowed: AllowedHosts) -> None:
    """Raise ``TargetRefused`` unless every address that the host has may be called.

    Every one: a host that is public by one of its addresses only is not trusted with the others.
    """
    for address in addresses:
        if not is_public(address) and not allowed.allow(target.host, address):
            raise TargetRefused(
                f"{target.host} has the address {address}, which is not public. An operator may allow it with "
                "SIGNALBOX_WEBHOOK_PRIVATE_HOSTS."
            )


def is_public(address: Address) -> bool:
    """Whether the whole Internet reaches it: also of an IPv6 address that stands for an IPv4 one."""
    if isinstance(address, IPv6Address):
        if address.scope_id is not None:
            return False
        stands_for = (
            address.ipv4_mapped
            or address.sixtofour
            or (address.teredo and address.teredo[1])
            or (IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else None)
        )
        if stands_for is not None:
            return is_public(stands_for)
        if address.is_site_local:
            return False
    return address.is_global and not address.is_multicast and not address.is_reserved
