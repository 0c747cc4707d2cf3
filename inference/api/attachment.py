"""The tie between a client's connection and its generation.

A client that hangs up ends its generation. It may hang up anywhere: before the generation is accepted, between the
response and its first byte, in the middle of the stream. Only what stands around all of Django sees every one
of these, so the guard stands there: whatever a request followed is let go of, and a generation whose client left is
cancelled, in one place.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, Final
from uuid import UUID

import structlog
from asgiref.sync import sync_to_async
from django.db import connections
from django.http import HttpRequest

from inference import cancellation
from inference.messages import CancelReason
from signalbox.connections import closed_by_server

_log = structlog.get_logger(__name__)

_SCOPE_KEY: Final = "signalbox.attachment"

Application = Callable[[dict[str, Any], Any, Any], Awaitable[None]]


class Attachment:
    """What one request holds on to until its connection is done.

    ``follows`` is what must be closed then. ``generation_id`` is the generation that ends with the connection: set
    once it is accepted, and unset again when it has ended (or when it was asked to run on).
    """

    def __init__(self) -> None:
        self.follows: Final = AsyncExitStack()
        self.generation_id: UUID | None = None

    def ended(self) -> None:
        """The generation is over: there is nothing left that a hang-up could end."""
        self.generation_id = None


def attachment_of(request: HttpRequest) -> Attachment:
    """The request's attachment. Without the guard (a unit test's client) it is one that nobody closes."""
    scope = getattr(request, "scope", {})
    attachment = scope.get(_SCOPE_KEY)
    return attachment if isinstance(attachment, Attachment) else Attachment()


class ClientGuard:
    """ASGI middleware around the whole HTTP application."""

    def __init__(self, application: Application) -> None:
        self._application = application

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        attachment = Attachment()
        disconnected = False

        async def watched_receive() -> Any:
            nonlocal disconnected
            message = await receive()
            disconnected = disconnected or message["type"] == "http.disconnect"
            return message

        try:
            await self._application({**scope, _SCOPE_KEY: attachment}, watched_receive, send)
        finally:
            await attachment.follows.aclose()
            # A server that drains, or cuts off a slow reader, leaves the generation to whoever resumes it.
            if attachment.generation_id and disconnected and closed_by_server(scope) is None:
                _log.info("client_disconnected", generation=attachment.generation_id.hex)
                await sync_to_async(_cancel, thread_sensitive=False)(attachment.generation_id)


def _cancel(generation_id: UUID) -> None:
    try:
        cancellation.cancel(generation_id, CancelReason.CLIENT_DISCONNECTED)
    finally:
        connections.close_all()
