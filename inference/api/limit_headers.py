"""``x-ratelimit-…``: what is left of a caller's limits, in the headers of every answer to a caller who is known.

OpenAI's API has one limit of requests and one of tokens. Here several hold at once: the one of each kind that has least
left is told. ``GET /v1/limits`` tells them all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

import structlog
from django.db import Error as DatabaseFailure
from django.utils import timezone

from accounts.limits import LimitState
from accounts.principal import Principal
from accounts.standing import standing

_log = structlog.get_logger(__name__)

#: The headers, and what each tells, of whichever limit of its kind has least left. A kind without a limit has none.
HEADERS: Final = {
    f"x-ratelimit-{figure}-{kind}": f"{said} {kind}{rest}"
    for kind in ("requests", "tokens")
    for figure, said, rest in (
        ("limit", "Most", " that are let through."),
        ("remaining", "How many", " it lets through now."),
        ("reset", "How long until it lets its most", " through again, as in `6m0s`."),
    )
}


class CallLimits:
    """Where the limits of one call's caller stand, for its answer: told by what the call did, else looked up."""

    def __init__(self) -> None:
        self._states: tuple[LimitState, ...] | None = None
        self._short: LimitState | None = None

    def are(self, states: Iterable[LimitState]) -> None:
        """They are known without looking: from what has just been taken of them, or read."""
        self._states = tuple(states)

    def refused_by(self, short: LimitState | None) -> None:
        """The call was refused for this one: it is told, whatever is left of the others of its kind."""
        self._short = short

    def look_up(self, principal: Principal) -> None:
        """Read them, unless they are known. What cannot be read is left out: the answer itself does not need it."""
        if self._states is not None:
            return
        try:
            self._states = standing(principal, timezone.now()).next_limits
        except DatabaseFailure:
            _log.warning("limits_not_read", tenant=principal.tenant_id.hex, exc_info=True)

    def headers(self, now: datetime) -> dict[str, str]:
        """The answer's headers; none for a caller who is not known, or has no limits."""
        states = [*(self._states or ())]
        if (short := self._short) is not None:
            states = [state for state in states if state.name.counts_tokens != short.name.counts_tokens]
            states.append(short)
        return limit_headers(states, now)


def limit_headers(states: Iterable[LimitState], now: datetime) -> dict[str, str]:
    """The headers for limits that stand so. A kind of which none is set has no headers. Pure."""
    headers = {}
    states = list(states)
    for kind, counts_tokens in (("requests", False), ("tokens", True)):
        tightest = min(
            (state for state in states if state.name.counts_tokens == counts_tokens), key=_left, default=None
        )
        if tightest is None:
            continue
        headers[f"x-ratelimit-limit-{kind}"] = str(tightest.limit)
        headers[f"x-ratelimit-remaining-{kind}"] = str(tightest.remaining)
        # Nobody knows when what runs will end: concurrency has no such header.
        if tightest.resets_at is not None:
            headers[f"x-ratelimit-reset-{kind}"] = duration(tightest.resets_at - now)
    return headers


def duration(time: timedelta) -> str:
    """``time`` as OpenAI writes it (``120ms``, ``1s``, ``6m0s``, ``2h3m4s``), rounded up; ``0s`` if it has passed."""
    ms = max(0, math.ceil(time / timedelta(milliseconds=1)))
    if 0 < ms < 1000:
        return f"{ms}ms"
    minutes, seconds = divmod(math.ceil(ms / 1000), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes}m{seconds}s"
    return f"{minutes}m{seconds}s" if minutes else f"{seconds}s"


def _left(state: LimitState) -> tuple[int, float]:
    """Least left first; of several, the one that keeps the caller waiting for longest."""
    return state.remaining, -(state.resets_at.timestamp() if state.resets_at else 0.0)
