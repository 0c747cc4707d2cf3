"""How generations are named to clients: their UUID's 32 hexadecimal digits behind a word for the kind of answer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from uuid import UUID

GENERATION: Final = "gen"
CHAT_COMPLETION: Final = "chatcmpl"
COMPLETION: Final = "cmpl"

_PATTERN: Final = re.compile(rf"(?:{GENERATION}_|{CHAT_COMPLETION}-|{COMPLETION}-)([0-9a-f]{{32}})")
_EVENT_PATTERN: Final = re.compile(rf"{GENERATION}_([0-9a-f]{{32}}):([0-9]{{1,15}})(?:\.([0-9]{{1,15}}))?")


def generation_id(generation: UUID) -> str:
    return f"{GENERATION}_{generation.hex}"


def parse(text: str) -> UUID | None:
    """The generation that ``gen_…``, ``chatcmpl-…`` or ``cmpl-…`` names; None where ``text`` is no such name."""
    match = _PATTERN.fullmatch(text)
    return UUID(match[1]) if match else None


@dataclass(frozen=True, slots=True)
class EventId:
    """The SSE ``id`` of an event: what its client gives back in ``Last-Event-ID`` to go on behind it.

    ``seq`` is the event's number in the token log, 0 for what comes before the first. ``epoch`` is the log entry's, by
    which the server sees that its log still holds the very event; None where the client left it out.
    """

    generation: UUID
    seq: int
    epoch: int | None = None

    def __str__(self) -> str:
        epoch = f".{self.epoch}" if self.epoch is not None else ""
        return f"{generation_id(self.generation)}:{self.seq}{epoch}"

    @classmethod
    def parse(cls, text: str) -> EventId | None:
        """The id that ``text`` spells; None where it spells none."""
        match = _EVENT_PATTERN.fullmatch(text)
        if match is None:
            return None
        return cls(UUID(match[1]), int(match[2]), int(match[3]) if match[3] else None)
