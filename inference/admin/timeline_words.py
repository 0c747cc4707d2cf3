"""What a timeline says in words: its table, what is read out of its drawing, and the facts beside each run. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from accounts.formatting import counted, lasted, number
from inference.models import RunOutcome
from inference.runs import Event, EventKind

#: The finest difference between two moments that is noted, in seconds.
_SHORTEST_S: Final = 1e-4

_END_MEANINGS: Final = {
    RunOutcome.REQUEUED: "back to the queue, first in line",
    RunOutcome.PREEMPTED: "a higher lane needed its room; back to the queue with its tokens kept",
    RunOutcome.LOST: "its lease lapsed, and another claim replaced this one",
    RunOutcome.SETTLED: "an earlier run had written the end; only settling was left",
    RunOutcome.WITHDRAWN: "ended while no worker had it",
}


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table. ``at``: seconds since the generation was accepted; ``took``: None for a moment."""

    at: float
    took: float | None
    what: str
    detail: str

    @property
    def when(self) -> str:
        return lasted(self.at)

    @property
    def how_long(self) -> str:
        return "" if self.took is None else lasted(self.took)

    @property
    def title(self) -> str:
        """All of it in one sentence: shown when its shape is pointed at, and read out."""
        said = f"{self.what}: {self.detail}" if self.detail else self.what
        took = "" if self.took is None else f", for {self.how_long}"
        return f"{said} (after {self.when}{took})"


def line_of(event: Event) -> Line:
    """An event in words. Kinds that this version does not know are shown by their name."""
    at, kind, details = event
    took = details.get("s")
    match kind:
        case EventKind.CLAIMED:
            return Line(at, None, "Claimed", "a worker owns it")
        case EventKind.RESUMED:
            return Line(
                at, None, "Resumed", f"{_number_of(details, 'tokens', 'token')} of earlier runs are kept"
            )
        case EventKind.CACHE_HIT:
            return Line(at, None, "Prefix cache", f"{_number_of(details, 'tokens', 'token')} need not be run")
        case EventKind.CHUNK:
            return Line(at, took, *_chunk(details))
        case EventKind.FIRST_TOKEN:
            return Line(at, None, "First token", "")
        case EventKind.TOKENS:
            return Line(at, took, "Answer", _tokens(details))
        case EventKind.SLOT_WAIT:
            parked = details.get("parked")
            return Line(at, took, "Parked" if parked else "Waiting", "for the speculative slot")
        case EventKind.SLOT_GRANT:
            return Line(at, took, *_grant(details))
        case EventKind.CLASSIC:
            return Line(at, None, "Plain decoding", _spaced(details.get("reason", "")))
        case EventKind.CANCELLED:
            return Line(at, None, "Cancelled", _spaced(details.get("reason", "")))
        case _:
            return Line(at, took, _spaced(str(kind)).capitalize(), "")


def end_of(outcome: RunOutcome, at: float, details: Mapping[str, Any]) -> Line:
    """How a run was over."""
    meaning = _END_MEANINGS.get(outcome, "")
    reason = _spaced(details.get("reason", ""))
    return Line(at, None, str(outcome.label), ", ".join(filter(None, (reason, meaning))))


def rate_of(details: Mapping[str, Any]) -> float | None:
    """Tokens per second of a span of tokens; None if it took no time to speak of."""
    seconds = details.get("s", 0.0)
    return float(details.get("tokens", 0) / seconds) if seconds >= _SHORTEST_S else None


def top_rate(spans: Sequence[Mapping[str, Any]]) -> float:
    """The tokens per second that a column as high as can be stands for; 0 without spans.

    Of spans at least half as long as most: the last one often holds a single token that came at once, beside which
    all others would look slow.
    """
    lengths = [details.get("s", 0.0) for details in spans]
    enough = statistics.median(lengths) / 2 if lengths else 0.0
    return max(
        (rate_of(one) or 0.0 for one, s in zip(spans, lengths, strict=True) if s >= enough), default=0.0
    )


def facts(events: Sequence[Event]) -> list[str]:
    """A run in numbers."""
    chunks = [details for _, kind, details in events if kind == EventKind.CHUNK]
    spans = [(at, details) for at, kind, details in events if kind == EventKind.TOKENS]
    said = []
    if chunks:
        run = _sum(chunks, "tokens")
        busy = sum(float(chunk["busy"] if "busy" in chunk else chunk.get("s", 0.0)) for chunk in chunks)
        pieces = sum(chunk.get("merged", 1) for chunk in chunks)
        said.append(f"{counted(run, 'prompt token')} in {counted(pieces, 'chunk')}, {lasted(busy)} of work")
    first = sum(1 for _, kind, _ in events if kind == EventKind.FIRST_TOKEN)
    if first or spans:
        later = _sum([details for _, details in spans], "tokens")
        said.append(counted(first + later, "token"))
        seconds = spans[-1][0] + spans[-1][1].get("s", 0.0) - spans[0][0] if spans else 0.0
        if seconds >= _SHORTEST_S:
            said.append(f"{later / seconds:,.1f} tokens/s")
            said.append(f"longest pause {lasted(max(details.get('gap', 0.0) for _, details in spans))}")
    grants = [details for _, kind, details in events if kind == EventKind.SLOT_GRANT]
    if grants:
        pieces = sum(grant.get("merged", 1) for grant in grants)
        summed = {name: _sum(grants, name) for name in ("rounds", "proposed", "accepted")}
        said.append(f"{counted(pieces, 'grant')} of the slot, {_rounds(summed)}")
    return said


def _chunk(details: Mapping[str, Any]) -> tuple[str, str]:
    done, total = details.get("done", 0), details.get("total", 0)
    said = f"{_number_of(details, 'tokens', 'token')}, {number(done)} of {number(total)} done"
    beside = details.get("beside", 0)
    if beside:
        said += f", beside {counted(beside, 'other prompt')}"
    merged = details.get("merged", 1)
    if merged == 1:
        return "Prompt chunk", said
    return f"{number(merged)} prompt chunks", f"{said}, {lasted(details.get('busy', 0.0))} of work"


def _grant(details: Mapping[str, Any]) -> tuple[str, str]:
    merged = details.get("merged", 1)
    if merged == 1:
        return "Speculative slot", _rounds(details)
    return (
        f"{number(merged)} grants of the slot",
        f"{_rounds(details)}, {lasted(details.get('busy', 0.0))} in all",
    )


def _rounds(details: Mapping[str, Any]) -> str:
    said, proposed = _number_of(details, "rounds", "round"), details.get("proposed", 0)
    if proposed:
        said += f", {number(details.get('accepted', 0))} of {counted(proposed, 'drafted token')} kept"
    return said


def _tokens(details: Mapping[str, Any]) -> str:
    said, rate = _number_of(details, "tokens", "token"), rate_of(details)
    if rate is not None:
        said += f", {rate:,.1f} tokens/s"
    if details.get("gap"):
        said += f", longest pause {lasted(details['gap'])}"
    return said


def _sum(parts: Sequence[Mapping[str, Any]], name: str) -> int:
    return sum(part.get(name, 0) for part in parts)


def _number_of(details: Mapping[str, Any], name: str, noun: str) -> str:
    return counted(details.get(name, 0), noun)


def _spaced(name: str) -> str:
    return name.replace("_", " ")
