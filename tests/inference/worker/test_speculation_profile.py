"""What a worker makes of the rounds that it times, from the first to a verdict."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inference.models import DrafterKind
from inference.scheduling.speculation import MOST_ROUNDS, PROBE_ROUNDS, SAMPLES, SpeculationMode, Verdict
from inference.worker.speculation_profile import SpeculationProfile
from tests.inference.worker.conftest import SETTINGS

MEASURED = replace(SETTINGS.speculation, mode=SpeculationMode.MEASURED, drafter=DrafterKind.SUFFIX_POOL)
#: Rounds of an answer in which nothing is guessed yet.
HARD = 32


@pytest.fixture
def settled() -> list[Verdict]:
    return []


@pytest.fixture
def profile(settled: list[Verdict]) -> SpeculationProfile:
    return SpeculationProfile(MEASURED, lambda _, verdict: settled.append(verdict))


def answer(profile: SpeculationProfile, key: str, rounds: int) -> None:
    """Guesses hold once the answer repeats itself."""
    for _ in range(PROBE_ROUNDS):
        assert profile.wants_probe(key)
        profile.ran(key, 10.0, 0, 0)
    for number in range(rounds):
        assert not profile.wants_probe(key)
        profile.ran(key, 12.0, 0 if number < HARD else 1, 1)


def test_what_can_be_guessed_only_later_in_an_answer_counts(
    profile: SpeculationProfile, settled: list[Verdict]
) -> None:
    for number in range(SAMPLES):
        answer(profile, str(number), 4 * HARD)
        profile.left(str(number))
    [verdict] = settled
    assert verdict.accepted_per_round == pytest.approx(0.75)
    assert verdict.speedup == pytest.approx(1.75 * 10 / 12)


def test_answers_that_do_not_end_keep_no_verdict_waiting_and_are_looked_at_for_so_many_rounds(
    profile: SpeculationProfile, settled: list[Verdict]
) -> None:
    for number in range(SAMPLES):
        assert not settled
        answer(profile, str(number), MOST_ROUNDS)
        profile.ran(str(number), 1000.0, 0, 1)
    [verdict] = settled
    assert (verdict.samples, verdict.round_ms) == (SAMPLES, pytest.approx(12.0))


def test_a_short_answer_counts_as_far_as_it_went(profile: SpeculationProfile, settled: list[Verdict]) -> None:
    for number in range(SAMPLES):
        answer(profile, str(number), 1)
        profile.left(str(number))
    [verdict] = settled
    assert (verdict.accepted_per_round, verdict.samples) == (0.0, SAMPLES)
