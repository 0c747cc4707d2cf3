"""What a tenant or a key may use, limit by limit: the words, and whether a request fits. Pure.

A limit that is not set is no limit; a limit of 0 lets nothing through.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class LimitName(StrEnum):
    """The limits that there are: the same name in the database, the API, the metrics and the admin."""

    TOKENS_PER_DAY = "tokens_per_day"
    TOKENS_PER_WEEK = "tokens_per_week"
    TOKENS_PER_MONTH = "tokens_per_month"
    REQUESTS_PER_MINUTE = "requests_per_minute"
    TOKENS_PER_MINUTE = "tokens_per_minute"
    CONCURRENCY = "concurrency"

    @property
    def counts_tokens(self) -> bool:
        """Whether it counts tokens; the others count generations."""
        return self.value.startswith("tokens")

    @property
    def is_budget(self) -> bool:
        """Whether it is a budget of a calendar window, kept in the database."""
        return self in BUDGETS

    @property
    def is_rate(self) -> bool:
        """Whether it is a rate, kept in Valkey."""
        return self in RATES


BUDGETS = (LimitName.TOKENS_PER_DAY, LimitName.TOKENS_PER_WEEK, LimitName.TOKENS_PER_MONTH)
RATES = (LimitName.REQUESTS_PER_MINUTE, LimitName.TOKENS_PER_MINUTE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of one allowance, by name; None: not set, which is no limit."""

    tokens_per_day: int | None = None
    tokens_per_week: int | None = None
    tokens_per_month: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency: int | None = None

    def of(self, name: LimitName) -> int | None:
        """The limit called ``name``."""
        limit: int | None = getattr(self, name.value)
        return limit


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitState:
    """One limit that is set, and where it stands.

    ``used`` holds what is reserved too (``reserved`` of it): tokens or generations. ``resets_at``: when nothing of
    it is used any more; None for concurrency, which ends with what runs. ``fits_at``: when a request that was refused
    for it would fit, if nothing else came; None: at ``resets_at``.
    """

    name: LimitName
    limit: int
    used: int
    reserved: int = 0
    resets_at: datetime | None = None
    fits_at: datetime | None = None

    @property
    def remaining(self) -> int:
        """What is left of it: never below 0, though it may be over (lowered below its use)."""
        return max(0, self.limit - self.used)

    @property
    def over(self) -> bool:
        """Whether more is used than the limit allows, because it was lowered since."""
        return self.used > self.limit

    def wanted(self, tokens: int) -> int:
        """What a request of ``tokens`` takes of it."""
        return tokens if self.name.counts_tokens else 1

    def allows(self, tokens: int) -> bool:
        """Whether one more request of ``tokens``, at worst, fits."""
        return self.wanted(tokens) <= self.limit - self.used

    def never_allows(self, tokens: int) -> bool:
        """Whether such a request does not fit even when nothing is used: waiting does not help."""
        return self.wanted(tokens) > self.limit


def shortage(states: Iterable[LimitState], tokens: int) -> LimitState | None:
    """The limit that a request of ``tokens`` does not fit in, or None: it fits in all.

    Of several the one that keeps it out for longest: one that it never fits in, then the one that resets last.
    """
    short = [state for state in states if not state.allows(tokens)]
    return max(short, key=lambda state: _keeps_out(state, tokens), default=None)


def _keeps_out(state: LimitState, tokens: int) -> tuple[bool, float]:
    until = state.fits_at or state.resets_at
    return state.never_allows(tokens), until.timestamp() if until else 0.0
