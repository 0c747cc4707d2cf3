"""How records become bytes and bytes become hashes. Pure; the script that checks exports does the same by itself.

A record's content is a JSON object, written in one way only. What is chained is
``SHA-256(previous hash ‖ content hash)``, so that a record's place in the chain can be shown without its content.
"""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

#: What the first event's ``previous_hash`` is.
GENESIS_HASH: Final = "0" * 64
_SALT_DIGITS: Final = 32


def canonical_json(value: Any) -> bytes:
    """The one way to write ``value`` as JSON: keys sorted, no spaces, UTF-8. Has no floats: they print unequally."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def content_hash(content: Any) -> str:
    """SHA-256 of ``content`` in its canonical form, as hexadecimal digits."""
    return hashlib.sha256(canonical_json(content)).hexdigest()


def link_hash(previous: str, content: str) -> str:
    """The chain's hash at a record, from the hash before it and the hash of the record's content."""
    return hashlib.sha256(bytes.fromhex(previous) + bytes.fromhex(content)).hexdigest()


def commitment(salt: str, person_id: UUID | None, value: str) -> str:
    """What stands in the chain for a personal ``value``: tells nothing of it without the random ``salt``.

    With value, salt (32 hexadecimal digits) and whom it is about (None: nobody who is known) anybody can see that they
    are those that were recorded; once they are erased nobody can learn them, and the chain holds as before. The person
    is a part of it so that whoever erases them finds all that is theirs. It is SHA-256 over the salt's 16 bytes, the
    person's id as 32 digits or nothing, a line feed, and the value. Raises ``ValueError`` for another salt: a longer
    one could hold what belongs behind it.
    """
    if len(salt) != _SALT_DIGITS:
        raise ValueError(f"a salt has {_SALT_DIGITS} hexadecimal digits")
    person = person_id.hex if person_id else ""
    return hashlib.sha256(unhex(salt) + f"{person}\n{value}".encode()).hexdigest()


def unhex(digits: str) -> bytes:
    """The bytes that ``digits`` stand for, in the one way in which records write them: small letters, no spaces.

    Raises ``ValueError`` for any other: a record that is written otherwise than it was is a changed one.
    """
    found = bytes.fromhex(digits)
    if found.hex() != digits:
        raise ValueError("hexadecimal digits are written in small letters, without spaces")
    return found


def utc_text(at: datetime) -> str:
    """``at`` in UTC as ISO 8601 with microseconds: the one way in which hashed records write a time."""
    return at.astimezone(UTC).isoformat(timespec="microseconds")
