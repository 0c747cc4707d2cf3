"""Why the web server itself closed a connection.

To an application every end looks like a client that went away. For a generation the difference matters: a client
that leaves ends it, a server that drains or cuts off a slow reader does not (the client comes back and resumes).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

#: Where the server keeps a connection's record in its ASGI scope.
SCOPE_KEY = "signalbox.connection"

#: How long a draining server waits for answers that are under way.
DRAIN_S = 10.0


class ServerClose(StrEnum):
    """Why the server closed a connection that its client did not."""

    SLOW_READER = "slow_reader"
    DRAINING = "draining"


@dataclass(slots=True)
class Connection:
    """One connection's record, written by the server and read by what serves it."""

    closed_by_server: ServerClose | None = None
    #: To be called with each message of a WebSocket that its application takes.
    taken: Callable[[dict[str, Any]], None] | None = None


def closed_by_server(scope: Mapping[str, Any]) -> ServerClose | None:
    """Why the server closed the connection of this ASGI ``scope``; ``None`` when it did not (the client did, or
    it is open)."""
    connection = scope.get(SCOPE_KEY)
    return connection.closed_by_server if isinstance(connection, Connection) else None
