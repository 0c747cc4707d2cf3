"""The speculative slot in a worker: the real rules, engine and drafter handle, one tick at a time."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis

from accounts.models import Entitlement
from accounts.principal import Principal
from accounts.tenancy import every_tenant
from inference.engine.engine import Engine
from inference.messages import CancelReason, Delta, EndState, PrefillProgress, Sampling
from inference.models import DrafterKind, LanguageModel
from inference.scheduling.speculation import DeclineReason, Outcome, SpeculationMode, Verdict
from inference.scheduling.tick import Action, PrefillLimits
from inference.worker.metrics import Stage
from inference.worker.requests import Cancel, Reconfigure, Rule
from tests.inference.doors import entitled_principal
from tests.inference.engine.speculating import ScriptedDrafter, knowing, no_guess
from tests.inference.worker.conftest import (
    GREEDY,
    PROMPT,
    SETTINGS,
    HandDrivenWorker,
    alone,
    end_of,
    submit,
    text_of,
    tokens_of,
)
from tests.inference.worker.forward_passes import POISON, ForwardPasses, forward_passes
from tests.inference.worker.test_loop import published

__all__ = ["forward_passes"]

GOLDEN = json.loads((Path(__file__).parents[1] / "scheduling" / "vectors" / "rotation.json").read_text())[
    "cases"
]
SHORT = PROMPT[:8]


def speculating(**changes: Any) -> Any:
    """The test worker's settings, with a drafter."""
    own = {"drafter": DrafterKind.PROMPT_LOOKUP, **changes}
    return replace(SETTINGS, speculation=replace(SETTINGS.speculation, **own))


class SlotWorker(HandDrivenWorker):
    """Writes down who had which slices, grant by grant."""

    def __init__(
        self, engine: Engine, client: redis.Redis, model: str, drafter: ScriptedDrafter, **changes: Any
    ):
        super().__init__(engine, client, model, settings=speculating(**changes))
        self.drafter = drafter
        self.grants: list[tuple[str, int]] = []
        self.actions: list[Action] = []

    def turn(self) -> Action:
        before = self._granted()
        slices = {sequence.key: len(sequence.emitted) for sequence in self.loop.roster}
        action = super().turn()
        self.actions.append(action)
        if action is Action.SPECULATE:
            if self._granted() > before:
                self.grants.append(("", 0))
            holder = self._advanced(slices)
            self.grants[-1] = (holder, self.grants[-1][1] + 1)
        return action

    def admit(self, *generations: str) -> None:
        """Claim what waits, one turn each, so that they come to the slot in this order."""
        for _ in generations:
            self.claim()

    def use(self, **changes: Any) -> None:
        self.loop.ask(Reconfigure(speculating(**changes)))

    def _granted(self) -> float:
        return sum(self.metrics.slot(lane).grants.value for lane in ("high", "normal", "low"))

    def _advanced(self, before: dict[str, int]) -> str:
        now = {sequence.key: len(sequence.emitted) for sequence in self.loop.roster}
        moved = [key for key, has in now.items() if has != before.get(key, 0)]
        gone = [key for key in before if key not in now]
        [holder] = moved or [key for key in gone if end_of(self.log(key)).state is EndState.COMPLETED]
        return holder


@pytest.fixture
def drafter(engine: Engine) -> Iterator[ScriptedDrafter]:
    scripted = ScriptedDrafter(no_guess)
    engine.set_drafter(lambda: scripted)
    yield scripted
    engine.set_drafter(None)


@pytest.fixture
def slot_worker(
    model: LanguageModel, engine: Engine, valkey: redis.Redis, drafter: ScriptedDrafter
) -> Iterator[Callable[..., SlotWorker]]:
    def make(**changes: Any) -> SlotWorker:
        return SlotWorker(engine, valkey, model.name, drafter, **changes)

    yield make
    for key in engine.keys:
        engine.drop(key)


def tokens_for(slices: int) -> dict[str, int]:
    """An answer that takes so many slices when nothing is guessed: each yields one token."""
    return {"max_tokens": slices}


@pytest.mark.parametrize("case", GOLDEN, ids=[case["name"] for case in GOLDEN])
def test_the_golden_schedules(
    case: dict[str, Any], model: LanguageModel, engine: Engine, slot_worker: Callable[..., SlotWorker]
) -> None:
    expected = alone(engine, SHORT, GREEDY, 1 + max(job["rounds"] for job in case["jobs"]))
    worker = slot_worker(grant_rounds=case["budget"])
    tags: dict[str, str] = {}
    for job in case["jobs"]:
        key = submit(model, prompt=SHORT, **tokens_for(1 + job["rounds"]))
        tags[key] = job["tag"]
        worker.claim()
    jobs = {tags[key]: key for key in tags}
    for job in case["jobs"]:
        if job.get("swept"):
            worker.loop.ask(Cancel({jobs[job["tag"]]: CancelReason.CLIENT_REQUESTED}))
        if job.get("cancelled"):
            worker.turn_until(lambda: worker.metrics.slot("normal").parks.value == 1)
            worker.loop.ask(Cancel({jobs[job["tag"]]: CancelReason.CLIENT_REQUESTED}))
    worker.run_dry()
    assert [[tags[key], slices] for key, slices in worker.grants] == case["schedule"]
    for job in case["jobs"]:
        said = 0 if job.get("swept") or job.get("cancelled") else 1 + job["rounds"]
        assert tokens_of(worker.log(jobs[job["tag"]])) == expected[:said]


def test_three_jobs_say_what_each_says_alone_whatever_is_guessed(
    model: LanguageModel, engine: Engine, slot_worker: Callable[..., SlotWorker], drafter: ScriptedDrafter
) -> None:
    samplings = [GREEDY, Sampling(seed=5, temperature=1.0), Sampling(seed=6, temperature=0.8, top_p=0.9)]
    expected = [alone(engine, SHORT, sampling, 24) for sampling in samplings]
    keys = [submit(model, prompt=SHORT, sampling=sampling, max_tokens=24) for sampling in samplings]
    texts = {key: [*SHORT, *text] for key, text in zip(keys, expected, strict=True)}
    drafter.script = lambda context, k: knowing(texts[context.key], lambda at: at % 5 == 0)(context, k)
    worker = slot_worker(grant_rounds=2)
    worker.admit(*keys)
    worker.run_dry()
    for key, tokens in zip(keys, expected, strict=True):
        log = worker.log(key)
        assert tokens_of(log) == tokens
        assert text_of(log) == engine.tokenizer.decode(tokens)
        usage = end_of(log).usage
        assert usage.completion_tokens == 24
        assert usage.accepted_prediction_tokens > 0
        assert usage.rejected_prediction_tokens > 0
        drafted = [(entry.proposed, entry.accepted) for entry in log if isinstance(entry, Delta)]
        assert sum(proposed for proposed, _ in drafted) == (
            usage.accepted_prediction_tokens + usage.rejected_prediction_tokens
        )
    assert worker.metrics.slot("normal").rotations.value > 0
    lane, series = worker.metrics.slot("normal"), worker.metrics.counters.snapshot()
    usages = [end_of(worker.log(key)).usage for key in keys]
    assert lane.accepted.value == sum(usage.accepted_prediction_tokens for usage in usages)
    assert lane.rejected.value == sum(usage.rejected_prediction_tokens for usage in usages)
    assert lane.proposed.value == lane.accepted.value + lane.rejected.value
    assert lane.rounds.value == worker.actions.count(Action.SPECULATE) - len(keys), "all but the slices 0"
    assert min(series["draft_seconds_total"], series["verify_seconds_total"]) > 0
    assert engine.keys == ()
    assert engine.drafter.holder is None


def test_the_first_of_many_holds_the_slot_two_wait_and_the_others_decode_plainly(
    model: LanguageModel, slot_worker: Callable[..., SlotWorker]
) -> None:
    worker = slot_worker(grant_rounds=2)
    keys = [submit(model, prompt=SHORT, max_tokens=6) for _ in range(5)]
    worker.admit(*keys)
    worker.turn()
    snapshot = worker.loop.board.latest
    assert snapshot is not None
    assert snapshot.slot is not None
    assert snapshot.slot.holder is not None
    assert snapshot.slot.holder.generation == keys[0]
    assert [waiter.generation for waiter in snapshot.slot.waiting] == keys[1:3]
    assert worker.metrics.slot_waiting.value == 2
    # Between its park and the next grant the ring holds one more, and lets nobody else in.
    worker.turn_until(lambda: worker.metrics.slot("normal").parks.value == 1)
    keys.append(submit(model, prompt=SHORT, max_tokens=6))
    worker.claim()
    worker.turn()
    assert worker.metrics.declines(DeclineReason.BACKLOG_FULL, "normal").value == 3
    most = 0
    while worker.turn() is not Action.IDLE:
        most = max(most, int(worker.metrics.slot_waiting.value))
    assert most == 3
    assert {key for key, _ in worker.grants} == {*keys[:3]}
    assert all(end_of(worker.log(key)).state is EndState.COMPLETED for key in keys)


def test_without_rotation_nobody_waits(model: LanguageModel, slot_worker: Callable[..., SlotWorker]) -> None:
    worker = slot_worker(grant_rounds=0)
    keys = [submit(model, prompt=SHORT, max_tokens=6) for _ in range(3)]
    worker.admit(*keys)
    worker.run_dry()
    assert [key for key, _ in worker.grants] == [keys[0]]
    assert worker.metrics.slot("normal").rotations.value == 0


def test_a_budget_that_becomes_0_while_others_wait_rotates_until_nobody_does(
    model: LanguageModel, slot_worker: Callable[..., SlotWorker]
) -> None:
    worker = slot_worker(grant_rounds=2)
    first, second = (submit(model, prompt=SHORT, max_tokens=6) for _ in range(2))
    worker.admit(first, second)
    worker.turn()
    worker.use(grant_rounds=0)
    worker.run_dry()
    assert [slices for key, slices in worker.grants] == [2, 1, 1, 1, 1, 1, 1, 1, 1, 2]


def test_one_that_is_alone_overruns_its_budget_and_makes_way_at_the_first_round_after_somebody_waits(
    model: LanguageModel, slot_worker: Callable[..., SlotWorker]
) -> None:
    worker = slot_worker(grant_rounds=2)
    first = submit(model, prompt=SHORT, max_tokens=12)
    worker.claim()
    worker.turns(6)
    second = submit(model, prompt=SHORT, max_tokens=3)
    worker.claim()
    worker.run_dry()
    assert worker.grants == [(first, 7), (second, 2), (first, 2), (second, 1), (first, 3)]


def test_a_waiter_that_the_policy_declines_at_its_turn_decodes_plainly_and_loses_nothing(
    model: LanguageModel, engine: Engine, slot_worker: Callable[..., SlotWorker]
) -> None:
    expected = alone(engine, SHORT, GREEDY, 6)
    worker = slot_worker(grant_rounds=2)
    first, second = (submit(model, prompt=SHORT, max_tokens=6) for _ in range(2))
    worker.admit(first, second)
    worker.turn()
    worker.use(mode=SpeculationMode.OFF)
    worker.run_dry()
    assert {key for key, _ in worker.grants} == {first}
    assert tokens_of(worker.log(second)) == expected
    assert tokens_of(worker.log(first)) == expected


def test_a_declined_waiter_goes_before_the_prompts_that_came_after_it_and_the_next_has_the_slot_in_the_same_tick(
    model: LanguageModel, valkey: redis.Redis, slot_worker: Callable[..., SlotWorker]
) -> None:
    worker = slot_worker(grant_rounds=2)
    first = submit(model, prompt=SHORT, max_tokens=12)
    # Two of these do not share a tick of 16 tokens.
    waiter, *later = (submit(model, prompt=PROMPT[:12], max_tokens=6) for _ in range(3))
    worker.admit(first, waiter)
    worker.turn_until(lambda: worker.metrics.slot("normal").parks.value == 1)
    worker.use(mode=SpeculationMode.OFF)
    worker.admit(*later)
    # The last action was a slice, so that one of the others is run first.
    assert worker.turns(2) == [Action.PREFILL, Action.SPECULATE]
    assert [key for key, _ in worker.grants] == [first, first], "the waiter was tried, and took no tick"
    worker.run_dry()
    prompts = [key for key, one in published(valkey) if isinstance(one, PrefillProgress)]
    assert prompts == [first, later[0], waiter, later[1]]


@pytest.mark.usefixtures("drafter")
def test_a_waiter_s_slice_0_is_one_slice_however_many_chunks_it_takes_once_they_are_smaller(
    model: LanguageModel, engine: Engine, valkey: redis.Redis
) -> None:
    expected = alone(engine, SHORT, GREEDY, 4)
    worker = HandDrivenWorker(engine, valkey, model.name, settings=speculating(grant_rounds=2))
    first, second = (submit(model, prompt=SHORT, max_tokens=4) for _ in range(2))
    worker.claim()
    worker.claim()
    worker.turn()
    smaller = replace(speculating(grant_rounds=2), limits=PrefillLimits(chunk_tokens=3, interval=2))
    worker.loop.ask(Reconfigure(smaller))
    worker.turn_until(lambda: worker.metrics.slot("normal").parks.value == 1)
    before = worker.metrics.ticks[Action.SPECULATE].value
    worker.turn_until(lambda: len(tokens_of(worker.log(second))) == 2)
    assert worker.metrics.ticks[Action.SPECULATE].value - before == 3 + 1, (
        "8 tokens in chunks of 3, and a round"
    )
    assert worker.metrics.slot("normal").parks.value == 2
    worker.run_dry()
    assert [tokens_of(worker.log(key)) for key in (first, second)] == [expected, expected]


def test_a_probe_is_a_slice(model: LanguageModel, slot_worker: Callable[..., SlotWorker]) -> None:
    worker = slot_worker(mode=SpeculationMode.MEASURED, grant_rounds=2)
    first, second = (submit(model, prompt=SHORT, max_tokens=length) for length in (4, 3))
    worker.admit(first, second)
    worker.run_dry()
    assert worker.grants == [(first, 2), (second, 2), (first, 2), (second, 1)]


def test_a_parked_job_whose_drafter_is_lost_goes_on_in_the_batch(
    model: LanguageModel, engine: Engine, slot_worker: Callable[..., SlotWorker]
) -> None:
    expected = alone(engine, SHORT, GREEDY, 8)
    worker = slot_worker(grant_rounds=2)
    first, second = (submit(model, prompt=SHORT, max_tokens=8) for _ in range(2))
    worker.admit(first, second)
    worker.turn_until(lambda: worker.metrics.slot("normal").parks.value == 1)
    engine.set_drafter(None)
    worker.run_dry()
    assert tokens_of(worker.log(first)) == expected
    assert tokens_of(worker.log(second)) == expected
    assert all(end_of(worker.log(key)).state is EndState.COMPLETED for key in (first, second))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"mode": SpeculationMode.OFF}, DeclineReason.FORCED_OFF),
        ({"drafter": DrafterKind.NONE}, DeclineReason.NO_DRAFTER),
        ({}, DeclineReason.DRAFTER_UNAVAILABLE),
    ],
)
def test_a_drafter_that_is_switched_off_is_not_told_as_one_that_failed(
    model: LanguageModel,
    engine: Engine,
    slot_worker: Callable[..., SlotWorker],
    change: dict[str, Any],
    reason: DeclineReason,
) -> None:
    worker = slot_worker(grant_rounds=2)
    worker.admit(*(submit(model, prompt=SHORT, max_tokens=8) for _ in range(2)))
    worker.turn_until(lambda: worker.metrics.slot("normal").parks.value == 1)
    # As a worker does it.
    engine.set_drafter(None)
    worker.use(**change)
    later = submit(model, prompt=SHORT, max_tokens=2)
    worker.admit(later)
    worker.run_dry()
    assert {each for each in DeclineReason if worker.metrics.declines(each, "normal").value} == {reason}
    assert worker.metrics.declines(reason, "normal").value == 3


def test_a_drafter_that_fails_is_made_again_and_costs_nobody_a_request(
    model: LanguageModel, engine: Engine, slot_worker: Callable[..., SlotWorker], drafter: ScriptedDrafter
) -> None:
    expected = alone(engine, SHORT, GREEDY, 12)
    calls = iter(range(1000))

    def fails_at_first(context: Any, k: int) -> list[int]:
        if next(calls) < 2:
            raise RuntimeError("the drafter's own fault")
        return []

    drafter.script = fails_at_first
    worker = slot_worker(grant_rounds=2)
    keys = [submit(model, prompt=SHORT, max_tokens=12) for _ in range(2)]
    worker.admit(*keys)
    worker.run_dry()
    assert [tokens_of(worker.log(key)) for key in keys] == [expected, expected]
    assert worker.metrics.drafter_reloads.value == 2


@pytest.mark.parametrize("stage", [Stage.WAITING, Stage.SPECULATING, Stage.PARKED])
def test_who_is_cancelled_at_the_slot_leaves_nothing_behind(
    stage: Stage, model: LanguageModel, engine: Engine, slot_worker: Callable[..., SlotWorker]
) -> None:
    worker = slot_worker(grant_rounds=3)
    first, second = (submit(model, prompt=SHORT, max_tokens=40) for _ in range(2))
    worker.admit(first, second)
    worker.turns(2)
    victim = {Stage.WAITING: second, Stage.SPECULATING: first, Stage.PARKED: first}[stage]
    if stage is Stage.PARKED:
        worker.turn_until(lambda: worker.metrics.slot("normal").parks.value == 1)
    worker.loop.ask(Cancel({victim: CancelReason.CLIENT_DISCONNECTED}))
    worker.run_dry()
    end, said = end_of(worker.log(victim)), tokens_of(worker.log(victim))
    assert end.state is EndState.CANCELLED
    assert (end.usage.completion_tokens, bool(said)) == (len(said), stage is not Stage.WAITING)
    assert worker.metrics.cancellations(stage, CancelReason.CLIENT_DISCONNECTED, "normal").value == 1
    survivor = second if victim == first else first
    assert end_of(worker.log(survivor)).usage.completion_tokens == 40
    assert engine.keys == ()
    assert engine.drafter.holder is None
    assert worker.loop.board.latest is not None
    assert worker.loop.board.latest.slot is not None
    assert worker.loop.board.latest.slot.waiting == []


def test_a_normal_job_is_granted_by_the_fourth_decision_however_many_high_ones_come(
    model: LanguageModel, slot_worker: Callable[..., SlotWorker]
) -> None:
    worker = slot_worker(grant_rounds=1)
    high, normal = entitled_principal("high"), entitled_principal("normal")
    patient = submit(model, by=normal, prompt=SHORT, max_tokens=30)
    worker.claim()
    worker.turns(3)
    for _ in range(14):
        submit(model, by=high, requested_lane="high", prompt=SHORT, max_tokens=2)
        worker.claim()
        worker.turns(2)
    worker.run_dry()
    gaps = [index for index, (key, _) in enumerate(worker.grants) if key == patient]
    assert max(b - a for a, b in itertools.pairwise(gaps)) <= 4
    assert end_of(worker.log(patient)).usage.completion_tokens == 30


def test_rows_beside_a_slot_job_wait_for_one_slice_at_most(
    model: LanguageModel, slot_worker: Callable[..., SlotWorker]
) -> None:
    worker = slot_worker(grant_rounds=2)
    forbidden = entitled_principal()
    worker.use(grant_rounds=0)
    keys = [submit(model, by=forbidden, prompt=SHORT, max_tokens=20) for _ in range(3)]
    worker.admit(*keys)
    worker.run_dry()
    joined = "".join(action.value[0] for action in worker.actions)
    assert "ss" not in joined[joined.index("d") : joined.rindex("d")]
    assert "sd" in joined


def test_waiters_that_leave_before_their_first_token_hold_no_prompt_up(
    model: LanguageModel, slot_worker: Callable[..., SlotWorker]
) -> None:
    worker = slot_worker(grant_rounds=1)
    forbidden = entitled_principal()
    with every_tenant("the test's own entitlement"):
        Entitlement.objects.filter(tenant_id=forbidden.tenant_id).update(speculation=False)
    submit(model, by=forbidden, prompt=SHORT, max_tokens=200)
    job = submit(model, prompt=SHORT, max_tokens=200)
    worker.admit("stream", job)
    worker.turn_until(lambda: bool(tokens_of(worker.log(job))))
    waiting = submit(model, by=forbidden, prompt=PROMPT, max_tokens=1)
    worker.claim()
    limits, chunks, waiter = worker.settings.limits, 2, ""
    for _ in range(chunks * 4 * (limits.interval + 1)):
        if worker.turn() is Action.DECODE:
            worker.loop.ask(Cancel({waiter: CancelReason.CLIENT_DISCONNECTED}))
            waiter = submit(model, prompt=SHORT, max_tokens=2)
            worker.claim()
    assert end_of(worker.log(waiting)).state is EndState.COMPLETED


def test_an_entitlement_can_forbid_speculation(
    model: LanguageModel, slot_worker: Callable[..., SlotWorker]
) -> None:
    principal: Principal = entitled_principal()
    with every_tenant("the test's own entitlement"):
        Entitlement.objects.filter(tenant_id=principal.tenant_id).update(speculation=False)
    worker = slot_worker()
    key = submit(model, by=principal, prompt=SHORT)
    worker.claim()
    worker.run_dry()
    assert worker.grants == []
    assert end_of(worker.log(key)).state is EndState.COMPLETED


def test_measuring_runs_two_probes_and_settles_after_four_generations(
    model: LanguageModel, slot_worker: Callable[..., SlotWorker], drafter: ScriptedDrafter
) -> None:
    asked: list[str] = []
    drafter.script = lambda context, k: asked.append(context.key) or []  # type: ignore[func-returns-value]
    worker = slot_worker(mode=SpeculationMode.MEASURED)
    for count in range(1, 5):
        key = submit(model, prompt=SHORT, max_tokens=6)
        worker.claim()
        worker.run_dry()
        # Two probes, for which the drafter is not asked, two rounds, and one behind which nothing may come.
        assert asked.count(key) == 2
        assert len(worker.verdicts) == (count == 4)
    assert worker.verdicts[0].samples == 4
    assert worker.metrics.speculation_gain.value == worker.verdicts[0].speedup


def test_a_round_that_is_run_again_measures_nothing(
    model: LanguageModel,
    slot_worker: Callable[..., SlotWorker],
    drafter: ScriptedDrafter,
    forward_passes: ForwardPasses,
) -> None:
    drafter.script = lambda context, k: [POISON]
    worker = slot_worker(mode=SpeculationMode.MEASURED)
    for _ in range(4):  # as many as settle it otherwise
        key = submit(model, prompt=SHORT, max_tokens=20)
        worker.claim()
        # Its first token, two probes, and a round that is run again.
        worker.turn_until(lambda key=key: len(tokens_of(worker.log(key))) == 4)  # type: ignore[misc]
        assert [entry.proposed for entry in worker.log(key) if isinstance(entry, Delta)] == [0, 0, 0, 1]
        worker.loop.ask(Cancel({key: CancelReason.CLIENT_REQUESTED}))
        worker.run_dry()
    assert worker.verdicts == []


def verdict(outcome: Outcome, speedup: float) -> Verdict:
    return Verdict(
        outcome=outcome,
        speedup=speedup,
        classic_ms=10.0,
        round_ms=11.0,
        accepted_per_round=speedup * 1.1 - 1,
        samples=4,
    )


def test_a_verdict_against_it_keeps_new_ones_out_and_lets_who_runs_finish(
    model: LanguageModel, slot_worker: Callable[..., SlotWorker]
) -> None:
    worker = slot_worker(mode=SpeculationMode.MEASURED)
    first = submit(model, prompt=SHORT, max_tokens=20)
    worker.claim()
    worker.turns(5)
    worker.loop.ask(Rule(verdict(Outcome.DECLINED, 0.8)))
    second = submit(model, prompt=SHORT, max_tokens=4)
    worker.claim()
    worker.run_dry()
    assert [key for key, _ in worker.grants] == [first]
    assert worker.grants[0][1] == 20
    assert end_of(worker.log(second)).state is EndState.COMPLETED


def test_a_verdict_against_it_stops_no_parked_job(
    model: LanguageModel, slot_worker: Callable[..., SlotWorker]
) -> None:
    worker = slot_worker(mode=SpeculationMode.MEASURED, grant_rounds=2)
    keys = [submit(model, prompt=SHORT, max_tokens=8) for _ in range(2)]
    worker.admit(*keys)
    worker.turn_until(lambda: worker.metrics.slot("normal").grants.value == 3)
    worker.loop.ask(Rule(verdict(Outcome.DECLINED, 0.8)))
    worker.run_dry()
    assert sum(slices for key, slices in worker.grants if key == keys[1]) == 8
    assert worker.metrics.slot("normal").grants.value > 4


def test_who_speculates_joins_the_batch_when_the_load_makes_that_better(
    model: LanguageModel, engine: Engine, slot_worker: Callable[..., SlotWorker]
) -> None:
    expected = alone(engine, SHORT, GREEDY, 20)
    worker = slot_worker(mode=SpeculationMode.MEASURED)
    worker.loop.ask(Rule(verdict(Outcome.ENABLED, 1.4)))
    keys = [submit(model, prompt=SHORT, max_tokens=20)]
    worker.claim()
    worker.turns(5)
    keys += [submit(model, prompt=SHORT, max_tokens=20) for _ in range(3)]
    worker.admit(*keys[1:])
    worker.run_dry()
    assert worker.grants[0][0] == keys[0]
    assert worker.grants[0][1] < 20
    assert [tokens_of(worker.log(key)) for key in keys] == [expected] * 4


def test_a_prompt_whose_last_chunk_runs_in_the_slot_tells_its_progress_and_what_was_cached(
    model: LanguageModel, engine: Engine, slot_worker: Callable[..., SlotWorker]
) -> None:
    worker = slot_worker()
    engine.set_prefix_budget(1 << 24)
    worker.memory.budget = replace(worker.memory.budget, prefix_cache=1 << 24)
    principal = entitled_principal()
    keys = [submit(model, by=principal, prompt=PROMPT, max_tokens=4) for _ in range(2)]
    for _ in keys:
        worker.claim()
        worker.run_dry()
    first, second = (end_of(worker.log(key)).usage.cached_tokens for key in keys)
    assert first == 0
    assert second == len(PROMPT) - 1
