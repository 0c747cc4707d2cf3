"""Who is asking, and who is changing: two plain values that travel through the domain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller inside one tenant: an API key, or a member in the browser.

    Exactly one of ``api_key_id`` and ``user_id`` is set. ``default_lane`` is the key's, if it has one.
    """

    tenant_id: UUID
    tenant_name: str
    scopes: frozenset[str]
    name: str
    api_key_id: UUID | None = None
    api_key_prefix: str = ""
    user_id: UUID | None = None
    default_lane: str | None = None


@dataclass(frozen=True, slots=True)
class Actor:
    """Who makes a change, for the audit: a user, an API key, or a part of the system."""

    kind: Literal["user", "api_key", "system", "anonymous"]
    id: str
    name: str
    request_id: str = ""
    address: str = ""

    @classmethod
    def system(cls, name: str) -> Self:
        """A part of the system itself: a command, a task, a worker."""
        return cls(kind="system", id="", name=name)
