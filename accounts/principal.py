"""Who is asking, and who is changing: two plain values that travel through the domain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller inside one tenant: an API key, or a member in the browser.

    Exactly one of ``api_key_id`` and ``user_id`` is set. The rest is the key's, where there is one: what it narrows.
    ``allowed_lanes`` and ``allowed_models`` that are empty allow all.
    """

    tenant_id: UUID
    tenant_name: str
    scopes: frozenset[str]
    name: str
    api_key_id: UUID | None = None
    api_key_prefix: str = ""
    user_id: UUID | None = None
    default_lane: str | None = None
    key_allowance_id: UUID | None = None
    allowed_lanes: frozenset[str] = frozenset()
    allowed_models: frozenset[str] = frozenset()

    def may_use(self, model: str) -> bool:
        """Whether it may use the model of that name."""
        return not self.allowed_models or model in self.allowed_models


@dataclass(frozen=True, slots=True)
class Actor:
    """Who makes a change, for the audit: a user, an API key, or a part of the system."""

    kind: Literal["user", "api_key", "system", "anonymous"]
    id: str
    name: str
    request_id: str = ""
    address: str = ""
    #: A fingerprint of the browser's session, 16 hexadecimal digits.
    session: str = ""
    #: The account of the operating system that a command runs under: a person's, as often as not.
    account: str = ""

    @classmethod
    def system(cls, name: str, account: str = "") -> Self:
        """A part of the system itself: a command, and the account that it runs under; a task, a worker."""
        return cls(kind="system", id="", name=name, account=account)
