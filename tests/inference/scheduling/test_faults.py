"""Whose fault a failed step is: nobody pays for another, no poison goes round for ever, no broken backend goes on."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.scheduling.faults import (
    ALONE,
    CAUSE,
    GIVEN_UP,
    TOGETHER,
    BackendHealth,
    Work,
    backend_suspected,
    is_cause,
    suspicion_after,
)

GENERATIONS = "abcdefgh"

#: A step: what it is to do, and for whom.
Step = tuple[Work, frozenset[str]]
steps = st.tuples(st.sampled_from(Work), st.frozensets(st.sampled_from(GENERATIONS), min_size=1))


@dataclass
class Service:
    """Generations, and workers one after the other: each new one has a backend of its own."""

    health: BackendHealth = field(default_factory=BackendHealth)
    suspicion: Counter[str] = field(default_factory=Counter)
    ended: set[str] = field(default_factory=set)
    given_up: int = 0

    def run(self, step: Step, failing: frozenset[str], *, silent: bool = False) -> None:
        """A step with which ``failing`` fail; who has ended is not there any more. Who gets on has a token, unless the
        step is ``silent``."""
        work, wanted = step
        ran = wanted - self.ended
        if not ran:
            return
        faulted = ran & failing
        if not backend_suspected(len(ran), len(faulted)):
            self.ended |= faulted
            self.health = self.health.worked(work, 0 if silent else len(ran - faulted))
            return
        self.health = self.health.failed(work)
        for generation in ran:
            self.suspicion[generation] = suspicion_after(self.suspicion[generation], len(ran))
            if is_cause(self.suspicion[generation]):
                self.ended.add(generation)
        if self.health.given_up:
            self.given_up += 1
            self.health = BackendHealth()


def test_the_bounds_are_those_that_are_stated() -> None:
    assert (CAUSE // ALONE, CAUSE // TOGETHER, GIVEN_UP) == (3, 12, 5)


@pytest.mark.parametrize(
    ("ran", "faulted", "suspected"),
    [(1, 1, True), (3, 3, True), (3, 2, False), (3, 0, False), (1, 0, False), (0, 0, False)],
)
def test_the_backend_is_suspected_only_where_nobody_got_on(ran: int, faulted: int, suspected: bool) -> None:
    assert backend_suspected(ran, faulted) is suspected


@given(st.lists(st.integers(1, 8), min_size=12, max_size=12))
def test_a_generation_ends_between_its_third_and_its_twelfth_failed_step(companies: list[int]) -> None:
    suspicion, failed = 0, 0
    while not is_cause(suspicion):
        suspicion = suspicion_after(suspicion, companies[failed])
        failed += 1
    assert 3 <= failed <= 12
    assert companies[:failed].count(1) <= 3
    assert failed < 12 or 1 not in companies[:11]


@given(st.lists(st.tuples(steps, st.booleans()), max_size=60), st.sampled_from(GENERATIONS))
def test_a_poisoned_generation_harms_nobody_and_no_worker(
    order: list[tuple[Step, bool]], poisoned: str
) -> None:
    service, tried = Service(), 0
    for step, silent in order:
        tried += step[1] == {poisoned}
        service.run(step, frozenset(poisoned), silent=silent)
        if tried >= 3 or (poisoned in step[1] and len(step[1]) > 1):
            assert service.ended == {poisoned}
    assert service.ended <= {poisoned}
    assert service.given_up == 0
    assert service.suspicion.keys() <= {poisoned}


@given(st.lists(steps, min_size=15, max_size=30))
def test_a_broken_backend_is_given_up_with_its_fifth_step_and_ends_one_generation_at_most(
    order: list[Step],
) -> None:
    service, ran = Service(), list[frozenset[str]]()
    for step in order:
        if service.given_up:
            break
        if step[1] - service.ended:
            ran.append(step[1])
        service.run(step, step[1])
    assert service.given_up == (len(ran) >= 5)
    assert len(ran) <= 5
    assert len(service.ended) <= 1
    assert all(ran.count(frozenset(generation)) == 3 for generation in service.ended)


@given(st.lists(st.frozensets(st.sampled_from(GENERATIONS), min_size=2), min_size=5, max_size=5))
def test_who_only_failed_together_outlives_a_broken_backend(order: list[frozenset[str]]) -> None:
    service = Service()
    for ran in order:
        service.run((Work.TOKENS, ran), ran)
    assert service.given_up == 1
    assert service.ended == set()


@given(st.lists(st.tuples(st.sampled_from(Work), st.frozensets(st.sampled_from(GENERATIONS))), min_size=12))
def test_two_backends_at_most_are_given_up_for_one_that_takes_all_others_with_it(
    order: list[Step],
) -> None:
    service = Service()
    for work, others in order:
        if "wrecker" in service.ended:
            break
        ran = others | {"wrecker"}
        service.run((work, ran), ran)
    assert "wrecker" in service.ended
    assert service.given_up <= 2


@given(st.integers(1, 50))
def test_a_worker_that_produces_is_not_given_up_whatever_prompts_come(poisoned: int) -> None:
    service = Service()
    for number in range(poisoned):
        service.run((Work.PROMPTS, frozenset({f"poisoned {number}"})), frozenset({f"poisoned {number}"}))
        service.run((Work.TOKENS, frozenset({"stream"})), frozenset())
    assert service.given_up == 0


def test_a_worker_that_runs_prompts_and_produces_nothing_behind_them_is_given_up() -> None:
    service = Service()
    for generation in "abcde":
        assert service.given_up == 0
        service.run((Work.PROMPTS, frozenset(generation)), frozenset())
        service.run((Work.TOKENS, frozenset(generation)), frozenset(generation))
    assert service.given_up == 1


@given(st.lists(steps, min_size=5, max_size=5), st.lists(st.tuples(steps, st.integers(0, 4)), max_size=30))
def test_a_backend_with_which_all_fails_that_gives_a_token_is_given_up_with_its_fifth_step(
    failing: list[Step], working: list[tuple[Step, int]]
) -> None:
    service = Service()
    for number, step in enumerate(failing):
        for silent, before in working:
            if before == number:
                service.run(silent, frozenset(), silent=True)
        assert service.given_up == 0
        if step[1] - service.ended:
            service.run(step, step[1])
        else:
            service.run((step[0], frozenset("z")), frozenset("z"))
    assert service.given_up == 1


def test_a_prompts_first_token_clears_the_backend_of_the_prompts_before_it() -> None:
    service = Service()
    for generation in "abcdefgh":
        service.run((Work.PROMPTS, frozenset(generation)), frozenset(generation))
        service.run((Work.PROMPTS, frozenset("z")), frozenset())
    assert service.given_up == 0
