"""Which WebSocket handshakes are let in: the site's own host, and its own or a trusted origin.

A browser sends its cookies to any site's sockets, whoever wrote the page. What it cannot forge is the
``Origin``. Programs that are no browser send none, and hold no one else's cookies.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Any
from urllib.parse import urlsplit

from channels.security.websocket import WebsocketDenier
from django.http.request import split_domain_port, validate_host

Application = Callable[[dict[str, Any], Any, Any], Awaitable[Any]]

_DEFAULT_PORTS = {"http": "80", "https": "443"}


def may_connect(
    host: str | None,
    origin: str | None,
    *,
    allowed_hosts: Collection[str],
    trusted_origins: Collection[str],
    https: bool,
) -> bool:
    """Whether a handshake with these ``Host`` and ``Origin`` headers may open a socket.

    The origin has to be the very site that was asked, port included: cookies do not tell ports apart. ``https``
    demands that the page came over HTTPS as well.
    """
    if host is None or not validate_host(split_domain_port(host)[0], list(allowed_hosts)):
        return False
    if origin is None or origin in trusted_origins:
        return True
    parts = urlsplit(origin)
    default = _DEFAULT_PORTS.get(parts.scheme)
    if default is None or (https and parts.scheme != "https"):
        return False
    return _with_port(parts.netloc, default) == _with_port(host, default)


def _with_port(netloc: str, default: str) -> tuple[str, str]:
    domain, port = split_domain_port(netloc)
    return domain, port or default


class OriginCheck:
    """Refuses foreign WebSocket handshakes with 403 before anything else looks at them."""

    def __init__(
        self,
        application: Application,
        *,
        allowed_hosts: Collection[str],
        trusted_origins: Collection[str],
        https: bool,
    ) -> None:
        self._application = application
        self._allowed_hosts = allowed_hosts
        self._trusted_origins = trusted_origins
        self._https = https

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> Any:
        headers = {name: value.decode("latin1") for name, value in scope["headers"]}
        if may_connect(
            headers.get(b"host"),
            headers.get(b"origin"),
            allowed_hosts=self._allowed_hosts,
            trusted_origins=self._trusted_origins,
            https=self._https,
        ):
            return await self._application(scope, receive, send)
        return await WebsocketDenier()(scope, receive, send)
