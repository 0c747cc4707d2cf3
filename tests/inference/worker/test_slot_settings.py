"""What becomes of the speculative slot when its settings change, and what the heartbeat tells of who is there."""

from __future__ import annotations

from collections.abc import Callable

import redis

from inference.dispatch.heartbeats import heartbeats
from inference.engine.engine import Engine
from inference.messages import Delta
from inference.models import LanguageModel
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
        slot_bytes=0,
        blas="",
        device="",
    ).beat()
    [beat] = heartbeats(valkey)
    assert (beat.decoding, beat.prefilling) == (1, 2), (
        "the holder writes, two wait with prompts that are not done"
    )
