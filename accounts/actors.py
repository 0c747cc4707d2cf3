"""Who makes a change over the web: the signed-in user or the key, and the address that the request really came from."""

from __future__ import annotations

import hashlib
import os
import pwd
from collections.abc import Mapping, Sequence
from functools import cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any

from django.http import HttpRequest

from accounts.models import User
from accounts.principal import Actor, Principal
from signalbox.configuration import configuration
from signalbox.request_ids import current_request_id

Network = IPv4Network | IPv6Network


def actor_of(request: HttpRequest) -> Actor:
    """The signed-in user of ``request`` as an actor. Raises ``TypeError`` where nobody is signed in."""
    user = request.user
    if not isinstance(user, User):
        raise TypeError("a change needs an actor, and nobody is signed in on this request")
    return Actor(
        kind="user",
        id=str(user.pk),
        name=user.get_username(),
        request_id=_request_id(request),
        address=address_of(request),
        session=_session_fingerprint(request),
    )


def stranger(request: HttpRequest) -> Actor:
    """Whoever sent ``request`` without having signed in: all that is known of them is where it came from."""
    return Actor(
        kind="anonymous",
        id="",
        name="not signed in",
        request_id=_request_id(request),
        address=address_of(request),
    )


def actor_of_key(request: HttpRequest, principal: Principal) -> Actor:
    """The API key that ``request`` was made with, as an actor. Raises ``TypeError`` for a principal that is no key."""
    if principal.api_key_id is None:
        raise TypeError("a change needs an actor, and this principal is no API key")
    return Actor(
        kind="api_key",
        id=str(principal.api_key_id),
        name=principal.name,
        request_id=_request_id(request),
        address=address_of(request),
    )


def command_actor(command: str) -> Actor:
    """Whoever runs a management command: the audit keeps the command's name and the account that it runs under."""
    return Actor.system(f"manage.py {command}", account=_own_account())


def address_of(request: HttpRequest) -> str:
    """The address that ``request`` came from, as far as the configured proxies can be trusted to say."""
    return client_address(
        request.META.get("REMOTE_ADDR") or "",
        request.META.get("HTTP_X_FORWARDED_FOR") or "",
        _trusted_networks(tuple(configuration().trusted_proxies)),
    )


def address_of_socket(scope: Mapping[str, Any]) -> str:
    """The address that a WebSocket was opened from, by its ASGI scope: as ``address_of``. Empty: not known."""
    peer = scope.get("client") or ("",)
    forwarded = [value.decode("latin-1") for name, value in scope["headers"] if name == b"x-forwarded-for"]
    return client_address(
        str(peer[0]), ",".join(forwarded), _trusted_networks(tuple(configuration().trusted_proxies))
    )


def client_address(peer: str, forwarded_for: str, trusted: Sequence[Network]) -> str:
    """The peer, or, while the one who reports it is a trusted proxy, the nearest address in ``X-Forwarded-For``.

    The header is read from the right: every entry left of an untrusted address may have been made up by it.
    """
    address = peer
    hops = [hop.strip() for hop in forwarded_for.split(",") if hop.strip()]
    while hops and _is_trusted(address, trusted):
        reported = _parse(hops.pop())
        if reported is None:
            break
        address = str(reported)
    return address


def _session_fingerprint(request: HttpRequest) -> str:
    """Tells sessions apart, and opens none: a session's key is a password while it lasts."""
    key = request.session.session_key if hasattr(request, "session") else None
    return hashlib.sha256(key.encode()).hexdigest()[:16] if key else ""


def _own_account() -> str:
    """The account that this process runs under, as the system has it: the environment can say anything."""
    uid = os.getuid()
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        # As in a container that runs under a number.
        return str(uid)


def _request_id(request: HttpRequest) -> str:
    return str(request.META.get("signalbox.request_id") or current_request_id())


def _is_trusted(address: str, trusted: Sequence[Network]) -> bool:
    parsed = _parse(address)
    return parsed is not None and any(parsed in network for network in trusted)


def _parse(text: str) -> IPv4Address | IPv6Address | None:
    """An address as proxies write it: bare, in brackets, or with a port. None: it is none."""
    host = text
    if text.startswith("["):
        host = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        host = text.partition(":")[0]
    try:
        address = ip_address(host)
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return mapped or address


@cache
def _trusted_networks(entries: tuple[str, ...]) -> tuple[Network, ...]:
    return tuple(ip_network(entry, strict=False) for entry in entries)
