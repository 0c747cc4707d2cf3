"""What may stand in an event: plain values without secrets, and of personal ones a commitment.

Secrets are masked for good. What is about a person (a name, an account, an e-mail address, where they were) is masked
in the chain too, but kept beside it with a random salt, where it can be read until it is erased.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final
from uuid import UUID

from django.db import models

from accounts.audit.canonical import commitment
from accounts.credential_text import MASK, without_credentials

_SALT_BYTES: Final = 16
#: Where the account of the operating system stands that a command ran under.
ACCOUNT_PATH: Final = "actor_account"
#: As long as the longest e-mail address.
LONGEST_PERSONAL: Final = 254

_SECRET_FIELDS = re.compile(r"(^|_)(password|secret|token|digest|pepper|authorization|cookie|raw)$")
_PERSONAL_FIELDS = frozenset({"email", "first_name", "last_name", "username"})
#: Whose home directory a path leads through.
_HOME = re.compile(r"(?<![\w./-])((?:/var|/export)?/(?:home|Users)/)[^\s/\"']+")


class AuditError(RuntimeError):
    """The event cannot be recorded, so the change must not be made."""


@dataclass(frozen=True, slots=True)
class PersonalValue:
    """One personal value, its salt, and whom it is about (None: not known, or nobody who has an account)."""

    path: str
    value: str
    person_id: UUID | None
    salt: str

    @property
    def commitment(self) -> str:
        """What stands in the chain for it."""
        return commitment(self.salt, self.person_id, self.value)

    @classmethod
    def of(cls, path: str, value: str, person_id: UUID | None) -> PersonalValue:
        """``value`` at ``path`` of an event, with a salt of its own."""
        return cls(path, value[:LONGEST_PERSONAL], person_id, secrets.token_hex(_SALT_BYTES))


def personal_fields(
    where: str, values: Mapping[str, Any] | None, person_id: UUID | None
) -> Iterator[PersonalValue]:
    """The personal values among the fields ``values``; ``where`` is ``before`` or ``after``."""
    for name, value in (values or {}).items():
        if name in _PERSONAL_FIELDS and isinstance(value, str) and value:
            yield PersonalValue.of(f"{where}.{name}", masked_text(value), person_id)


def masked(values: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The fields as plain values, secrets and personal ones masked. Raises ``AuditError`` as ``plain``."""
    if values is None:
        return None
    return {
        name: MASK if _must_hide(name, value) else _without_secrets(plain(value))
        for name, value in values.items()
    }


def masked_text(text: str) -> str:
    """``text`` without the credentials in it, ours and those of others that have a shape, and without whose home it is.

    What it is masked to cannot be told from another masked value: compare before.
    """
    return _HOME.sub(rf"\g<1>{MASK}", without_credentials(text))


def plain(value: Any) -> Any:
    """``value`` as JSON without floats. Raises ``AuditError`` for what has no one canonical form."""
    match value:
        case Enum():
            return plain(value.value)
        case None | bool() | int():
            return value
        case str():
            return value
        case UUID():
            return str(value)
        case datetime():
            return value.astimezone(UTC).isoformat()
        case models.Model():
            return plain(value.pk)
        case Mapping():
            return {str(name): plain(inner) for name, inner in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case set() | frozenset():
            return sorted(plain(item) for item in value)
        case _:
            raise AuditError(f"audit values are plain (text, whole numbers, times, ids), not {value!r}")


def _without_secrets(value: Any) -> Any:
    """A plain value, masked wherever it is text."""
    match value:
        case str():
            return masked_text(value)
        case dict():
            return masked(value)
        case list():
            return [_without_secrets(item) for item in value]
        case _:
            return value


def _must_hide(name: str, value: Any) -> bool:
    text = isinstance(value, str) and value != ""
    return text and (name in _PERSONAL_FIELDS or _SECRET_FIELDS.search(name) is not None)
