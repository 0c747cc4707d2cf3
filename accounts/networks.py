"""Addresses and networks that a key may be used from: written one way, and asked. Pure.

An IPv4 address that is written inside of IPv6 (``::ffff:192.0.2.1``) is the IPv4 address: which of the two a server is
told depends on its socket only.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network, collapse_addresses, ip_address, ip_network
from typing import Final

_MAPPED: Final = IPv6Network("::ffff:0:0/96")
_LONGEST_SHOWN: Final = 80


class NotANetwork(ValueError):
    """The text is neither an address nor a network; the message says what it is instead, and what would be one."""


def normalized(text: str) -> str:
    """``text``, an address or a network, as it is stored: ``192.0.2.7``, ``192.0.2.0/24``, ``2001:db8::/32``.

    Raises ``NotANetwork``, also for a network with bits set behind its prefix: to clear them would let in more than
    was written.
    """
    text = text.strip()
    shown = repr(text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 1]}…")
    if "%" in text:
        raise NotANetwork(f"{shown} names an interface of one machine: leave the % and what follows it out.")
    try:
        widened = ip_network(text, strict=False)
    except ValueError:
        raise NotANetwork(
            f"{shown} is neither an address nor a network, as 192.0.2.7 or 2001:db8::/32 are."
        ) from None
    address = text.partition("/")[0]
    if ip_address(address) != widened.network_address:
        raise NotANetwork(
            f"{shown} has bits set behind its prefix: write {widened} for the network, {address} for that address."
        )
    network = _unmapped(widened)
    return str(network.network_address if network.prefixlen == network.max_prefixlen else network)


def contains(networks: Iterable[str], address: str) -> bool:
    """Whether ``address`` lies in one of ``networks``, as they are stored. What is no address lies in none."""
    try:
        asked = ip_address(address)
    except ValueError:
        return False
    asked = getattr(asked, "ipv4_mapped", None) or asked
    return any(asked in ip_network(network) for network in networks)


def within(networks: Iterable[str], bounds: Iterable[str]) -> bool:
    """Whether all of ``networks`` lies in ``bounds`` taken together, both as they are stored."""
    wide = [ip_network(bound) for bound in bounds]
    joined: list[IPv4Network | IPv6Network] = [
        *collapse_addresses(one for one in wide if isinstance(one, IPv4Network)),
        *collapse_addresses(one for one in wide if isinstance(one, IPv6Network)),
    ]
    return all(any(_lies_in(ip_network(network), bound) for bound in joined) for network in networks)


def _lies_in(inner: IPv4Network | IPv6Network, outer: IPv4Network | IPv6Network) -> bool:
    if isinstance(inner, IPv4Network):
        return isinstance(outer, IPv4Network) and inner.subnet_of(outer)
    return isinstance(outer, IPv6Network) and inner.subnet_of(outer)


def _unmapped(network: IPv4Network | IPv6Network) -> IPv4Network | IPv6Network:
    if isinstance(network, IPv4Network) or not network.subnet_of(_MAPPED):
        return network
    address = network.network_address.ipv4_mapped
    return IPv4Network((str(address), network.prefixlen - _MAPPED.prefixlen))
