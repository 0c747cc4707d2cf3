"""Who leaves the slot before its end: for good, to another worker, or to make room for a higher lane."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import redis

from accounts.models import Tenant
from accounts.principal import Principal
from accounts.tenancy import every_tenant
from inference import cancellation
from inference.dispatch.queue import DispatchQueue
from inference.engine.engine import Engine
from inference.messages import CancelReason, Delta, LogEntry, Sampling
from inference.models import DrafterKind, LanguageModel
from inference.models.generation import GenerationState
from inference.scheduling.speculation import SpeculationMode
from inference.worker.drafting import Drafting, drafts_otherwise
from inference.worker.metrics import Stage
from inference.worker.requests import Drop, Reconfigure, RoomPlan, UseDrafter
from tests.inference.dispatch.conftest import let_lease_lapse
from tests.inference.doors import entitled_principal, row
from tests.inference.engine.speculating import ScriptedDrafter, knowing
from tests.inference.worker.conftest import (
    GREEDY,
    PROMPT,
    HandDrivenWorker,
    alone,
    end_of,
    submit,
    text_of,
    tokens_of,
)
from tests.inference.worker.test_room import ask, make_room
from tests.inference.worker.test_slot import SHORT, drafter, speculating

__all__ = ["drafter"]

MakeWorker = Callable[..., HandDrivenWorker]
AT_SLOT = [Stage.WAITING, Stage.SPECULATING, Stage.PARKED]
SAMPLED = Sampling(seed=5, temperature=0.9, top_p=0.95)
LENGTH = 24


@pytest.fixture(scope="module")
def other_engine(roomy_model_dir: Path) -> Engine:
    """Another worker's, on another machine."""
    return Engine(roomy_model_dir)


@pytest.fixture
def slot_worker(
    model: LanguageModel, engine: Engine, valkey: redis.Redis, drafter: ScriptedDrafter
) -> Iterator[MakeWorker]:
    def make(**changes: Any) -> HandDrivenWorker:
        return HandDrivenWorker(engine, valkey, model.name, settings=speculating(**changes))

    yield make
    for key in engine.keys:
        engine.drop(key)


@pytest.fixture
def elsewhere(
    model: LanguageModel, other_engine: Engine, valkey: redis.Redis, drafter: ScriptedDrafter
) -> Iterator[HandDrivenWorker]:
    """A second worker, whose drafter guesses by the same script as the first one's."""
    own = ScriptedDrafter(lambda context, k: drafter.script(context, k))
    other_engine.set_drafter(lambda: own)
    yield HandDrivenWorker(other_engine, valkey, model.name, name="elsewhere", settings=speculating())
    for key in other_engine.keys:
        other_engine.drop(key)


@pytest.fixture
def texts(engine: Engine, drafter: ScriptedDrafter) -> dict[str, list[int]]:
    """What is guessed of which generation; every fourth token wrong."""
    known: dict[str, list[int]] = {}
    drafter.script = lambda context, k: knowing(known.get(context.key, []), lambda at: at % 4 == 0)(
        context, k
    )
    return known


def stage_of(worker: HandDrivenWorker, key: str) -> Stage | None:
    """Where it is between two ticks, as the engine and the roster tell; None if it is not in the worker."""
    roster = worker.loop.roster
    sequence = roster.find(key)
    if sequence is None:
        return None
    if not roster.is_at_slot(sequence):
        return Stage.PREFILLING if roster.is_parked(sequence) else Stage.DECODING
    if worker.engine.drafter.holder == key:
        return Stage.SPECULATING
    return Stage.WAITING if roster.is_parked(sequence) else Stage.PARKED


def assert_nothing_left(worker: HandDrivenWorker) -> None:
    """Nobody is in the engine, the slot or the books."""
    worker.run_dry()
    assert worker.engine.keys == ()
    assert worker.engine.decoding == 0
    assert worker.engine.drafter.holder is None
    assert worker.holdings.occupied() == (0, 0)
    assert len(worker.loop.roster) == 0
    snapshot = worker.loop.board.latest
    assert snapshot is not None
    assert snapshot.slot is not None
    assert (snapshot.slot.holder, snapshot.slot.waiting) == (None, [])


def assert_as_alone(engine: Engine, log: list[LogEntry], expected: list[int]) -> None:
    """Its text is the whole one, once; the end counts what every owner drafted."""
    assert tokens_of(log) == expected
    assert text_of(log) == engine.tokenizer.decode(expected)
    assert [entry.seq for entry in log] == list(range(1, len(log) + 1))
    usage, deltas = end_of(log).usage, [entry for entry in log if isinstance(entry, Delta)]
    assert usage.completion_tokens == len(expected)
    assert usage.accepted_prediction_tokens == sum(delta.accepted for delta in deltas) > 0
    assert usage.rejected_prediction_tokens == sum(delta.proposed - delta.accepted for delta in deltas) > 0


def drafted(log: list[LogEntry], epoch: int) -> int:
    """How much was drafted for it in one claim."""
    return sum(entry.proposed for entry in log if isinstance(entry, Delta) and entry.epoch == epoch)


def submit_known(
    model: LanguageModel, texts: dict[str, list[int]], expected: list[int], **changes: Any
) -> str:
    """Accept a generation whose text can be guessed."""
    key = submit(model, prompt=SHORT, max_tokens=LENGTH, **changes)
    texts[key] = [*SHORT, *expected]
    return key


def bring(worker: HandDrivenWorker, stage: Stage, first: str, second: str) -> str:
    """Admit two generations and run them until one of them is at ``stage``; that one."""
    worker.claim()
    worker.claim()
    victim = second if stage is Stage.WAITING else first
    worker.turns(2)
    worker.turn_until(lambda: stage_of(worker, victim) is stage)
    return victim


# F16


@contextmanager
def settling(worker: HandDrivenWorker) -> Iterator[None]:
    """With its settlement thread at work, as in a whole worker."""
    worker.settlements.start()
    try:
        yield
    finally:
        worker.settlements.stop()
        worker.settlements.join(30)


def test_f16_readers_that_leave_at_any_stage_leave_nothing_at_the_slot_or_anywhere_else(
    model: LanguageModel,
    engine: Engine,
    valkey: redis.Redis,
    slot_worker: MakeWorker,
    texts: dict[str, list[int]],
) -> None:
    worker = slot_worker(grant_rounds=2)
    worker.turn()
    capacity = worker.memory.capacity()
    queue, asked, left_at = DispatchQueue(valkey), list[str](), list[Stage | None]()
    wanted = cycle([None, Stage.PREFILLING, Stage.DECODING, *AT_SLOT])
    tenants = [entitled_principal() for _ in range(3)]
    said = alone(engine, SHORT, GREEDY, 200)
    with settling(worker):
        for wave in range(5):
            alive = []
            for number in range(12):
                prompt = SHORT if number % 3 else PROMPT * 6
                key = submit(model, by=tenants[number % 3], prompt=prompt, max_tokens=200)
                texts[key] = [*prompt, *said] if number % 3 else []
                alive.append(key)
            asked += alive
            while alive:
                while worker.holdings.occupied()[0] < worker.holdings.slots and queue.depths("tiny").get(1):
                    worker.claim()
                worker.turns(1 + (len(alive) + wave) % 3)
                stages = {key: stage_of(worker, key) for key in alive}
                stage = next(wanted)
                key = next((key for key in alive if stages[key] is stage), alive[-1])
                left_at.append(stages[key])
                cancellation.cancel(UUID(key), CancelReason.CLIENT_DISCONNECTED)
                alive.remove(key)
        assert_nothing_left(worker)
        assert worker.settlements.flush(60)
    assert set(left_at) == {None, Stage.PREFILLING, Stage.DECODING, *AT_SLOT}
    for stage in AT_SLOT:
        told = worker.metrics.cancellations(stage, CancelReason.CLIENT_DISCONNECTED, "normal")
        assert told.value > 0
    assert {row(key).state for key in asked} == {GenerationState.CANCELLED}
    assert worker.holdings.epochs() == {}
    assert worker.memory.capacity() == capacity
    for kind in ("places", "queue", "fifo", "tenants", "leases", "cancels"):
        assert valkey.keys(f"dispatch:{kind}:*") == [], kind


# Another worker's


@pytest.mark.parametrize("stage", AT_SLOT)
def test_who_is_lost_at_the_slot_is_ended_by_another_worker_as_if_it_had_never_moved(
    stage: Stage,
    model: LanguageModel,
    engine: Engine,
    valkey: redis.Redis,
    slot_worker: MakeWorker,
    elsewhere: HandDrivenWorker,
    texts: dict[str, list[int]],
) -> None:
    expected = alone(engine, SHORT, SAMPLED, LENGTH)
    worker = slot_worker(grant_rounds=3)
    first, second = (submit_known(model, texts, expected, sampling=SAMPLED) for _ in range(2))
    victim = bring(worker, stage, first, second)
    before = drafted(worker.log(victim), epoch=1)
    let_lease_lapse(valkey, victim, "tiny")
    resumed = elsewhere.claim()
    assert (resumed.task.generation, resumed.epoch) == (victim, 2)
    elsewhere.turns(3)
    worker.loop.ask(Drop({victim: 1}))
    worker.turn()
    assert stage_of(worker, victim) is None
    assert_nothing_left(worker)
    assert_nothing_left(elsewhere)
    for key in (first, second):
        assert_as_alone(engine, worker.log(key), expected)
    assert (before > 0) == (stage is not Stage.WAITING)
    assert drafted(worker.log(victim), epoch=2) > 0, "it speculates again"


def test_a_drained_worker_gives_holder_waiter_and_parked_job_back_and_they_go_on_elsewhere(
    model: LanguageModel,
    engine: Engine,
    valkey: redis.Redis,
    slot_worker: MakeWorker,
    elsewhere: HandDrivenWorker,
    texts: dict[str, list[int]],
) -> None:
    expected = alone(engine, SHORT, SAMPLED, LENGTH)
    worker = slot_worker(grant_rounds=3)
    keys = [submit_known(model, texts, expected, sampling=SAMPLED) for _ in range(3)]
    for _ in keys:
        worker.claim()
    worker.turn_until(
        lambda: [stage_of(worker, key) for key in keys] == [Stage.PARKED, Stage.SPECULATING, Stage.WAITING]
    )
    worker.loop.hand_back()
    assert_nothing_left(worker)
    assert [DispatchQueue(valkey).position(key) for key in keys] == [1, 2, 3]
    earlier = [drafted(worker.log(key), epoch=1) for key in keys]
    assert earlier[0] > 0
    for _ in keys:
        elsewhere.claim()
    assert_nothing_left(elsewhere)
    for key in keys:
        log = elsewhere.log(key)
        assert_as_alone(engine, log, expected)
        assert end_of(log).epoch == 2
        assert drafted(log, epoch=2) > 0, "it speculates again"


# A higher lane's


@pytest.mark.parametrize("stage", AT_SLOT)
def test_a_higher_lane_takes_the_room_of_who_is_at_the_slot_and_it_goes_on_to_the_token(
    stage: Stage, model: LanguageModel, engine: Engine, slot_worker: MakeWorker, texts: dict[str, list[int]]
) -> None:
    expected = alone(engine, SHORT, SAMPLED, LENGTH)
    worker = slot_worker(grant_rounds=3)
    worker.holdings.resize(2)
    lanes = ("normal", "low") if stage is Stage.WAITING else ("low", "normal")
    first, second = (
        submit_known(
            model, texts, expected, by=entitled_principal(lane), requested_lane=lane, sampling=SAMPLED
        )
        for lane in lanes
    )
    victim = _bring_by_lane(worker, stage, first, second)
    equal = ask(model, "low", max_tokens=2)
    assert make_room(worker) is None, "equals and lower ones wait"
    worker.turn_until(lambda: stage_of(worker, victim) is stage)
    high = ask(model, "high", prompt=SHORT, max_tokens=3)
    plan = make_room(worker)
    assert plan == RoomPlan(high, {victim: 1})
    worker.turn_until(lambda: stage_of(worker, victim) is stage)
    worker.claim(high, plan.victims)
    worker.turn()
    assert stage_of(worker, victim) is None
    worker.run_dry()
    resumed = [worker.claim(), worker.claim()]
    assert {claim.task.generation for claim in resumed} == {victim, equal}
    worker.run_dry()
    assert end_of(worker.log(victim)).epoch == 2
    for key in (first, second):
        assert_as_alone(engine, worker.log(key), expected)
    assert drafted(worker.log(victim), epoch=2) > 0, "it speculates again"
    assert_nothing_left(worker)


def _bring_by_lane(worker: HandDrivenWorker, stage: Stage, first: str, second: str) -> str:
    """As ``bring``, although a queue serves the higher lane first."""
    worker.claim(promised=first)
    worker.turn()
    worker.claim(promised=second)
    victim = second if stage is Stage.WAITING else first
    worker.turn()
    worker.turn_until(lambda: stage_of(worker, victim) is stage)
    return victim


# Settings


def test_a_drafter_is_given_and_taken_away_while_generations_run(
    model: LanguageModel, engine: Engine, worker: HandDrivenWorker, tmp_path: Path
) -> None:
    """None at first, then a pool, then off: who runs goes on, and says what it would have said."""
    drafting = Drafting(model, engine.tokenizer, tmp_path)
    settings = worker.settings

    def change(**changes: Any) -> None:
        nonlocal settings
        earlier, settings = settings, replace(settings, speculation=replace(settings.speculation, **changes))
        if drafts_otherwise(settings.speculation, earlier.speculation):
            worker.loop.ask(UseDrafter(drafting.factory(settings.speculation)))
        worker.loop.ask(Reconfigure(settings))

    teacher: Principal = entitled_principal()
    with every_tenant("the test's own tenant"):
        Tenant.objects.filter(id=teacher.tenant_id).update(suffix_pool=True)
    expected = alone(engine, SHORT, GREEDY, 40)
    without, taught, after = (submit(model, by=teacher, prompt=SHORT, max_tokens=40) for _ in range(3))
    worker.claim()
    worker.turns(6)
    change(drafter=DrafterKind.SUFFIX_POOL)
    worker.run_dry()
    assert drafted(worker.log(without), epoch=1) == 0
    worker.claim()
    worker.turn_until(lambda: drafted(worker.log(taught), epoch=1) > 8)
    assert stage_of(worker, taught) is Stage.SPECULATING
    change(mode=SpeculationMode.OFF)
    worker.turn()
    assert engine.drafter.name is None
    assert stage_of(worker, taught) is Stage.DECODING
    worker.run_dry()
    assert end_of(worker.log(taught)).usage.accepted_prediction_tokens > 0
    worker.claim()
    worker.run_dry()
    assert drafted(worker.log(after), epoch=1) == 0
    for key in (without, taught, after):
        assert tokens_of(worker.log(key)) == expected
    assert_nothing_left(worker)
