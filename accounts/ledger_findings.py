"""In what the books may disagree: one enumerated word for each kind, with whose it is and both figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from uuid import UUID

from accounts.audit import ObjectRef


class FindingCode(StrEnum):
    """The same word in the command's lines, the log, the metrics and the audit."""

    # Of allowances and their windows.
    LIVE_GENERATIONS_DIFFER = "live_generations_differ"
    WINDOW_RESERVED_DIFFERS = "window_reserved_differs"
    WINDOW_USED_DIFFERS = "window_used_differs"
    WINDOWS_OVERLAP = "windows_overlap"
    WINDOW_MISSING = "window_missing"
    # Of generations, their reservations and their ledger entries.
    LIVE_WITHOUT_RESERVATION = "live_without_reservation"
    LIVE_BUT_SETTLED = "live_but_settled"
    LIVE_WITH_ENTRY = "live_with_entry"
    ENDED_WITHOUT_RESERVATION = "ended_without_reservation"
    ENDED_BUT_UNSETTLED = "ended_but_unsettled"
    ENDED_WITHOUT_ENTRY = "ended_without_entry"
    ENTRY_DIFFERS = "entry_differs"
    SETTLED_TOKENS_DIFFER = "settled_tokens_differ"
    RESERVATION_WITHOUT_GENERATION = "reservation_without_generation"
    ENTRY_WITHOUT_GENERATION = "entry_without_generation"
    # Of the hourly sums.
    ROLLUP_DIFFERS = "rollup_differs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing in which the books disagree.

    ``found`` is what ``subject`` says, ``expected`` what the books say that it follows from; empty where nothing does.
    ``repaired``: it says the latter now, and the audit has the change (``ledger.repair``).
    """

    code: FindingCode
    subject: ObjectRef
    tenant_id: UUID | None
    found: Mapping[str, Any]
    expected: Mapping[str, Any]
    repaired: bool = False

    def __str__(self) -> str:
        name = f" ({self.subject.name})" if self.subject.name not in ("", self.subject.id) else ""
        said = [f"{self.code}: {self.subject.kind} {self.subject.id}{name}"]
        if self.found:
            said.append(f"has {_words(self.found)}")
        if self.expected:
            said.append(f"should have {_words(self.expected)}")
        if self.repaired:
            said.append("repaired")
        return "; ".join(said)


def _words(figures: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {'none' if value is None else value}" for name, value in figures.items())
