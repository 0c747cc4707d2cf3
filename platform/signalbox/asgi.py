"""What the web server runs: HTTP to Django, WebSockets to Channels."""

from __future__ import annotations

import os
from typing import Any

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "signalbox.settings")
_django = get_asgi_application()

# Models can be imported from here on.
from channels.auth import AuthMiddlewareStack  # noqa: E402
from channels.routing import ProtocolTypeRouter, URLRouter  # noqa: E402
from channels.security.websocket import WebsocketDenier  # noqa: E402
from django.urls import re_path  # noqa: E402

from inference.api.attachment import ClientGuard  # noqa: E402
from inference.api.routing import websocket_urlpatterns  # noqa: E402
from signalbox.configuration import configuration  # noqa: E402
from signalbox.origins import OriginCheck  # noqa: E402
from signalbox.request_threads import RequestThread  # noqa: E402

_settings = configuration()
_no_such_socket: Any = WebsocketDenier.as_asgi()

application = ProtocolTypeRouter(
    {
        "http": ClientGuard(RequestThread(_django)),
        "websocket": OriginCheck(
            AuthMiddlewareStack(URLRouter([*websocket_urlpatterns, re_path("", _no_such_socket)])),
            allowed_hosts=_settings.allowed_hosts,
            trusted_origins=_settings.trusted_origins,
            https=_settings.https,
        ),
    }
)
