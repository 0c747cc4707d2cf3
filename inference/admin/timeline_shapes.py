"""What a timeline is drawn with. Horizontal values are percent of its width, vertical ones pixels of a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from inference.admin.timeline_words import Line
from inference.models import RunOutcome

#: Of a row, and the line in it on which its bars stand.
HEIGHT: Final = 44
FLOOR: Final = 40
#: Below the floor, of a generation that had to do with the speculative slot.
SLOT_STRIP: Final = 8


class Bar(StrEnum):
    """What lasts. Also the name of its colour."""

    WAITING = "waiting"
    CHUNK = "chunk"
    TOKENS = "tokens"
    #: Below the others: it has the speculative slot, or waits for it, parked or with nothing produced.
    SLOT_GRANT = "slot_grant"
    SLOT_WAIT = "slot_wait"
    #: It runs now: what happens in it is known when it is over.
    RUNNING = "running"
    #: A claim that its worker could not report.
    UNREPORTED = "unreported"


class Mark(StrEnum):
    """What happens at a moment."""

    FIRST_TOKEN = "first_token"  # noqa: S105 (no secret)
    CACHE_HIT = "cache_hit"
    CANCEL_ASKED = "cancel_asked"
    END = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnBar:
    kind: Bar
    x: float
    width: float
    y: float
    height: float
    title: str
    #: Every second chunk is drawn darker, because they touch.
    odd: bool = False
    #: Drawn hatched: several chunks in one.
    merged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnMark:
    kind: Mark
    x: float
    title: str
    outcome: RunOutcome | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One claim, or a wait that no claim has ended."""

    name: str
    state: str
    outcome: RunOutcome | None = None
    worker: str = ""
    worker_url: str = ""
    facts: Sequence[str] = ()
    bars: list[DrawnBar] = field(default_factory=list)
    marks: list[DrawnMark] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    x: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    rows: list[Row]
    #: Rows that are in the table only.
    undrawn: list[Row]
    ticks: list[Tick]
    total: str
    live: bool
    lane: str
    lane_rank: int
    floor: int = FLOOR

    @property
    def height(self) -> int:
        """Of each row."""
        return HEIGHT + SLOT_STRIP if self.kinds & {Bar.SLOT_GRANT, Bar.SLOT_WAIT} else HEIGHT

    @property
    def all_rows(self) -> list[Row]:
        return [*self.undrawn, *self.rows]

    @property
    def kinds(self) -> set[str]:
        """What is drawn, for the legend."""
        return {
            *(bar.kind for row in self.rows for bar in row.bars),
            *(mark.kind for row in self.rows for mark in row.marks),
            *("merged" for row in self.rows for bar in row.bars if bar.merged),
        }
