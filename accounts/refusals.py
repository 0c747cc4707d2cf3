"""Why a change to accounts is refused: one enumerated reason, and a message for the person who asked."""

from __future__ import annotations

from enum import StrEnum


class ChangeRefusal(StrEnum):
    """The same code in the log, the admin and the commands."""

    INVALID = "invalid"
    NAME_TAKEN = "name_taken"
    TENANT_CLOSED = "tenant_closed"
    KEY_REVOKED = "key_revoked"
    KEY_EXPIRED = "key_expired"
    KEY_ALREADY_ROTATED = "key_already_rotated"
    USER_CLOSED = "user_closed"
    ALREADY_A_MEMBER = "already_a_member"
    MEMBERSHIP_ENDED = "membership_ended"
    LAST_OWNER = "last_owner"
    LAST_OPERATOR = "last_operator"
    ALREADY_ENTITLED = "already_entitled"
    ENTITLEMENT_ENDED = "entitlement_ended"
    WEAK_PASSWORD = "weak_password"  # noqa: S105 — a code


class ChangeRefused(Exception):
    """The change was not made; nothing of it is left. ``field`` names the input that is at fault, if one is."""

    def __init__(self, code: ChangeRefusal, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.field = field
