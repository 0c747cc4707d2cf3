"""The rates of a minute, in a real Valkey. Where time passes, it is the test's: the server's clock is one file of the
functions, and the others are run with another one."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.resources import files
from typing import Any

import pytest
import redis
import time_machine
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from accounts import rates
from accounts.limits import LimitName, Limits
from accounts.rates import WINDOW_MS, Rate, RateExceeded, give_back, rates_of, read, take
from tests.accounts.rate_entries import let_pass

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)

_CLOCK = "local function now_ms() return tonumber(redis.call('GET', 'clock-of-the-test')) end"


class Clock:
    """What the rates take for the server's clock, in milliseconds. Python's stands still meanwhile."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self.ms = 0
        self.advance(1_800_000_000_000)

    def advance(self, ms: int) -> None:
        self.ms += ms
        self._client.set("clock-of-the-test", self.ms)

    def ms_until(self, at: datetime | None) -> int:
        assert at is not None
        return round((at - NOW) / timedelta(milliseconds=1))


@pytest.fixture
def clock(valkey: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    def lua(name: str) -> str:
        return (files("accounts") / "lua" / f"{name}.lua").read_text(encoding="utf-8")

    @cache
    def function(name: str) -> Any:
        return valkey.register_script("\n".join(("#!lua", _CLOCK, lua("rate_entries"), lua(name))))

    monkeypatch.setattr(rates, "_function", function)
    with time_machine.travel(NOW, tick=False):
        yield Clock(valkey)


def rate(limit: int, name: LimitName = LimitName.REQUESTS_PER_MINUTE) -> Rate:
    return Rate(uuid.uuid4(), name, limit)


def taken(*of: Rate, tokens: int = 1) -> uuid.UUID | None:
    """The request, if it was let through."""
    request = uuid.uuid4()
    try:
        take(request, of, tokens)
    except RateExceeded:
        return None
    return request


def used(*of: Rate) -> list[int]:
    return [state.used for state in read(of)]


def test_rates_are_those_limits_of_a_minute_that_are_set() -> None:
    allowance = uuid.uuid4()
    assert rates_of(allowance, Limits(tokens_per_day=5, concurrency=1)) == []
    assert rates_of(allowance, Limits(requests_per_minute=0, tokens_per_minute=7)) == [
        Rate(allowance, LimitName.REQUESTS_PER_MINUTE, 0),
        Rate(allowance, LimitName.TOKENS_PER_MINUTE, 7),
    ]
    assert take(uuid.uuid4(), [], 5) == read([]) == []


@dataclass
class Told:
    """What a rate should hold: the reference that the property compares with."""

    rate: Rate
    entries: dict[uuid.UUID, tuple[int, int]] = field(default_factory=dict)

    def amount(self, tokens: int) -> int:
        return tokens if self.rate.name.counts_tokens else 1

    def used(self, now: int) -> int:
        return sum(amount for at, amount in self.entries.values() if at > now - WINDOW_MS)

    def fits(self, tokens: int, now: int) -> bool:
        return self.used(now) + self.amount(tokens) <= self.rate.limit


#: Also to the very millisecond at which something lapses, and to the one before.
ADVANCES = st.one_of(
    st.integers(0, 70_000), st.sampled_from([1, WINDOW_MS // 2, WINDOW_MS // 2 - 1, WINDOW_MS - 1, WINDOW_MS])
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("advance"), ADVANCES),
        st.tuples(st.just("take"), st.integers(1, 9)),
        st.tuples(st.just("give_back"), st.integers(0, 30)),
        st.tuples(st.just("take_again"), st.integers(0, 30)),
        st.tuples(st.just("read"), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(
    steps=[("take", 1), ("advance", WINDOW_MS - 1), ("read", 0), ("take", 9), ("advance", 1), ("take", 9)],
    limits=(2, 9, 3),
)
@given(steps=STEPS, limits=st.tuples(st.integers(0, 4), st.integers(0, 20), st.integers(1, 6)))
def test_no_window_of_60_seconds_holds_more_than_the_limit_and_all_that_fits_is_let_through(
    clock: Clock, steps: list[tuple[str, int]], limits: tuple[int, int, int]
) -> None:
    requests, tokens, keys = limits
    allowance = uuid.uuid4()
    told = [
        Told(Rate(allowance, LimitName.REQUESTS_PER_MINUTE, requests)),
        Told(Rate(allowance, LimitName.TOKENS_PER_MINUTE, tokens)),
        Told(Rate(uuid.uuid4(), LimitName.REQUESTS_PER_MINUTE, keys)),
    ]
    all_rates = [one.rate for one in told]
    made: dict[uuid.UUID, int] = {}
    for step, value in steps:
        now = clock.ms
        match step:
            case "advance":
                clock.advance(value)
            case "read":
                assert used(*all_rates) == [one.used(now) for one in told]
            case "give_back" if made:
                request = [*made][value % len(made)]
                give_back(request, all_rates)
                for one in told:
                    one.entries.pop(request, None)
            case "take" | "take_again" if step == "take" or made:
                request = uuid.uuid4() if step == "take" else [*made][value % len(made)]
                wanted = made.setdefault(request, value)
                if all(one.fits(wanted, now) for one in told):
                    for one in told:
                        one.entries[request] = (now, one.amount(wanted))
                    states = take(request, all_rates, wanted)
                    assert [state.used for state in states] == [one.used(now) for one in told]
                    assert {clock.ms_until(state.resets_at) for state in states} == {WINDOW_MS}
                    continue
                with pytest.raises(RateExceeded) as refusal:
                    take(request, all_rates, wanted)
                [short] = [
                    one
                    for one in told
                    if (one.rate.allowance_id, one.rate.name)
                    == (refusal.value.allowance_id, refusal.value.state.name)
                ]
                check_refusal(clock, short, refusal.value, wanted)
    for one in told:
        for at, _ in one.entries.values():
            window = (amount for when, amount in one.entries.values() if at - WINDOW_MS < when <= at)
            assert sum(window) <= one.rate.limit


def check_refusal(clock: Clock, short: Told, refusal: RateExceeded, wanted: int) -> None:
    """It tells how much is used, and the very millisecond from which the request would fit."""
    state = refusal.state
    assert not short.fits(wanted, clock.ms)
    assert (state.used, state.limit) == (short.used(clock.ms), short.rate.limit)
    if state.never_allows(wanted):
        assert state.fits_at is None
        return
    fits_at = clock.ms + clock.ms_until(state.fits_at)
    assert short.fits(wanted, fits_at)
    assert not short.fits(wanted, fits_at - 1)


def test_what_is_told_to_fit_then_fits_then(clock: Clock) -> None:
    limited = rate(10, LimitName.TOKENS_PER_MINUTE)
    for tokens in (4, 3, 3):
        assert taken(limited, tokens=tokens)
        clock.advance(1000)
    with pytest.raises(RateExceeded) as refusal:
        take(uuid.uuid4(), [limited], 5)
    wait = clock.ms_until(refusal.value.state.fits_at)
    assert wait == WINDOW_MS - 2000, "4 and 3 must have passed, not the last 3"
    assert clock.ms_until(refusal.value.state.resets_at) == WINDOW_MS - 1000
    clock.advance(wait - 1)
    assert not taken(limited, tokens=5)
    clock.advance(1)
    assert taken(limited, tokens=5)


def test_a_limit_of_0_lets_nothing_through_and_a_larger_request_never_fits(clock: Clock) -> None:
    for limited, tokens in ((rate(0), 1), (rate(5, LimitName.TOKENS_PER_MINUTE), 6)):
        with pytest.raises(RateExceeded) as refusal:
            take(uuid.uuid4(), [limited], tokens)
        assert refusal.value.state.never_allows(tokens)
        assert refusal.value.state.fits_at is None
        assert used(limited) == [0]


def test_reading_drops_what_has_lapsed(clock: Clock, valkey: redis.Redis) -> None:
    limited = rate(5)
    assert taken(limited)
    clock.advance(30_000)
    assert taken(limited)
    clock.advance(30_000)
    [state] = read([limited])
    assert (state.used, clock.ms_until(state.resets_at)) == (1, 30_000)
    assert valkey.zcard(limited.key) == 1
    clock.advance(30_000)
    [state] = read([limited])
    assert (state.used, clock.ms_until(state.resets_at)) == (0, 0)
    assert valkey.zcard(limited.key) == 0


def test_what_is_given_back_counts_no_more_however_many_came_since(clock: Clock) -> None:
    limited = rate(250)
    first = taken(limited)
    assert first
    for _ in range(249):
        assert taken(limited)
    assert not taken(limited)
    give_back(first, [limited])
    give_back(first, [limited])
    give_back(uuid.uuid4(), [limited])
    assert used(limited) == [249]
    assert taken(limited)
    assert not taken(limited)


def test_a_request_that_could_not_be_given_back_counts_once_when_it_is_taken_again(clock: Clock) -> None:
    limited, request = rate(10, LimitName.TOKENS_PER_MINUTE), uuid.uuid4()
    for _ in range(3):
        [state] = take(request, [limited], 3)
        assert state.used == 3
        clock.advance(10)
    clock.advance(WINDOW_MS)
    assert used(limited) == [0]
    assert taken(limited, tokens=10)


def test_nothing_of_an_unused_rate_stays_in_the_store(valkey: redis.Redis) -> None:
    limited = rate(5)
    assert taken(limited)
    keys = valkey.keys(f"{limited.key}*")
    assert len(keys) == 2
    assert all(0 < valkey.pttl(key) <= WINDOW_MS + 1000 for key in keys)


def test_many_at_once_take_all_rates_or_none(valkey: redis.Redis) -> None:
    wide, narrow = rate(30), rate(20)
    with ThreadPoolExecutor(50) as pool:
        passed = [request for request in pool.map(lambda _: taken(wide, narrow), range(50)) if request]
    assert len(passed) == 20
    assert used(wide, narrow) == [20, 20]
    with ThreadPoolExecutor(20) as pool:
        list(pool.map(lambda request: give_back(request, [wide, narrow]), passed))
    assert used(wide, narrow) == [0, 0]


def test_q7_of_three_requests_exactly_two_pass_in_each_window(valkey: redis.Redis) -> None:
    """By the server's own clock, and the whole minute."""
    limited = rate(2)
    for _ in range(3):
        passed = [taken(limited) is not None for _ in range(3)]
        assert passed == [True, True, False]
        let_pass(valkey, WINDOW_MS // 2)
        assert not taken(limited), "half a window is none"
        let_pass(valkey, WINDOW_MS // 2)
        assert used(limited) == [0]
