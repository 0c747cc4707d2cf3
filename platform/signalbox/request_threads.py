"""The thread of a request that uses the database: it never ends with a connection in its hands."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from asgiref.sync import SyncToAsync, ThreadSensitiveContext
from django.db import connections

Application = Callable[[dict[str, Any], Any, Any], Awaitable[None]]


class RequestThread:
    """ASGI middleware around Django: gives back what the request's thread holds, however the request ends.

    Django runs a request's synchronous code in one thread, and has that thread close its connections last. A server
    that cuts the request off (Daphne does so ten seconds after the client left) cancels that last step with it. Then
    the view runs to its end, the thread ends, and a pool waits forever for the connection that it had lent.
    """

    def __init__(self, application: Application) -> None:
        self._application = application

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        # Django enters a context of its own inside, which then means this one.
        async with ThreadSensitiveContext() as context:
            try:
                await self._application(scope, receive, send)
            finally:
                thread = SyncToAsync.context_to_thread_executor.get(context)
                if thread is not None:
                    # Queued and not awaited: what is awaited can be cancelled.
                    thread.submit(connections.close_all)
