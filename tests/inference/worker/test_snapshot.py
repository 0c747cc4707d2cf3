"""What a worker tells of its scheduler: true of the tick it was drawn at, small, and in its heartbeat."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis

from accounts.tenancy import every_tenant
from inference.admin.now import WorkerState, now
from inference.admin.running import Doing
from inference.dispatch.heartbeats import heartbeats
from inference.engine.engine import Engine, StepResult
from inference.messages import SchedulerSnapshot, encode
from inference.models import LanguageModel
from inference.scheduling.tick import Action, PrefillLimits, TickDecision
from inference.worker import snapshot
from inference.worker.snapshot import SnapshotBoard
from tests.inference.dispatch.conftest import wait_until
from tests.inference.worker.conftest import (
    ENDLESS,
    PROMPT,
    HandDrivenWorker,
    WorkerInThread,
    submit,
    tokens_of,
)

LONG_PROMPT = PROMPT * 5  # 100 tokens; a worker driven by hand runs chunks of 16 at an interval of 2


@pytest.fixture
def _every_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    """However quick the ticks are, each is drawn."""
    monkeypatch.setattr(snapshot, "_LEAST_AGE_S", 0.0)


def shown(worker: HandDrivenWorker) -> SchedulerSnapshot:
    latest = worker.loop.board.latest
    assert latest is not None
    return latest


@pytest.mark.usefixtures("_every_tick")
def test_it_tells_what_decodes_what_is_parked_and_what_prompts_owe(
    worker: HandDrivenWorker, model: LanguageModel
) -> None:
    assert worker.loop.board.latest is None
    streaming = submit(model, prompt=PROMPT[:4], max_tokens=ENDLESS)
    worker.claim()
    assert worker.turns(3) == [Action.PREFILL, Action.DECODE, Action.DECODE]
    first = shown(worker)
    [row] = first.rows
    assert (row.generation, row.lane, row.max_tokens) == (streaming, "normal", ENDLESS)
    assert row.tokens == len(tokens_of(worker.log(streaming))) > 0
    assert len(row.tenant) == 32
    assert 0 <= time.time() - row.since < 60
    assert (first.parked, first.debt, first.recent) == ([], 0, "pdd")

    parked = submit(model, prompt=LONG_PROMPT)
    worker.claim()
    assert worker.turn() is Action.PREFILL
    second = shown(worker)
    [prompt] = second.parked
    assert (prompt.generation, prompt.done, prompt.total) == (parked, 16, 100)
    assert second.debt == 16 * 2
    assert (second.chunk, second.interval) == (16, 2)
    assert second.recent == "pddp"
    assert len(second.recent_ms) == 4
    assert all(ms > 0 for ms in second.recent_ms)
    assert first.recent == "pdd", "what was told before has changed"


def test_an_idle_worker_tells_so_at_once_and_keeps_what_it_did(
    worker: HandDrivenWorker, model: LanguageModel
) -> None:
    submit(model, prompt=PROMPT[:4], max_tokens=3)
    worker.claim()
    done: list[Action] = []
    while Action.IDLE not in done:
        done.append(worker.turn())
    assert shown(worker).recent == "".join(action.value[0] for action in done)
    told = shown(worker).recent
    worker.turns(200)
    assert (shown(worker).rows, shown(worker).recent) == ([], told)
    assert shown(worker).recent_ms[-1] == 0


def test_quick_ticks_are_drawn_a_few_times_a_second(
    worker: HandDrivenWorker, model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    board = SnapshotBoard(worker.loop.roster)
    monkeypatch.setattr(snapshot.time, "monotonic", lambda: clock[0])
    decode = TickDecision(Action.DECODE, 0, speculative_yielded=False, slice_prompt_last=False)
    drawn = set()
    for _ in range(200):  # two seconds
        board.show(decode, PrefillLimits(), 0.01)
        drawn.add(id(board.latest))
        clock[0] += 0.01
    assert board.latest is not None
    assert len(board.latest.recent) == 120
    assert len(drawn) <= 9


@pytest.mark.slow
@pytest.mark.usefixtures("_every_tick")
def test_a_full_worker_s_snapshot_stays_small(worker: HandDrivenWorker, model: LanguageModel) -> None:
    worker.holdings.resize(100)
    for _ in range(100):
        submit(model, prompt=PROMPT[:4], max_tokens=ENDLESS)
        worker.claim()
    worker.turn_until(lambda: worker.loop.roster.decoding_rows == 100)
    worker.turns(130)
    assert (shown(worker).decoding, len(shown(worker).rows)) == (100, 64)
    assert len(encode(shown(worker))) < 16_000


def test_a_snapshot_reaches_the_heartbeat(
    start_worker: Callable[..., WorkerInThread], model: LanguageModel, valkey: redis.Redis
) -> None:
    start_worker()
    generation = submit(model, max_tokens=ENDLESS, unattended=True)

    def told() -> bool:
        beats = heartbeats(valkey)
        scheduler = beats[0].scheduler if beats else None
        if scheduler is None or "d" not in scheduler.recent:
            return False  # the last one may have been drawn right behind the prompt
        return [row.generation for row in scheduler.rows] == [generation]

    wait_until(told)
    [beat] = heartbeats(valkey)
    assert beat.scheduler is not None
    assert (beat.scheduler.chunk, beat.scheduler.interval) == (
        model.prefill_chunk_tokens,
        model.prefill_interval,
    )


def test_what_a_worker_has_claimed_is_told_while_its_first_tick_still_runs(
    start_worker: Callable[..., WorkerInThread],
    model: LanguageModel,
    valkey: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prefill, begun, may_end = Engine.prefill, threading.Event(), threading.Event()

    def long_prefill(engine: Engine, *arguments: Any) -> StepResult:
        begun.set()
        assert may_end.wait(60)
        return prefill(engine, *arguments)

    def told() -> list[tuple[WorkerState, list[tuple[str, Doing]]]]:
        with every_tenant("a test looks"):
            page = now()
        doing = [(one.generation.id.hex, one.doing) for one in page.running]
        return [(worker.state, doing) for worker in page.workers or () if worker.heartbeat.scheduler]

    monkeypatch.setattr(Engine, "prefill", long_prefill)
    start_worker()
    wait_until(lambda: told() == [(WorkerState.IDLE, [])])
    generation = submit(model, unattended=True)
    try:
        assert begun.wait(60)
        wait_until(lambda: told() == [(WorkerState.SERVING, [(generation, Doing.READING)])])
    finally:
        may_end.set()
