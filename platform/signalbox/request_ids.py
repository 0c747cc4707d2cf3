"""Every request has an id: in its answer, in each of its log lines, in the rows it writes."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable

import structlog
from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest, HttpResponse

#: Longest client-chosen id that is logged.
_CLIENT_ID_LENGTH = 128


def current_request_id() -> str:
    """The id of the request being served, or an empty string outside of one."""
    return str(structlog.contextvars.get_contextvars().get("request_id", ""))


def new_request_id() -> str:
    return f"req_{uuid.uuid4().hex}"


class RequestIdMiddleware:
    """Binds ``request_id`` to the log context, and answers it as ``x-request-id``."""

    sync_capable = False
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Awaitable[HttpResponse]]) -> None:
        self.get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    async def __call__(self, request: HttpRequest) -> HttpResponse:
        request_id = new_request_id()
        request.META["signalbox.request_id"] = request_id
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=request_id)
        client_id = request.headers.get("X-Client-Request-Id")
        if client_id:
            structlog.contextvars.bind_contextvars(client_request_id=client_id[:_CLIENT_ID_LENGTH])
        response = await self.get_response(request)
        response["x-request-id"] = request_id
        return response
