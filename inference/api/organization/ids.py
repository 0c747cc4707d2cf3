"""How tenants, keys and users are named to administrators: their UUID's 32 hexadecimal digits behind a word."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final
from uuid import UUID

_DIGITS: Final = re.compile(r"[0-9a-f]{32}")


class Kind(StrEnum):
    """What is named: the word before the digits."""

    PROJECT = "proj"
    API_KEY = "key"
    SERVICE_ACCOUNT = "svc_acct"
    USER = "user"

    def name_of(self, id_: UUID) -> str:
        """The name of what has this id."""
        return f"{self.value}_{id_.hex}"

    def parse(self, text: str) -> UUID | None:
        """The id of what ``text`` names; None where it is no name of this kind."""
        digits = text.removeprefix(f"{self.value}_")
        return UUID(digits) if digits != text and _DIGITS.fullmatch(digits) else None
