"""What an API key looks like: ``sb_<prefix>_<secret><checksum>``. Pure: no database, no pepper.

The prefix is public and finds the row. The secret has 256 bits. The checksum lets a typo, a cut-off paste or a
scanner's false hit be told without asking the database, and says nothing about the secret that is not in it.
"""

from __future__ import annotations

import re
import secrets
import zlib
from collections.abc import Callable
from dataclasses import dataclass

ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
PREFIX_LENGTH = 12
#: 43 digits of base 62 hold 256 bits.
SECRET_LENGTH = 43
#: 6 digits of base 62 hold a CRC-32.
CHECKSUM_LENGTH = 6

_PATTERN = re.compile(
    rf"sb_(?P<prefix>[0-9A-Za-z]{{{PREFIX_LENGTH}}})"
    rf"_(?P<secret>[0-9A-Za-z]{{{SECRET_LENGTH}}})(?P<checksum>[0-9A-Za-z]{{{CHECKSUM_LENGTH}}})"
)

#: Finds what looks like a key inside other text, whole or cut short, to keep it out of names and records.
CONTAINS_KEY = re.compile(rf"sb_[0-9A-Za-z]{{{PREFIX_LENGTH}}}_[0-9A-Za-z]+")


@dataclass(frozen=True, slots=True)
class KeyText:
    """A key in its parts. Its ``repr`` shows the public part only."""

    prefix: str
    secret: str

    def __str__(self) -> str:
        """The whole key, as its owner keeps it."""
        body = f"sb_{self.prefix}_{self.secret}"
        return body + _checksum(body)

    def __repr__(self) -> str:
        return f"KeyText(prefix={self.prefix!r})"


def draw(choice: Callable[[str], str] = secrets.choice) -> KeyText:
    """A new key. ``choice`` picks one character; anything but the default is for tests."""
    return KeyText(
        prefix="".join(choice(ALPHABET) for _ in range(PREFIX_LENGTH)),
        secret="".join(choice(ALPHABET) for _ in range(SECRET_LENGTH)),
    )


def parse(raw: str) -> KeyText | None:
    """The parts of a well-formed key, or None: then it cannot be a key of any installation."""
    match = _PATTERN.fullmatch(raw)
    if match is None:
        return None
    key = KeyText(prefix=match["prefix"], secret=match["secret"])
    return key if str(key) == raw else None


def _checksum(body: str) -> str:
    value = zlib.crc32(body.encode())
    digits = ""
    for _ in range(CHECKSUM_LENGTH):
        value, digit = divmod(value, len(ALPHABET))
        digits = ALPHABET[digit] + digits
    return digits
