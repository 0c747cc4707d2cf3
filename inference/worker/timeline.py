"""What one run of a generation looked like in time: noted on the tick path, read by people later.

Noting costs a few additions and reads no clock: times are the loop's own, in monotonic seconds. However long a run
is, it keeps at most ``MOST_CHUNKS`` chunks, ``MOST_SPANS`` spans of tokens and ``MOST_GRANTS`` grants of the slot, by
merging neighbours. Numbers only, never text.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

from inference.dispatch.claims import Claim
from inference.messages import CancelReason, Delta, End
from inference.models import RunOutcome
from inference.runs import Event, EventKind, RunRecord

MOST_CHUNKS: Final = 200
MOST_SPANS: Final = 120
MOST_GRANTS: Final = 60
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


class _Grant(NamedTuple):
    started: float
    ended: float = 0.0
    busy: float = 0.0
    rounds: int = 0
    proposed: int = 0
    accepted: int = 0
    merged: int = 1
    #: When it began to wait for the grant, if it did.
    since: float | None = None
    parked: bool = False

    def joined(self, later: _Grant) -> _Grant:
        """Both, and the wait between them."""
        return self._replace(
            ended=later.ended,
            busy=self.busy + later.busy,
            rounds=self.rounds + later.rounds,
            proposed=self.proposed + later.proposed,
            accepted=self.accepted + later.accepted,
            merged=self.merged + later.merged,
        )

    def details(self) -> dict[str, Any]:
        details = {
            "s": _rounded(self.ended - self.started),
            "rounds": self.rounds,
            "proposed": self.proposed,
            "accepted": self.accepted,
        }
        if self.merged > 1:
            details |= {"merged": self.merged, "busy": _rounded(self.busy)}
        return details


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
        self._grants: list[_Grant] = []
        self._grants_each = 1
        self._grant: _Grant | None = None
        self._waits_since: float | None = None
        self._parked = False
        #: When it went on producing after it had been parked.
        self._went_on_at = 0.0
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
        span = _Span(max(last, self._went_on_at), at, count, at - last)
        spans = self._spans
        if spans and span.started <= spans[-1].ended and at - spans[-1].started <= self._span_s:
            spans[-1] = spans[-1].joined(span)
            return
        spans.append(span)
        if len(spans) > MOST_SPANS:
            self._span_s *= 2
            self._spans = _in_pairs(spans, _Span.joined)

    def slot_waits(self, at: float) -> None:
        """It waits for the slot, and has produced nothing yet."""
        self._waits_since, self._parked = at, False

    def slot_granted(self, at: float) -> None:
        """It has the slot."""
        self._grant = _Grant(at, since=self._waits_since, parked=self._parked)
        self._go_on(at)

    def slot_round(self) -> None:
        """A round of its grant is over."""
        if self._grant is not None:
            self._grant = self._grant._replace(rounds=self._grant.rounds + 1)

    def drafted(self, proposed: int, accepted: int) -> None:
        """Of the ``proposed`` drafted tokens of its grant's last round, ``accepted`` became part of the answer."""
        grant = self._grant
        if grant is not None:
            self._grant = grant._replace(
                proposed=grant.proposed + proposed, accepted=grant.accepted + accepted
            )

    def slot_parked(self, at: float) -> None:
        """Its grant has expired: it waits for the next one, and keeps what it has."""
        self._close_grant(at)
        self._waits_since, self._parked = at, True

    def slot_left(self, at: float, reason: str) -> None:
        """It goes on without the slot, which it had or waited for."""
        self._close_grant(at)
        self._close_wait(at)
        self._mark(at, EventKind.CLASSIC, reason=reason)
        self._go_on(at)

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
        self._close_grant(now)
        self._close_wait(now)
        events = [
            *self._marks,
            *(event for grant in self._grants for event in self._granted(grant)),
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

    def _granted(self, grant: _Grant) -> Iterator[Event]:
        if grant.since is not None:
            yield self._waited(grant.since, grant.started, grant.parked)
        yield self._at(grant.started), EventKind.SLOT_GRANT, grant.details()

    def _waited(self, since: float, until: float, parked: bool) -> Event:
        details: dict[str, Any] = {"s": _rounded(until - since)}
        return self._at(since), EventKind.SLOT_WAIT, {**details, "parked": True} if parked else details

    def _close_grant(self, at: float) -> None:
        grant, self._grant = self._grant, None
        if grant is None:
            return
        grant = grant._replace(ended=at, busy=at - grant.started)
        grants = self._grants
        if grants and grants[-1].merged < self._grants_each:
            grants[-1] = grants[-1].joined(grant)
            return
        grants.append(grant)
        if len(grants) > MOST_GRANTS:
            self._grants_each *= 2
            self._grants = _in_pairs(grants, _Grant.joined)

    def _close_wait(self, at: float) -> None:
        """Of a wait that no grant has ended."""
        if self._waits_since is not None:
            self._marks.append(self._waited(self._waits_since, at, self._parked))
            self._waits_since = None

    def _go_on(self, at: float) -> None:
        if self._parked:
            self._went_on_at = at
        self._waits_since, self._parked = None, False

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
