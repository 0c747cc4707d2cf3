"""Why a change to accounts is refused: one enumerated reason, and a message for the person who asked."""

from __future__ import annotations

import unicodedata
from enum import StrEnum
from typing import Final

from accounts.credential_text import CONTAINS_CREDENTIAL, without_credentials
from accounts.key_text import CONTAINS_KEY

#: Unicode's categories of what is not seen: line breaks and other controls, marks that turn the direction of what
#: follows, halves of characters. With them a name looks like another one, or like several lines.
_UNSEEN: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
#: Which several scripts and emoji are written with: joined, and not joined.
_JOINERS: Final = frozenset("\u200c\u200d")


class ChangeRefusal(StrEnum):
    """The same code in the log, the admin and the commands."""

    INVALID = "invalid"
    CONTAINS_KEY = "contains_key"
    #: A credential of somebody else.
    CONTAINS_CREDENTIAL = "contains_credential"
    NAME_TAKEN = "name_taken"
    TENANT_CLOSED = "tenant_closed"
    KEY_REVOKED = "key_revoked"
    KEY_EXPIRED = "key_expired"
    KEY_ALREADY_ROTATED = "key_already_rotated"
    #: A signing key is said to be lost that is there.
    KEY_NOT_LOST = "key_not_lost"
    #: A scope that reaches beyond the tenant, from somebody who does not run the platform.
    OPERATORS_ONLY = "operators_only"
    #: More than the key has that would give it.
    WIDER_THAN_GIVER = "wider_than_giver"
    USER_CLOSED = "user_closed"
    #: Only closed accounts can be erased.
    USER_OPEN = "user_open"
    USER_ERASED = "user_erased"
    #: The account to be erased is the one that the command runs under, and would be recorded again.
    OWN_ACCOUNT = "own_account"
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

    What looks like an API key or another credential in the message (an input that it repeats) is masked.
    """

    def __init__(self, code: ChangeRefusal, message: str, *, field: str | None = None) -> None:
        self.code = code
        self.message = without_credentials(message)
        super().__init__(self.message)
        self.field = field


def checked_text(text: str, *, field: str, most: int, least: int = 1) -> str:
    """``text`` as a name or a remark: on one line, without space around it, of ``least`` to ``most`` characters.

    It is shown to others and recorded, so that it holds no credential, and nothing that is not seen. Raises
    ``ChangeRefused``.
    """
    text = checked_content(text.strip(), field=field, most=most, least=least)
    for place, character in enumerate(text, start=1):
        if unicodedata.category(character) in _UNSEEN and character not in _JOINERS:
            raise ChangeRefused(
                ChangeRefusal.INVALID,
                f"The {field} has a line break or another character that is not seen, at place {place} "
                f"(U+{ord(character):04X}). Leave it out.",
                field=field,
            )
    if CONTAINS_CREDENTIAL.search(text):
        raise ChangeRefused(
            ChangeRefusal.CONTAINS_CREDENTIAL,
            f"The {field} contains what looks like a credential (an access token, a private key, a password in a URL), "
            "and would be shown. Leave it out.",
            field=field,
        )
    return text


def checked_content(text: str, *, field: str, most: int, least: int = 1) -> str:
    """``text`` to the letter, if it has ``least`` to ``most`` characters and no API key of ours in it.

    For what is used and not recorded, as a prompt: it may have lines, and a URL may be a secret. Raises
    ``ChangeRefused``.
    """
    if len(text) > most or len(text.strip()) < least:
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
