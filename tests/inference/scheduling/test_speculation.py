"""Does speculation pay: the verdict of a profile, and the weighing against the batch."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.scheduling.speculation import (
    PROBE_ROUNDS,
    SAMPLES,
    DeclineReason,
    Outcome,
    Sample,
    SpeculationMode,
    Verdict,
    added_cost,
    declined,
    judge,
    outcome_of,
    worth_speculating,
)

NOT_MEASURED = [0.0, -1.0, math.nan, math.inf]


def sample(probe_ms: float = 100.0, round_ms: float = 120.0, accepted: int = 1, rounds: int = 1) -> Sample:
    one = Sample()
    for _ in range(PROBE_ROUNDS):
        one = one.probed(probe_ms)
    for _ in range(rounds):
        one = one.ran(round_ms, accepted, max(1, accepted))
    return one


# The profile


def test_a_sample_is_two_probes_and_at_least_one_round() -> None:
    one = Sample()
    for _ in range(PROBE_ROUNDS):
        assert one.probing
        one = one.probed(100.0)
    assert not one.probing
    assert not one.complete
    assert one.ran(120.0, 2, 2).complete


def test_four_complete_samples_settle_it_and_not_one_less() -> None:
    unfinished = Sample().probed(100.0)
    assert judge([sample()] * (SAMPLES - 1) + [unfinished] * 9) is None
    verdict = judge([sample()] * SAMPLES + [unfinished])
    assert verdict is not None
    assert verdict.samples == SAMPLES


def test_the_verdict_holds_what_was_measured() -> None:
    """The median of the probe means; rounds weigh alike, so a long generation's count for more."""
    samples = [
        Sample().probed(90.0).probed(110.0).ran(150.0, 2, 3),
        sample(100.0, 120.0, 1, rounds=4),
        sample(104.0, 130.0, 0),
        sample(9000.0, 140.0, 3),
    ]
    verdict = judge(samples)
    assert verdict is not None
    assert verdict.classic_ms == pytest.approx(102.0)
    assert verdict.round_ms == pytest.approx((150 + 4 * 120 + 130 + 140) / 7)
    assert verdict.accepted_per_round == pytest.approx(9 / 7)
    assert verdict.speedup == pytest.approx((9 / 7 + 1) * 102 / verdict.round_ms)
    assert verdict.round_cost == pytest.approx(verdict.round_ms / 102)
    assert verdict.outcome is Outcome.ENABLED


@pytest.mark.parametrize(
    ("speedup", "outcome"),
    [
        (0.2, Outcome.DECLINED),
        (1.0, Outcome.DECLINED),
        (1.001, Outcome.UNDECIDED),
        (1.149, Outcome.UNDECIDED),
        (1.15, Outcome.ENABLED),
        (3.0, Outcome.ENABLED),
    ],
)
def test_the_thresholds(speedup: float, outcome: Outcome) -> None:
    assert outcome_of(speedup) is outcome


def test_a_drafter_of_which_nothing_is_accepted_is_declined() -> None:
    verdict = judge([sample(accepted=0)] * SAMPLES)
    assert verdict is not None
    assert verdict.outcome is Outcome.DECLINED


@pytest.mark.parametrize("ms", NOT_MEASURED)
def test_no_sample_takes_a_duration_that_no_clock_measures(ms: float) -> None:
    with pytest.raises(ValueError, match="a probe took"):
        Sample().probed(ms)
    with pytest.raises(ValueError, match="a round took"):
        Sample().ran(ms, 1, 1)


@pytest.mark.parametrize(("accepted", "proposed"), [(-1, 4), (5, 4), (1, 0)])
def test_no_round_accepts_less_than_nothing_or_more_than_was_drafted(accepted: int, proposed: int) -> None:
    with pytest.raises(ValueError, match="a round accepts"):
        Sample().ran(100.0, accepted, proposed)


@given(
    slow=st.floats(1.0, 3.0),
    guessed=st.integers(1, 40),
    not_guessed=st.integers(30, 200),
    beginning=st.sampled_from([0.7, 1.4]),
)
def test_a_round_without_a_guess_is_a_probe_and_a_strange_beginning_does_not_decide(
    slow: float, guessed: int, not_guessed: int, beginning: float
) -> None:
    """What a machine did in an answer's first two steps is not what it costs to decode."""
    one = Sample()
    for _ in range(PROBE_ROUNDS):
        one = one.probed(100.0 * beginning)
    for _ in range(not_guessed):
        one = one.ran(100.0, 0, 0)
    for _ in range(guessed):
        one = one.ran(100.0 * slow, 1, 1)
    verdict = judge([one] * SAMPLES)
    assert verdict is not None
    tokens, rounds = not_guessed + 2 * guessed, not_guessed + guessed
    ms = 100.0 * (not_guessed + slow * guessed)
    assert verdict.speedup == pytest.approx(100.0 * tokens / ms, rel=0.03)
    assert verdict.round_ms == pytest.approx(ms / rounds)


# The policy


def verdict_of(speedup: float, round_cost: float = 1.25) -> Verdict:
    return Verdict(
        outcome=outcome_of(speedup),
        speedup=speedup,
        classic_ms=100.0,
        round_ms=100.0 * round_cost,
        accepted_per_round=max(0.0, speedup * round_cost - 1),
        samples=SAMPLES,
    )


@pytest.mark.parametrize(
    ("mode", "speedup", "undecided", "rows", "sharing", "reason"),
    [
        (SpeculationMode.OFF, 3.0, True, 0, 1, DeclineReason.FORCED_OFF),
        (SpeculationMode.ON, 0.5, False, 9, 3, None),
        (SpeculationMode.MEASURED, None, False, 9, 3, None),
        (SpeculationMode.MEASURED, 0.9, True, 0, 1, DeclineReason.DOES_NOT_PAY),
        (SpeculationMode.MEASURED, 1.1, False, 0, 1, DeclineReason.DOES_NOT_PAY),
        (SpeculationMode.MEASURED, 1.1, True, 0, 1, None),
        (SpeculationMode.MEASURED, 1.5, False, 0, 1, None),
        (SpeculationMode.MEASURED, 1.5, False, 1, 1, DeclineReason.BATCH_IS_BETTER),
        (SpeculationMode.MEASURED, 1.5, False, 0, 2, DeclineReason.BATCH_IS_BETTER),
        (SpeculationMode.MEASURED, 2.6, False, 1, 1, None),
        (SpeculationMode.MEASURED, 2.6, False, 0, 2, None),
    ],
)
def test_the_mode_goes_first_then_the_verdict_then_the_load(
    mode: SpeculationMode,
    speedup: float | None,
    undecided: bool,
    rows: int,
    sharing: int,
    reason: DeclineReason | None,
) -> None:
    """While it is profiled (no verdict) every eligible generation speculates."""
    answer = declined(
        mode,
        None if speedup is None else verdict_of(speedup),
        speculate_undecided=undecided,
        decoding_rows=rows,
        sharing=sharing,
        batch_cost=0.13,
    )
    assert answer is reason


# The load

speedups = st.floats(0.1, 20)
rows = st.integers(0, 64)
sharings = st.integers(1, 3)
batch_costs = st.floats(0, 1.5)
round_costs = st.floats(0.5, 8)


def decode_tick(rows: int, batch_cost: float) -> float:
    return 1 + batch_cost * (rows - 1)


@given(speedups, rows, batch_costs, round_costs, sharings)
def test_it_is_worth_it_exactly_where_all_streams_together_get_no_less(
    speedup: float, n: int, batch_cost: float, round_cost: float, sharing: int
) -> None:
    """Against the throughputs themselves, of which the formula is derived."""
    tokens = speedup * round_cost
    beside = n + tokens, round_cost + (decode_tick(n, batch_cost) if n else 0)
    batch = n + sharing, decode_tick(n + sharing, batch_cost)
    if min(time for _, time in (beside, batch)) <= 0:
        return
    slower, faster = batch[0] / batch[1], beside[0] / beside[1]
    if math.isclose(slower, faster, rel_tol=1e-9) or math.isclose(speedup, 1.0, rel_tol=1e-9):
        return
    worth = worth_speculating(speedup, n, batch_cost, round_cost=round_cost, sharing=sharing)
    assert worth == (speedup > 1 and faster > slower)


@given(speedups, batch_costs)
def test_alone_any_speedup_is_worth_it(speedup: float, batch_cost: float) -> None:
    assert worth_speculating(speedup, 0, batch_cost) == (speedup > 1)


@given(st.floats(1.0001, 20), rows, sharings)
def test_where_batching_gains_nothing_any_speedup_is_worth_it_beside_any_load(
    speedup: float, n: int, sharing: int
) -> None:
    assert worth_speculating(speedup, n, 1.0, sharing=sharing)


@given(st.integers(1, 64))
def test_beside_free_rows_a_round_has_to_yield_what_two_ticks_of_the_batch_would(n: int) -> None:
    """Rows that cost nothing: in its own tick's time a decode tick of n + 1 rows would have run, as in the other's."""
    assert worth_speculating(n + 2.01, n, 0.0)
    assert not worth_speculating(n + 1.99, n, 0.0)


@given(speedups, rows, batch_costs, st.floats(1, 8), sharings, st.floats(0, 1), st.integers(1, 3))
def test_more_speedup_and_dearer_rows_speak_for_it_and_more_load_against(
    speedup: float,
    n: int,
    batch_cost: float,
    round_cost: float,
    sharing: int,
    more: float,
    more_rows: int,
) -> None:
    batch_cost = min(batch_cost, 1.0)  # beyond, a batch is worse than taking turns
    if worth_speculating(speedup, n, batch_cost, round_cost=round_cost, sharing=sharing):
        assert worth_speculating(speedup + more, n, batch_cost, round_cost=round_cost, sharing=sharing)
        assert worth_speculating(speedup, n, batch_cost + more, round_cost=round_cost, sharing=sharing)
    else:
        crowd = max(n, 1) + more_rows
        assert not worth_speculating(speedup, crowd, batch_cost, round_cost=round_cost, sharing=sharing)


@given(speedups, rows, st.floats(0, 1), st.floats(1, 8), sharings)
def test_without_a_round_s_cost_the_answer_is_the_stricter(
    speedup: float, n: int, batch_cost: float, round_cost: float, sharing: int
) -> None:
    if worth_speculating(speedup, n, batch_cost, sharing=sharing):
        assert worth_speculating(speedup, n, batch_cost, round_cost=round_cost + 1e-9, sharing=sharing)


@pytest.mark.parametrize("wrong", NOT_MEASURED)
def test_the_weighing_refuses_what_cannot_have_been_measured(wrong: float) -> None:
    with pytest.raises(ValueError, match="speedup"):
        worth_speculating(wrong, 1, 0.1)
    with pytest.raises(ValueError, match="round_cost"):
        worth_speculating(1.5, 1, 0.1, round_cost=wrong)


@pytest.mark.parametrize(
    "call",
    [
        lambda: worth_speculating(1.5, -1, 0.1),
        lambda: worth_speculating(1.5, 1, 0.1, sharing=0),
        lambda: worth_speculating(1.5, 1, -0.1),
        lambda: worth_speculating(1.5, 1, math.nan),
    ],
)
def test_the_weighing_refuses_an_impossible_load(call: Callable[[], bool]) -> None:
    with pytest.raises(ValueError, match=r"must .*not"):
        call()


# What one more costs


def test_one_more_row_costs_the_slope_of_the_measured_ticks() -> None:
    assert added_cost({1: 50.0, 4: 65.0}, base=1) == pytest.approx(0.1)
    assert added_cost({2: 55.0, 3: 60.0, 5: 70.0}, base=1) == pytest.approx(0.1)
    assert added_cost({0: 100.0, 2: 120.0, 4: 140.0}, base=0) == pytest.approx(0.1)


def test_noise_gives_no_cost_below_nothing_and_one_point_none_at_all() -> None:
    assert added_cost({1: 50.0, 4: 49.0}, base=1) == 0.0
    assert added_cost({1: 50.0}, base=1) is None
    assert added_cost({}, base=0) is None
    assert added_cost({4: 10.0, 5: 100.0}, base=1) is None


@given(st.dictionaries(st.integers(0, 64), st.floats(1e-3, 1e6), max_size=6), st.integers(0, 1))
def test_a_measured_cost_can_always_be_weighed(ms_by_units: dict[int, float], base: int) -> None:
    cost = added_cost(ms_by_units, base)
    assert cost is None or (math.isfinite(cost) and cost >= 0)


@pytest.mark.parametrize("ms", NOT_MEASURED)
def test_no_cost_is_made_of_a_duration_that_no_clock_measures(ms: float) -> None:
    with pytest.raises(ValueError, match="2 units"):
        added_cost({1: 50.0, 2: ms}, base=1)
