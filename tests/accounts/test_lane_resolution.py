from __future__ import annotations

import itertools
import uuid
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounts.lane_resolution import (
    Denial,
    KeyRights,
    LaneChoice,
    Refused,
    Resolution,
    Right,
    Wish,
    resolve_lane,
)
from accounts.limits import LimitName, LimitState
from accounts.models import AssignmentReason

LANES = [
    LaneChoice("high", 0, "priority"),
    LaneChoice("normal", 1, "default"),
    LaneChoice("low", 2, "flex"),
]
NAMES = [lane.name for lane in LANES]
LOWER = {"high": "normal", "normal": "low", "low": None}
SUBSETS = [frozenset(names) for size in range(4) for names in itertools.combinations(NAMES, size)]
#: What a client may say, and the lane it means; None is "nothing in particular".
REQUESTS = {
    None: None,
    "": None,
    "auto": None,
    "high": "high",
    "priority": "high",
    "normal": "normal",
    "default": "normal",
    "low": "low",
    "flex": "low",
}
NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
MIDNIGHT = datetime(2026, 11, 30, tzinfo=UTC)
#: What a tenant may have in a lane: nothing; enough; too little, and what happens then.
ABSENT, FITS, REFUSES, STEPS_DOWN = "absent", "fits", "refuses", "steps down"
HAVINGS = (ABSENT, FITS, REFUSES, STEPS_DOWN)


def ids(number: int) -> uuid.UUID:
    return uuid.UUID(int=number)


def day(limit: int, used: int = 0) -> LimitState:
    return LimitState(name=LimitName.TOKENS_PER_DAY, limit=limit, used=used, resets_at=MIDNIGHT)


def wish(requested: str | None = None, tokens: int = 100) -> Wish:
    return Wish(requested=requested, tokens=tokens, prompt_tokens=10)


def right(lane: str, having: str = FITS, number: int | None = None) -> Right:
    return Right(
        entitlement_id=ids(NAMES.index(lane) if number is None else number),
        lane=lane,
        step_down_to=LOWER[lane] if having == STEPS_DOWN else None,
        limits=(day(1000, 0 if having == FITS else 950),),
    )


def resolve(
    requested: str | None = None,
    *rights: Right,
    default: str | None = None,
    allowed: frozenset[str] = frozenset(),
    key_limits: tuple[LimitState, ...] = (),
    tokens: int = 100,
    now: datetime = NOW,
) -> Resolution:
    key = KeyRights(default_lane=default, allowed_lanes=allowed, limits=key_limits)
    return resolve_lane(wish(requested, tokens), key, rights, LANES, now)


def expected(wanted: str, has: dict[str, str], allowed: frozenset[str]) -> str | Denial:
    """The lane, or why none: by walking down from the one wanted."""
    stepped_down = False
    while True:
        lane: str | None = wanted
        while lane is not None and (has[lane] == ABSENT or (allowed and lane not in allowed)):
            lane = LOWER[lane]
        if lane is None:
            return Denial.INSUFFICIENT_QUOTA if stepped_down else Denial.NO_ENTITLEMENT
        if has[lane] == FITS:
            return lane
        below = LOWER[lane]
        if has[lane] == REFUSES or below is None:
            return Denial.INSUFFICIENT_QUOTA
        wanted, stepped_down = below, True


@pytest.mark.parametrize("allowed", SUBSETS, ids=lambda names: "+".join(sorted(names)) or "all")
@pytest.mark.parametrize("default", [None, *NAMES])
@pytest.mark.parametrize(("requested", "asked"), REQUESTS.items())
def test_every_combination_gets_the_lane_it_has_a_right_to(
    requested: str | None, asked: str | None, default: str | None, allowed: frozenset[str]
) -> None:
    wanted = asked or default or "normal"
    for havings in itertools.product(HAVINGS, repeat=3):
        has = dict(zip(NAMES, havings, strict=True))
        rights = [right(lane, having) for lane, having in has.items() if having != ABSENT]
        outcome = expected(wanted, has, allowed)
        if isinstance(outcome, Denial):
            with pytest.raises(Refused) as refusal:
                resolve(requested, *rights, default=default, allowed=allowed)
            assert refusal.value.code == outcome, has
            assert (refusal.value.limit is not None) == (outcome is Denial.INSUFFICIENT_QUOTA), has
            continue
        resolution = resolve(requested, *rights, default=default, allowed=allowed)
        assert resolution.lane.name == outcome, has
        assert resolution.entitlement_id == ids(NAMES.index(outcome)), has
        if resolution.step_downs:
            reason = AssignmentReason.STEPPED_DOWN
            assert all(has[step.lane] == STEPS_DOWN for step in resolution.step_downs), has
        elif outcome != wanted:
            entitled = has[wanted] != ABSENT
            reason = AssignmentReason.NOT_ALLOWED_BY_KEY if entitled else AssignmentReason.NOT_ENTITLED
        elif asked:
            reason = AssignmentReason.REQUESTED
        else:
            reason = AssignmentReason.KEY_DEFAULT if default else AssignmentReason.TENANT_DEFAULT
        assert resolution.reason == reason, has


_limit_states = st.builds(
    day, st.integers(min_value=0, max_value=200), st.integers(min_value=0, max_value=250)
)
_times = st.one_of(st.none(), st.integers(-3, 3).map(lambda hours: NOW + timedelta(hours=hours)))
_rights = st.builds(
    Right,
    entitlement_id=st.integers(min_value=0, max_value=2**64).map(ids),
    lane=st.sampled_from(NAMES),
    starts_at=_times,
    ends_at=_times,
    step_down_to=st.sampled_from([None, *NAMES]),
    limits=st.lists(_limit_states, max_size=2).map(tuple),
)


@given(
    requested=st.one_of(
        st.none(), st.text(max_size=20), st.sampled_from([*NAMES, "priority", "flex", "auto"])
    ),
    rights=st.lists(_rights, max_size=6, unique_by=lambda one: one.entitlement_id),
    default=st.one_of(st.none(), st.sampled_from(NAMES)),
    allowed=st.frozensets(st.sampled_from(NAMES)),
    key_limits=st.lists(_limit_states, max_size=2).map(tuple),
    tokens=st.integers(min_value=1, max_value=200),
)
def test_nothing_that_a_client_says_gets_it_more_than_it_has_a_right_to(
    requested: str | None,
    rights: list[Right],
    default: str | None,
    allowed: frozenset[str],
    key_limits: tuple[LimitState, ...],
    tokens: int,
) -> None:
    try:
        resolution = resolve(
            requested, *rights, default=default, allowed=allowed, key_limits=key_limits, tokens=tokens
        )
    except Refused:
        return
    given_by = next(one for one in rights if one.entitlement_id == resolution.entitlement_id)
    assert given_by.lane == resolution.lane.name
    assert given_by.gives_at(NOW)
    assert not allowed or resolution.lane.name in allowed
    assert all(state.allows(tokens) for state in (*given_by.limits, *key_limits))
    asked = REQUESTS.get(requested) or default or "normal"
    assert resolution.lane.rank >= NAMES.index(asked)
    # It went down one lane at a time, and tried none twice.
    ranks = [NAMES.index(step.lane) for step in resolution.step_downs]
    assert ranks == sorted(ranks)
    tried = [step.entitlement_id for step in resolution.step_downs]
    assert len(set(tried)) == len(tried)


def test_temporary_entitlements_are_used_before_the_standing_one_the_one_that_ends_first_before_others() -> (
    None
):
    standing = right("high", number=1)
    week = Right(entitlement_id=ids(2), lane="high", ends_at=NOW + timedelta(days=7), limits=(day(50),))
    hour = Right(entitlement_id=ids(3), lane="high", ends_at=NOW + timedelta(hours=1), limits=(day(100),))
    assert resolve("high", standing, week, hour).entitlement_id == ids(3)
    resolution = resolve("high", standing, week, hour, tokens=101)
    assert resolution.entitlement_id == ids(1)
    assert [step.entitlement_id for step in resolution.step_downs] == [ids(3), ids(2)]
    assert resolution.reason == AssignmentReason.REQUESTED


@pytest.mark.parametrize(
    ("at", "gives"),
    [(-1, False), (0, True), (59, True), (60, False), (61, False)],
)
def test_both_ends_of_a_temporary_entitlement_hold_to_the_second(at: int, gives: bool) -> None:
    temporary = Right(entitlement_id=ids(1), lane="high", starts_at=NOW, ends_at=NOW + timedelta(seconds=60))
    now = NOW + timedelta(seconds=at)
    if gives:
        assert resolve("high", temporary, now=now).lane.name == "high"
        return
    with pytest.raises(Refused) as refusal:
        resolve("high", temporary, now=now)
    assert refusal.value.code == Denial.NO_ENTITLEMENT


def test_a_key_s_own_limit_refuses_in_every_lane_and_names_the_key() -> None:
    rights = [right(lane, STEPS_DOWN if lane != "low" else FITS) for lane in NAMES]
    with pytest.raises(Refused) as refusal:
        resolve("high", *rights, key_limits=(day(99),))
    assert refusal.value.code == Denial.INSUFFICIENT_QUOTA
    assert refusal.value.subject == "this API key"


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (day(99), Denial.INSUFFICIENT_QUOTA),
        (LimitState(name=LimitName.TOKENS_PER_MINUTE, limit=99, used=0), Denial.RATE_LIMIT_EXCEEDED),
        (LimitState(name=LimitName.REQUESTS_PER_MINUTE, limit=2, used=2), Denial.RATE_LIMIT_EXCEEDED),
        (LimitState(name=LimitName.CONCURRENCY, limit=3, used=3), Denial.CONCURRENCY_LIMIT_EXCEEDED),
    ],
)
def test_the_code_says_which_kind_of_limit_was_short(state: LimitState, code: Denial) -> None:
    with pytest.raises(Refused) as refusal:
        resolve("high", Right(entitlement_id=ids(1), lane="high", limits=(state,)))
    assert (refusal.value.code, refusal.value.limit) == (code, state)


def test_q4_a_refusal_names_what_was_short_and_what_would_be_accepted() -> None:
    short = LimitState(name=LimitName.TOKENS_PER_DAY, limit=1000, used=950, reserved=200, resets_at=MIDNIGHT)
    with pytest.raises(Refused) as refusal:
        resolve("high", Right(entitlement_id=ids(1), lane="high", limits=(short,)), tokens=2000)
    message = refusal.value.message
    assert "tokens_per_day of the lane 'high'" in message
    assert "950 of 1,000 tokens are used, 200 of them reserved" in message
    assert "may use 2,000 (its prompt's 10" in message
    assert "a max_tokens of up to 40 would be accepted" in message
    assert "resets at 2026-11-30T00:00:00Z" in message


@given(st.text(min_size=1).filter(lambda text: text not in REQUESTS))
def test_an_unknown_lane_is_refused_without_repeating_it(requested: str) -> None:
    with pytest.raises(Refused) as refusal:
        resolve(requested, *[right(lane) for lane in NAMES], default="low")
    assert refusal.value.code == Denial.UNKNOWN_LANE
    assert refusal.value.message.startswith("There is no such lane")


def test_a_refusal_says_what_the_tenant_may_use() -> None:
    with pytest.raises(Refused) as refusal:
        resolve("flex", right("high"), right("normal"))
    assert "priority, default" in refusal.value.message


def test_a_refusal_says_what_the_key_may_use() -> None:
    with pytest.raises(Refused) as refusal:
        resolve("normal", right("high"), right("normal"), allowed=frozenset({"high"}))
    assert refusal.value.message.startswith("This API key may not use the lane 'normal'")
    assert "priority." in refusal.value.message


def test_an_operator_s_own_lane_falls_to_the_next_lower_rank() -> None:
    lanes = [*LANES, LaneChoice("night", 9, "night")]
    rights = [right("high"), Right(entitlement_id=ids(9), lane="night")]
    assert resolve_lane(wish("low"), KeyRights(), rights, lanes, NOW).lane.name == "night"
