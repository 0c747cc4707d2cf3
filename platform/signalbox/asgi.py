"""What the web server runs: HTTP to Django, WebSockets to Channels."""

from __future__ import annotations

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "signalbox.settings")

application = get_asgi_application()
