"""What one run of a generation looked like in time: noted on the tick path, read by people later.

Noting costs a few additions and reads no clock: times are the loop's own, in monotonic seconds. However long a run
is, it keeps at most ``MOST_CHUNKS`` chunks and ``MOST_SPANS`` spans of tokens, by merging neighbours. Numbers only,
never text.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

from inference.dispatch.claims import Claim
from inference.messages import CancelReason, Delta, End
from inference.models import RunOutcome
from inference.runs import Event, EventKind, RunRecord

MOST_CHUNKS: Final = 200
MOST_SPANS: Final = 120
#: The length of a span of tokens while there are few, in seconds.
_FIRST_SPAN_S: Final = 0.5


_Part = TypeVar("_Part")


class _Chunk(NamedTuple):
    started: float
    ended: float
    busy: float
    tokens: int
    done: int
    total: int
    beside: int
    merged: int = 1

    def joined(self, later: _Chunk) -> _Chunk:
        return _Chunk(
            self.started,
            later.ended,
            self.busy + later.busy,
            self.tokens + later.tokens,
            later.done,
            later.total,
            max(self.beside, later.beside),
            self.merged + later.merged,
        )

    def details(self) -> dict[str, Any]:
        details = {
            "s": _rounded(self.ended - self.started),
            "tokens": self.tokens,
            "done": self.done,
            "total": self.total,
        }
        if self.beside:
            details["beside"] = self.beside
        if self.merged > 1:
            details |= {"merged": self.merged, "busy": _rounded(self.busy)}
        return details


class _Span(NamedTuple):
    started: float
    ended: float
    tokens: int
    gap: float

    def joined(self, later: _Span) -> _Span:
        return _Span(self.started, later.ended, self.tokens + later.tokens, max(self.gap, later.gap))

    def details(self) -> dict[str, Any]:
        return {
            "s": _rounded(self.ended - self.started),
            "tokens": self.tokens,
            "gap": _rounded(self.gap),
        }


class RunTimeline:
    """One claim's events, from the claim to its end, for the thread that runs it."""

    def __init__(self, claim: Claim, claimed_at: float | None = None) -> None:
        """``claimed_at``: monotonic seconds; now, if not given."""
        now = time.monotonic()
        self._claim = claim
        self._claimed_at = now if claimed_at is None else claimed_at
        # Seconds of the clocks of all machines are compared once; a web whose clock is ahead accepts before the claim.
        self._accepted_at = min(now - (time.time() - claim.task.accepted_at), self._claimed_at)
        self._marks: list[Event] = []
        self._chunks: list[_Chunk] = []
        self._chunks_each = 1
        self._prompt_done = 0
        self._spans: list[_Span] = []
        self._span_s = _FIRST_SPAN_S
        self._last_token_at: float | None = None
        self._mark(self._claimed_at, EventKind.CLAIMED)
        self._resumed = sum(len(entry.tokens) for entry in claim.log if isinstance(entry, Delta))
        if self._resumed:
            self._mark(self._claimed_at, EventKind.RESUMED, tokens=self._resumed)

    def cache_hit(self, at: float, tokens: int) -> None:
        """The first ``tokens`` of the prompt need not be run."""
        self._prompt_done = tokens
        self._mark(at, EventKind.CACHE_HIT, tokens=tokens)

    def chunk(self, started: float, ended: float, done: int, total: int, *, beside: int) -> None:
        """One prefill tick: ``done`` of ``total`` tokens are run now, ``beside`` other prompts shared the tick."""
        chunk = _Chunk(started, ended, ended - started, done - self._prompt_done, done, total, beside)
        self._prompt_done = done
        chunks = self._chunks
        if chunks and chunks[-1].merged < self._chunks_each:
            chunks[-1] = chunks[-1].joined(chunk)
            return
        chunks.append(chunk)
        if len(chunks) > MOST_CHUNKS:
            self._chunks_each *= 2
            self._chunks = _in_pairs(chunks, _Chunk.joined)

    def tokens(self, at: float, count: int = 1) -> None:
        """``count`` tokens came."""
        last, self._last_token_at = self._last_token_at, at
        if last is None:
            if not self._resumed:
                self._mark(at, EventKind.FIRST_TOKEN)
                if count == 1:
                    return
                count -= 1
            self._spans.append(_Span(at, at, count, 0.0))
            return
        span = _Span(last, at, count, at - last)
        spans = self._spans
        if spans and at - spans[-1].started <= self._span_s:
            spans[-1] = spans[-1].joined(span)
            return
        spans.append(span)
        if len(spans) > MOST_SPANS:
            self._span_s *= 2
            self._spans = _in_pairs(spans, _Span.joined)

    def cancelled(self, reason: CancelReason) -> None:
        """Its cancel is carried out now."""
        self._mark(time.monotonic(), EventKind.CANCELLED, reason=reason.value)

    def ended(self, end: End) -> RunRecord:
        """The generation has ended with this run."""
        reason = end.failure.code if end.failure else end.finish_reason
        return self.left(RunOutcome(end.state.value), **({"reason": str(reason)} if reason else {}))

    def left(self, outcome: RunOutcome, **details: Any) -> RunRecord:
        """The run is over; ``details`` are for its last event."""
        now, unix_now = time.monotonic(), time.time()
        events = [
            *self._marks,
            *((self._at(c.started), EventKind.CHUNK, c.details()) for c in self._chunks),
            *((self._at(s.started), EventKind.TOKENS, s.details()) for s in self._spans),
        ]
        # Stable: what was noted at one time stays in the order in which it happened.
        events.sort(key=lambda event: event[0])
        return RunRecord(
            generation=UUID(self._claim.task.generation),
            epoch=self._claim.epoch,
            claimed_at=unix_now - (now - self._claimed_at),
            ended_at=unix_now,
            outcome=outcome,
            events=[*events, (self._at(now), EventKind.ENDED, details)],
        )

    def _mark(self, at: float, kind: EventKind, **details: Any) -> None:
        self._marks.append((self._at(at), kind, details))

    def _at(self, monotonic: float) -> float:
        return _rounded(monotonic - self._accepted_at)


def _in_pairs(parts: list[_Part], join: Callable[[_Part, _Part], _Part]) -> list[_Part]:
    """Half as many, each of two neighbours; of an odd number the last stays alone."""
    paired = [join(*pair) for pair in zip(parts[::2], parts[1::2], strict=False)]
    return paired + parts[2 * len(paired) :]


def _rounded(seconds: float) -> float:
    return round(seconds, 4)
