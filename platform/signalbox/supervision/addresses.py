"""The address that the site is to be served on: whether it is free, and how a person writes it."""

from __future__ import annotations

import socket
from typing import Final

_ANY: Final = {"0.0.0.0", "::", ""}  # noqa: S104 (recognised, not chosen)


class AddressError(RuntimeError):
    """The site cannot be served on its address; the message says why and what to do."""


def check(host: str, port: int) -> None:
    """Raise ``AddressError`` when ``host`` is not an address of this machine, or ``port`` is taken or forbidden."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
    except OSError as error:
        raise AddressError(
            f"The site cannot be served on {host}:{port}: {error.strerror or error}. Stop what uses it, or choose "
            f"another: SIGNALBOX_PORT={port + 1} make up"
        ) from None


def loopback(host: str) -> str:
    """Where this machine itself reaches a server that listens on ``host``."""
    if host not in _ANY:
        return host
    return "::1" if host == "::" else "127.0.0.1"


def site_url(host: str, port: int) -> str:
    """The site's address for a browser on this machine."""
    name = "localhost" if host in _ANY else host
    return f"http://{f'[{name}]' if ':' in name else name}:{port}"
