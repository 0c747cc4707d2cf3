"""Why a change to accounts is refused: one enumerated reason, and a message for the person who asked."""

from __future__ import annotations

from enum import StrEnum

from accounts.key_text import CONTAINS_KEY


class ChangeRefusal(StrEnum):
    """The same code in the log, the admin and the commands."""

    INVALID = "invalid"
    CONTAINS_KEY = "contains_key"
    NAME_TAKEN = "name_taken"
    TENANT_CLOSED = "tenant_closed"
    KEY_REVOKED = "key_revoked"
    KEY_EXPIRED = "key_expired"
    KEY_ALREADY_ROTATED = "key_already_rotated"
    #: A signing key is said to be lost that is there.
    KEY_NOT_LOST = "key_not_lost"
    #: A scope that reaches beyond the tenant, from somebody who does not run the platform.
    OPERATORS_ONLY = "operators_only"
    USER_CLOSED = "user_closed"
    #: Only closed accounts can be erased.
    USER_OPEN = "user_open"
    USER_ERASED = "user_erased"
    #: Generations of theirs have not all ended.
    STILL_RUNNING = "still_running"
    ALREADY_A_MEMBER = "already_a_member"
    MEMBERSHIP_ENDED = "membership_ended"
    LAST_OWNER = "last_owner"
    LAST_OPERATOR = "last_operator"
    ALREADY_ENTITLED = "already_entitled"
    ENTITLEMENT_ENDED = "entitlement_ended"
    #: The grant takes a second operator's approval, and nobody is named who asks for it.
    APPROVAL_NEEDED = "approval_needed"
    ALREADY_REQUESTED = "already_requested"
    #: There is nothing to approve or refuse.
    NOT_REQUESTED = "not_requested"
    #: Whoever decides is no operator, or is the one who asked.
    MAY_NOT_DECIDE = "may_not_decide"
    #: What was shown to whoever decided is no longer so.
    CHANGED_MEANWHILE = "changed_meanwhile"
    WEAK_PASSWORD = "weak_password"  # noqa: S105 — a code
    PRICE_HOLDS = "price_holds"
    ENDPOINT_ENDED = "endpoint_ended"
    TOO_MANY_ENDPOINTS = "too_many_endpoints"
    #: The page that was sent is older than its ticket, or somebody else's.
    FORM_EXPIRED = "form_expired"


class ChangeRefused(Exception):
    """The change was not made; nothing of it is left. ``field`` names the input that is at fault, if one is.

    What looks like an API key in the message (an input that it repeats) is masked.
    """

    def __init__(self, code: ChangeRefusal, message: str, *, field: str | None = None) -> None:
        self.code = code
        self.message = CONTAINS_KEY.sub("***", message)
        super().__init__(self.message)
        self.field = field


def checked_text(text: str, *, field: str, most: int, least: int = 1) -> str:
    """``text`` without space around it, if it has ``least`` to ``most`` characters and no API key in it.

    A key that somebody pastes into a name would be stored and shown. Raises ``ChangeRefused``.
    """
    text = text.strip()
    if not least <= len(text) <= most:
        raise ChangeRefused(
            ChangeRefusal.INVALID,
            f"The {field} has {least} to {most} characters; this one has {len(text)}.",
            field=field,
        )
    if CONTAINS_KEY.search(text):
        raise ChangeRefused(
            ChangeRefusal.CONTAINS_KEY,
            f"The {field} contains an API key, and would be shown. Leave it out.",
            field=field,
        )
    return text
