"""Requests and tokens per minute: counted in Valkey, exactly, over any 60 seconds.

Each rate remembers what was taken of it and when, so that it never lets more than its limit through in any minute,
whichever one is looked at; a counter that begins anew each minute would let twice as much through around its
beginning. All rates of one request are taken in one step on the server, or none is. Tokens are counted by what a
generation may use at most (its prompt and its ``max_tokens``), because that is all that is known when it is let in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from importlib.resources import files
from typing import Any, Final
from uuid import UUID

import redis
import structlog
from django.utils import timezone

from accounts.limits import RATES, LimitName, Limits, LimitState, shortage
from accounts.models import Allowance
from signalbox import store

_log = structlog.get_logger(__name__)

#: Length of the window that rates are counted over.
WINDOW_MS: Final = 60_000
#: Where rates stand is told beside an answer, and no answer waits long for it.
_READ_TIMEOUT_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate that is set: whose, which, and how much it lets through in 60 seconds."""

    allowance_id: UUID
    name: LimitName
    limit: int

    @property
    def key(self) -> str:
        """What its entries are kept under in Valkey."""
        return f"rates:{self.allowance_id.hex}:{self.name.value}"


class RateExceeded(Exception):
    """A request does not fit in a rate now; nothing was taken. ``state.fits_at`` says when it would."""

    def __init__(self, allowance_id: UUID, state: LimitState) -> None:
        super().__init__(f"{state.name} of allowance {allowance_id}: {state.used} of {state.limit} used")
        self.allowance_id = allowance_id
        self.state = state


def rates_of(allowance_id: UUID, limits: Limits) -> list[Rate]:
    """The rates of an allowance that are set."""
    return [Rate(allowance_id, name, limit) for name in RATES if (limit := limits.of(name)) is not None]


def take(generation_id: UUID, rates: Sequence[Rate], tokens: int) -> list[LimitState]:
    """Count one request of ``tokens`` in all ``rates``; where they stand then, in their order.

    Raises ``RateExceeded``, and ``redis.RedisError`` when Valkey cannot be reached: nothing was taken then.
    """
    if not rates:
        return []
    amounts = [tokens if rate.name.counts_tokens else 1 for rate in rates]
    arguments = [part for rate, amount in zip(rates, amounts, strict=True) for part in (rate.limit, amount)]
    taken, rows = _function("take_rates")(
        keys=[rate.key for rate in rates], args=[generation_id.hex, WINDOW_MS, *arguments]
    )
    states = [_state(rate, row) for rate, row in zip(rates, rows, strict=True)]
    if taken:
        return states
    short = shortage(states, tokens)
    if short is None:
        raise RuntimeError("Valkey refused a rate that its own figures allow")
    raise RateExceeded(rates[states.index(short)].allowance_id, short)


def give_back(generation_id: UUID, rates: Sequence[Rate]) -> None:
    """The request was refused later: it counts nowhere. May be repeated. Raises ``redis.RedisError``."""
    if rates:
        _function("give_back_rates")(keys=[rate.key for rate in rates], args=[generation_id.hex])


def read(rates: Sequence[Rate]) -> list[LimitState]:
    """Where ``rates`` stand now, in their order; takes nothing. Raises ``redis.RedisError``, after a second or two."""
    if not rates:
        return []
    rows = _function("read_rates")(keys=[rate.key for rate in rates], args=[WINDOW_MS])
    return [_state(rate, row) for rate, row in zip(rates, rows, strict=True)]


def read_all(allowances: Iterable[Allowance]) -> dict[UUID, list[LimitState]] | None:
    """Where the rates stand that are set, by allowance, in one step; None, and a line in the log: they are not known,
    because Valkey cannot be reached."""
    asked = [rate for allowance in allowances for rate in rates_of(allowance.id, allowance.limits)]
    try:
        states = read(asked)
    except redis.RedisError as error:
        _log.warning("rates_not_read", rates=len(asked), error=str(error))
        return None
    found: dict[UUID, list[LimitState]] = {}
    for rate, state in zip(asked, states, strict=True):
        found.setdefault(rate.allowance_id, []).append(state)
    return found


def _state(rate: Rate, row: Sequence[int]) -> LimitState:
    """``row``: used, milliseconds until all of it is back, and until the request fits (-1: it fits, or never does)."""
    used, resets_ms, fits_ms = row
    now = timezone.now()
    return LimitState(
        name=rate.name,
        limit=rate.limit,
        used=used,
        resets_at=now + timedelta(milliseconds=resets_ms),
        fits_at=now + timedelta(milliseconds=fits_ms) if fits_ms >= 0 else None,
    )


@cache
def _function(name: str) -> Any:
    # Giving back and reading are allowed beyond the memory limit; letting something in is not.
    flags = "" if name == "take_rates" else " flags=allow-oom"
    parts = (files("accounts") / "lua" / f"{part}.lua" for part in ("rate_clock", "rate_entries", name))
    source = "\n".join(part.read_text(encoding="utf-8") for part in parts)
    return _client(name).register_script(f"#!lua{flags}\n{source}")


def _client(name: str) -> redis.Redis:
    if name == "read_rates":
        return store.sync_client(timeout_s=_READ_TIMEOUT_S, retries=1)
    return store.shared_client()
