"""What becomes of the speculative slot when its settings change, and what the heartbeat tells of who is there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from inference.dispatch.heartbeats import heartbeats
from inference.engine.drafting.drafter import DrafterFault
from inference.engine.engine import Engine
from inference.messages import Delta, SlotSnapshot
from inference.models import DrafterKind, LanguageModel
from inference.scheduling.tick import Action
from inference.worker import snapshot
from inference.worker.heartbeat_thread import Pulse
from tests.inference.engine.speculating import ScriptedDrafter, knowing
from tests.inference.worker.conftest import ENDLESS, GREEDY, alone, submit
from tests.inference.worker.test_slot import SHORT, SlotWorker, drafter, slot_worker

__all__ = ["drafter", "slot_worker"]


def test_another_draft_length_holds_from_the_next_round_on(
    model: LanguageModel, engine: Engine, drafter: ScriptedDrafter, slot_worker: Callable[..., SlotWorker]
) -> None:
    drafter.script = knowing([*SHORT, *alone(engine, SHORT, GREEDY, 60)])
    worker = slot_worker(draft_tokens=4)
    key = submit(model, prompt=SHORT, max_tokens=ENDLESS)
    worker.claim()

    def drafted() -> int:
        last = worker.log(key)[-1]
        assert isinstance(last, Delta)
        return last.proposed

    worker.turn_until(lambda: bool(worker.log(key)) and drafted() == 4)
    worker.use(draft_tokens=3)
    worker.turn()
    assert drafted() == 3
    worker.use(draft_tokens=8)
    worker.turn()
    assert drafted() > 4
    announced = worker.metrics.draft_length.value
    worker.turn()
    assert drafted() == announced > 0


def told(worker: SlotWorker) -> SlotSnapshot:
    latest = worker.loop.board.latest
    assert latest is not None
    assert latest.slot is not None
    return latest.slot


def test_the_drafter_that_is_told_is_the_one_that_there_is(
    engine: Engine, drafter: ScriptedDrafter, slot_worker: Callable[..., SlotWorker]
) -> None:
    worker = slot_worker()
    worker.use(drafter=DrafterKind.DRAFT_MODEL, draft_model="org/small", speculate_undecided=False)
    worker.turn()
    assert (told(worker).drafter, told(worker).drafter_fault) == ("scripted", "")
    assert told(worker).speculate_undecided is False
    drafter.name = "draft_model"
    worker.turn()
    assert told(worker).drafter == "draft_model:org/small"

    def cannot_be_made() -> ScriptedDrafter:
        raise DrafterFault("The draft model in /gone cannot be loaded.")

    engine.set_drafter(cannot_be_made)
    worker.turn()
    assert told(worker).drafter == ""
    assert "The draft model in /gone cannot be loaded." in told(worker).drafter_fault
    engine.set_drafter(None)
    worker.turn()
    assert (told(worker).drafter, told(worker).drafter_fault) == ("", "")


def test_it_is_told_whether_the_next_slice_is_of_a_prompt(
    model: LanguageModel, slot_worker: Callable[..., SlotWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "_LEAST_AGE_S", 0.0)
    worker = slot_worker(grant_rounds=2)
    for _ in range(3):
        submit(model, prompt=SHORT, max_tokens=6)
        worker.claim()
    worker.turn()
    rounds, seen = worker.metrics.slot("normal").rounds, set()
    while True:
        said, before = told(worker).prompt_next, rounds.value
        action = worker.turn()
        if action is Action.IDLE:
            break
        if action is Action.SPECULATE:
            assert said == (rounds.value == before)
            seen.add(said)
    assert seen == {True, False}


def test_the_heartbeat_counts_who_is_at_the_slot(
    model: LanguageModel, valkey: redis.Redis, slot_worker: Callable[..., SlotWorker]
) -> None:
    worker = slot_worker()
    for _ in range(3):
        submit(model, prompt=SHORT, max_tokens=ENDLESS)
        worker.claim()
    worker.turn()
    Pulse(
        valkey,
        worker.name,
        model.name,
        worker.loop,
        worker.holdings,
        worker.progress,
        worker.metrics,
        worker.memory,
        slot_bytes=4096,
        blas="",
        device="",
    ).beat()
    [beat] = heartbeats(valkey)
    assert (beat.decoding, beat.prefilling) == (1, 2), (
        "the holder writes, two wait with prompts that are not done"
    )
    assert (beat.slot_bytes, beat.longest_sequence) == (4096, worker.memory.longest_sequence())
