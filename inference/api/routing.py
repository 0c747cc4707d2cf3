"""The WebSocket routes of inference."""

from __future__ import annotations

from django.urls import URLPattern, path

from inference.api.chat_socket import ChatConsumer

websocket_urlpatterns: list[URLPattern] = [path("ws/chat/", ChatConsumer.as_asgi())]
