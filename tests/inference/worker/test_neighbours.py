"""What a worker knows of the others that serve its model, and what it leaves to them."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

import pytest
import redis

from inference import cancellation, language_models
from inference.api.streaming import failure_of
from inference.dispatch import heartbeats, token_log
from inference.dispatch.queue import DispatchQueue
from inference.intake import RefusalCode, Refused
from inference.messages import CancelReason, Heartbeat
from inference.models import LanguageModel
from inference.models.generation import GenerationState
from inference.scheduling.memory import Verdict
from inference.worker import heartbeat_thread, housekeeping, neighbours
from inference.worker.holdings import Holdings
from inference.worker.kv_memory import KvBudget, KvMemory
from inference.worker.neighbours import RESTART_S, SILENCE_S, Neighbourhood, Neighbours
from inference.worker.progress import Progress
from inference.worker.requests import Admit, PlanRoom
from tests.heartbeats import heartbeats_last, make_heartbeat
from tests.inference.doors import row
from tests.inference.worker.conftest import (
    CONTEXT_LENGTH,
    ENDLESS,
    PROMPT,
    TIMES,
    DecodeSteps,
    GettingOn,
    HandDrivenWorker,
    WorkerInThread,
    end_of,
    submit,
    wait_until,
)
from tests.inference.worker.test_process import StartWorker, wait_for_state, wait_for_tokens

__all__ = ["heartbeats_last"]

LEASE_S = 15.0
#: Of the tiny model, 512 bytes a token: what the MiB of the worker under test has room for, and what another has.
SMALL, LARGE = 2048, 4096


def other(model: str, longest: int | None, **changes: Any) -> Heartbeat:
    fields: dict[str, Any] = {"worker": "a" * 32, "model": model, "longest_sequence": longest}
    return make_heartbeat(time.time(), **{**fields, **changes})


def seen(*looks: tuple[float, list[Heartbeat]], known: Neighbourhood | None = None) -> Neighbourhood:
    """What is known after these looks (seconds since the one before, and what was found), each made once."""
    if known is None:
        known = Neighbourhood(lease_s=LEASE_S, looked_s=math.inf)
    for elapsed_s, beats in looks:
        known = known.after(beats, elapsed_s)
    return known


def silence(seconds: int) -> list[tuple[float, list[Heartbeat]]]:
    """A look a second that finds nobody."""
    return [(1.0, [])] * seconds


@pytest.mark.parametrize(
    ("changes", "now", "to_come"),
    [
        ({}, 100, 100),
        ({"draining": True}, None, 100),
        ({"ready": False}, None, 100),
        ({"longest_sequence": None}, None, None),
        ({"progressed_at": time.time() - 2 * LEASE_S}, None, 0),
    ],
)
def test_the_door_counts_who_takes_work_on_and_what_waits_counts_on_who_lives(
    changes: dict[str, Any], now: int | None, to_come: int | None
) -> None:
    """One that drains is started anew; one that does not tell may hold anything; one that hangs is no hope."""
    alone = seen((1.0, [other("m", 100, **changes)]))
    assert (alone.longest_now(), alone.longest_to_come()) == (now, to_come)
    both = seen((1.0, [other("m", 100, **changes), other("m", 50, worker="c" * 32)]))
    assert both.longest_now() == max(now or 0, 50)
    assert both.longest_to_come() == (None if to_come is None else max(to_come, 50))
    assert (seen((1.0, [])).longest_now(), seen((1.0, [])).longest_to_come()) == (None, 0)


LIVES = (1.0, [other("m", 100)])


def test_who_is_not_seen_any_more_is_waited_for_as_long_as_a_lease_and_a_restart_take() -> None:
    waited_for = int(LEASE_S + RESTART_S)
    gone = seen(LIVES, *silence(waited_for - 1))
    assert gone.longest_to_come() == 100
    assert seen(*silence(1), known=gone).longest_to_come() == 0
    back = seen((1.0, [other("m", 100, worker="c" * 32)]), *silence(5), known=gone)
    assert back.longest_to_come() == 100, "its successor has another name"


def test_who_falls_silent_without_a_word_keeps_the_door_open_for_a_moment() -> None:
    silent = seen(LIVES, *silence(int(SILENCE_S) - 1))
    assert silent.longest_now() == 100
    assert seen(*silence(1), known=silent).longest_now() is None
    assert seen(LIVES, (1.0, [other("m", 100, draining=True)]), *silence(1)).longest_now() is None


def test_a_time_in_which_nobody_could_look_is_no_time_in_which_nobody_was_seen() -> None:
    """Valkey was away, or this worker was stopped: of the others' heartbeats none is left when it looks again."""
    back = seen(LIVES, (3600.0, []))
    assert (back.longest_now(), back.longest_to_come()) == (100, 100)
    for _ in range(2):
        back = seen((3600.0, []), known=back)
    assert (back.longest_now(), back.longest_to_come()) == (100, 100)


def test_one_that_hangs_is_waited_for_like_one_that_is_gone_however_long_it_beats() -> None:
    hangs = (1.0, [other("m", 100, progressed_at=time.time() - 2 * LEASE_S)])
    known = seen(LIVES, hangs)
    assert (known.longest_now(), known.longest_to_come()) == (None, 100)
    known = seen(*[hangs] * int(LEASE_S + RESTART_S), known=known)
    assert known.longest_to_come() == 0
    assert seen(hangs, known=known).longest_to_come() == 0
    assert seen(LIVES, known=known).longest_to_come() == 100


def test_the_last_word_on_its_memory_counts() -> None:
    less = seen(LIVES, (1.0, [other("m", 60)]))
    assert (less.longest_now(), less.longest_to_come()) == (60, 60)


def test_nobody_is_given_up_before_there_was_time_to_be_seen() -> None:
    """All workers were started anew, and this one was the quickest."""
    started = Neighbourhood(lease_s=LEASE_S)
    assert started.longest_to_come() is None
    looks = silence(int(LEASE_S + RESTART_S) - 1)
    assert seen(*looks, known=started).longest_to_come() is None
    assert seen(*looks, LIVES, known=started).longest_to_come() == 100
    assert seen(*looks, *silence(1), known=started).longest_to_come() == 0


def memory_of_a_byte() -> KvMemory:
    return KvMemory(
        Holdings(1, 1.0), KvBudget(total=1, watermark=0, prefix_cache=0), bytes_per_token=1, step=1
    )


def test_a_worker_is_not_its_own_neighbour_nor_that_of_another_model_s(valkey: redis.Redis) -> None:
    memory = memory_of_a_byte()
    look = Neighbours(valkey, "b" * 32, "m", LEASE_S, memory, served_before=False)
    known = [memory.longest_elsewhere]
    heartbeats.beat(valkey, other("m", 900, worker="b" * 32))
    heartbeats.beat(valkey, other("another", 800, worker="c" * 32))
    look()
    known.append(memory.longest_elsewhere)
    heartbeats.beat(valkey, other("m", 700))
    look()
    known.append(memory.longest_elsewhere)
    assert known == [None, 0, 700]
    assert memory.capacity().longest_elsewhere == look.longest_now() == 700
    heartbeats.retire(valkey, "a" * 32)
    look()
    assert memory.longest_elsewhere == 700


def test_before_anybody_has_looked_nothing_is_too_long_for_everybody(valkey: redis.Redis) -> None:
    memory = memory_of_a_byte()
    assert memory.capacity().verdict(900) is Verdict.FITS_ELSEWHERE
    Neighbours(valkey, "b" * 32, "m", LEASE_S, memory, served_before=True)()
    assert memory.capacity().verdict(900) is Verdict.FITS_ELSEWHERE
    Neighbours(valkey, "b" * 32, "m", LEASE_S, memory, served_before=False)()
    assert memory.capacity().verdict(900) is Verdict.NEVER_FITS


def test_it_looks_again_before_it_ends_what_it_has_no_memory_for(
    worker: HandDrivenWorker, model: LanguageModel, valkey: redis.Redis
) -> None:
    """The other one has come since the last look, and what only that one can hold was let in because of it."""
    worker.memory.budget = KvBudget(total=2**20, watermark=0, prefix_cache=0)
    look = Neighbours(valkey, worker.name, model.name, LEASE_S, worker.memory, served_before=False)
    look()
    assert worker.memory.longest_elsewhere == 0
    heartbeats.beat(valkey, other(model.name, LARGE))
    long = submit(model, max_tokens=3000)
    asked: list[Admit | PlanRoom] = []
    thread = worker.claim_thread(asked.append, progress=GettingOn(), look_around=look)
    thread.start()
    try:
        wait_until(lambda: worker.memory.longest_elsewhere == LARGE)
        short = submit(model)
        wait_until(lambda: short in claimed_of(asked))
    finally:
        thread.stop()
        thread.join(20)
    assert claimed_of(asked) == [short]
    assert DispatchQueue(valkey).position(long) == 1


def claimed_of(asked: list[Admit | PlanRoom]) -> list[str]:
    return [request.claim.task.generation for request in asked if isinstance(request, Admit)]


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers look and tell ten times a second."""
    monkeypatch.setattr(housekeeping, "_SETTINGS_S", 0.1)
    monkeypatch.setattr(heartbeat_thread, "_INTERVAL_S", 0.1)


@pytest.fixture
def small_worker(
    often: None, model: LanguageModel, start_worker: StartWorker, valkey: redis.Redis
) -> WorkerInThread:
    """It starts while another lives that has room for twice as much."""
    LanguageModel.objects.update(kv_budget_mib=1)
    model.refresh_from_db()
    heartbeats.beat(valkey, other(model.name, LARGE))
    return start_worker()


def known_to_the_door(model: LanguageModel) -> int | None:
    model.refresh_from_db()
    return model.kv_capacity_tokens


def beats_of(worker: WorkerInThread, client: redis.Redis) -> list[Heartbeat]:
    return [beat for beat in heartbeats.heartbeats(client) if beat.worker == worker.process.id]


def test_a_worker_with_less_memory_than_another_that_lives_closes_no_door(
    small_worker: WorkerInThread, model: LanguageModel, valkey: redis.Redis
) -> None:
    assert known_to_the_door(model) == LARGE
    LanguageModel.objects.update(slots=3)  # whatever it tells anew, the other one lives
    wait_until(lambda: any(beat.slots == 3 for beat in beats_of(small_worker, valkey)))
    assert {beat.longest_sequence for beat in beats_of(small_worker, valkey)} == {SMALL}
    assert known_to_the_door(model) == LARGE
    submit(model, max_tokens=LARGE - len(PROMPT))
    small_worker.stop()
    assert known_to_the_door(model) == LARGE


def test_the_door_follows_those_that_are_left(
    small_worker: WorkerInThread, model: LanguageModel, valkey: redis.Redis
) -> None:
    heartbeats.beat(valkey, other(model.name, LARGE, draining=True))
    wait_until(lambda: known_to_the_door(model) == SMALL)
    with pytest.raises(Refused) as refusal:
        submit(model, max_tokens=SMALL)
    assert refusal.value.code is RefusalCode.KV_MEMORY_EXCEEDED
    small_worker.stop()
    assert known_to_the_door(model) == SMALL, "the last that is known, while none lives"


def test_what_only_another_worker_can_hold_waits_for_it_and_passes_nothing_up(
    small_worker: WorkerInThread, model: LanguageModel, valkey: redis.Redis
) -> None:
    long = submit(model, max_tokens=3000)
    for _ in range(3):
        wait_for_state(submit(model, max_tokens=2), GenerationState.COMPLETED)
    assert row(long).state == GenerationState.QUEUED
    assert DispatchQueue(valkey).depths(model.name) == {1: 1}
    assert small_worker.process.metrics.deferrals(1).value == 0
    cancellation.cancel(UUID(long), CancelReason.CLIENT_REQUESTED)


def assert_ended_once_nobody_is_remembered(
    long: str, model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not before, however often the worker claims meanwhile."""
    for _ in range(3):
        wait_for_state(submit(model, max_tokens=2), GenerationState.COMPLETED)
    assert row(long).state == GenerationState.QUEUED
    monkeypatch.setattr(neighbours, "remembered_s", lambda lease_s: 0.5)
    assert wait_for_state(long, GenerationState.FAILED).failure_code == "kv_memory_exceeded"


def test_it_is_not_ended_because_the_other_one_is_away_and_is_once_that_was_away_for_too_long(
    small_worker: WorkerInThread, model: LanguageModel, valkey: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = submit(model, max_tokens=3000)
    wait_for_state(submit(model, max_tokens=2), GenerationState.COMPLETED)
    monkeypatch.setattr(neighbours, "SILENCE_S", 0.3)
    heartbeats.retire(valkey, "a" * 32)
    wait_until(lambda: known_to_the_door(model) == SMALL)  # the worker has not seen the other one for so long
    assert_ended_once_nobody_is_remembered(long, model, monkeypatch)


def test_a_worker_that_has_just_started_ends_nothing_that_others_may_come_back_for(
    often: None, model: LanguageModel, start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All were started anew, and it is the quickest."""
    LanguageModel.objects.update(kv_budget_mib=1, kv_capacity_tokens=LARGE)
    model.refresh_from_db()
    long = submit(model, max_tokens=3000)
    start_worker()
    assert known_to_the_door(model) == SMALL
    assert_ended_once_nobody_is_remembered(long, model, monkeypatch)


def test_what_nobody_can_hold_is_told_the_most_that_anybody_has(
    small_worker: WorkerInThread, model: LanguageModel, valkey: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbours, "remembered_s", lambda lease_s: 0.5)
    model.kv_capacity_tokens = None  # as the door still knows the model
    long = submit(model, max_tokens=LARGE)
    wait_for_state(long, GenerationState.FAILED)
    assert f"memory for {LARGE}." in failure_of(end_of(token_log.read(valkey, long))).message


@dataclass
class Told:
    """What the door was told, and who was heard of by then."""

    tokens: list[int] = field(default_factory=list)
    heard: list[set[str]] = field(default_factory=list)

    def only(self, tokens: int) -> bool:
        """Whether it has been told nothing else for a while."""
        return self.tokens[-5:] == [tokens] * 5


@pytest.fixture
def told(valkey: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> Told:
    made, note = Told(), language_models.note_capacity

    def note_and_remember(model_id: UUID, tokens: int) -> None:
        made.heard.append({beat.worker for beat in heartbeats.heartbeats(valkey)})
        note(model_id, tokens)
        made.tokens.append(tokens)

    monkeypatch.setattr(language_models, "note_capacity", note_and_remember)
    return made


@pytest.fixture
def large_worker(
    often: None, model: LanguageModel, start_worker: StartWorker, valkey: redis.Redis, told: Told
) -> WorkerInThread:
    """Its memory is for the whole context, and another lives that has less."""
    LanguageModel.objects.update(kv_budget_mib=4)
    model.refresh_from_db()
    heartbeats.beat(valkey, other(model.name, SMALL))
    return start_worker(replace(TIMES, drain_s=600))


def test_a_worker_is_heard_of_before_the_door_is_told_what_it_can_hold(
    large_worker: WorkerInThread, told: Told
) -> None:
    assert told.tokens[0] == CONTEXT_LENGTH
    assert large_worker.process.id in told.heard[0]


def test_a_worker_that_drains_no_longer_counts_itself_for_the_door(
    large_worker: WorkerInThread,
    model: LanguageModel,
    valkey: redis.Redis,
    told: Told,
    decode_steps: DecodeSteps,
) -> None:
    decode_steps.only(5)
    running = submit(model, max_tokens=ENDLESS)
    wait_for_tokens(valkey, running, 1)
    assert known_to_the_door(model) == CONTEXT_LENGTH
    large_worker.process.drain()
    try:
        wait_until(lambda: told.only(SMALL))
        assert row(running).state == GenerationState.RUNNING
        heartbeats.beat(valkey, other(model.name, SMALL, draining=True))
        LanguageModel.objects.update(slots=3)  # it tells anew whatever there is to tell
        wait_until(lambda: any(beat.slots == 3 for beat in beats_of(large_worker, valkey)))
        assert known_to_the_door(model) == SMALL, "nobody takes work on: what was known before holds"
    finally:
        cancellation.cancel(UUID(running), CancelReason.CLIENT_REQUESTED)


def test_a_worker_that_hangs_does_not_either_and_does_again_when_it_gets_on(
    large_worker: WorkerInThread, model: LanguageModel, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as hanging:
        hanging.setattr(Progress, "age_s", TIMES.lease_s + 1)
        wait_until(lambda: told.only(SMALL))
    wait_until(lambda: told.only(CONTEXT_LENGTH))
    assert known_to_the_door(model) == CONTEXT_LENGTH
