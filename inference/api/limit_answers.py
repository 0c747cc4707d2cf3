"""A limit as clients are told of it: in the answer that refuses for it, and in ``GET /v1/limits``."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Any

from accounts.limits import LimitName, LimitState
from inference.api.answers import AnswerModel


class LimitAnswer(AnswerModel):
    """One limit that is set, and where it stands: in tokens where its name says so, else in generations."""

    name: LimitName
    limit: int
    """0 lets nothing through."""
    used: int
    """What is reserved for generations that wait or run included."""
    reserved: int
    """What generations that wait or run may use at most; what they did not use is given back at their end."""
    remaining: int
    resets_at: int | None
    """Unix time at which nothing of it is used any more, if nothing new comes. Null: when what runs has ended."""


class StandingLimit(LimitAnswer):
    """A limit, for whoever asks before using it."""

    over: bool
    """More is used than allowed, because the limit was lowered since. Nothing is let in until that has passed."""

    @classmethod
    def of(cls, state: LimitState) -> StandingLimit:
        return cls(**_fields(state), over=state.over)


class ShortLimit(LimitAnswer):
    """The limit that a request did not fit in."""

    subject: str
    """Whose it is: a lane, or the key."""
    accepted_tokens: int
    """Prompt and `max_tokens` together, at most, that it would let through now. 0: nothing."""

    @classmethod
    def of(cls, state: LimitState, subject: str) -> ShortLimit:
        accepted = state.remaining if state.name.counts_tokens else 0
        return cls(**_fields(state), subject=subject, accepted_tokens=accepted)


def unix_time(at: datetime | None) -> int | None:
    """The first whole second at which ``at`` has been reached."""
    return None if at is None else math.ceil(at.timestamp())


def _fields(state: LimitState) -> dict[str, Any]:
    return {
        "name": state.name,
        "limit": state.limit,
        "used": state.used,
        "reserved": state.reserved,
        "remaining": state.remaining,
        "resets_at": unix_time(state.resets_at),
    }
