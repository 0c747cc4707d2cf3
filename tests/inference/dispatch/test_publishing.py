"""Publishing: fenced appends, one stream entry, and the cancels that wait."""

from __future__ import annotations

import pytest
import redis

from inference.dispatch import claims, keys, publishing, token_log
from inference.dispatch.queue import DispatchQueue
from inference.messages import CancelReason, PrefillProgress, TickEntry, tick_entry_decoder
from tests.inference.dispatch.conftest import MODEL, delta, end, make_task


@pytest.fixture
def generation(queue: DispatchQueue, valkey: redis.Redis) -> str:
    """One that ``worker`` runs in epoch 1."""
    task = make_task()
    queue.enqueue(task)
    assert claims.claim(valkey, "worker", MODEL, 30).claim is not None
    return task.generation


def ticks(client: redis.Redis) -> list[TickEntry]:
    return [tick_entry_decoder.decode(fields[b"tick"]) for _, fields in client.xrange(keys.STREAM)]


def test_a_tick_goes_to_the_logs_and_to_one_stream_entry(queue: DispatchQueue, valkey: redis.Redis) -> None:
    tasks = [make_task() for _ in range(20)]
    for task in tasks:
        queue.enqueue(task)
        claims.claim(valkey, "worker", MODEL, 30)
    tick = [(task.generation, 1, delta(1)) for task in tasks]
    assert publishing.publish(valkey, "worker", tick).refused == set()
    assert all(token_log.read(valkey, task.generation) == [delta(1)] for task in tasks)
    assert ticks(valkey) == [
        TickEntry(worker="worker", publications=[(task.generation, delta(1)) for task in tasks])
    ]


def test_one_generation_may_publish_several_entries_in_a_tick(valkey: redis.Redis, generation: str) -> None:
    tick = [(generation, 1, delta(1)), (generation, 1, delta(2)), (generation, 1, end(3))]
    assert publishing.publish(valkey, "worker", tick).refused == set()
    assert token_log.read(valkey, generation) == [delta(1), delta(2), end(3)]
    assert token_log.read(valkey, generation, after=2) == [end(3)]


def test_progress_is_streamed_and_not_logged(valkey: redis.Redis, generation: str) -> None:
    progress = PrefillProgress(done=256, total=1000)
    assert publishing.publish(valkey, "worker", [(generation, 1, progress)]).refused == set()
    assert token_log.read(valkey, generation) == []
    assert ticks(valkey) == [TickEntry(worker="worker", publications=[(generation, progress)])]


def test_a_ghosts_progress_is_refused(valkey: redis.Redis, generation: str) -> None:
    progress = PrefillProgress(done=256, total=1000)
    assert publishing.publish(valkey, "ghost", [(generation, 1, progress)]).refused == {generation}
    assert ticks(valkey) == []


def test_only_what_is_accepted_is_streamed(
    queue: DispatchQueue, valkey: redis.Redis, generation: str
) -> None:
    unknown = make_task().generation
    outcome = publishing.publish(valkey, "worker", [(unknown, 1, delta(1)), (generation, 1, delta(1))])
    assert outcome.refused == {unknown}
    assert ticks(valkey) == [TickEntry(worker="worker", publications=[(generation, delta(1))])]
    assert token_log.read(valkey, unknown) == []


@pytest.mark.parametrize("seq", [0, 2, 3])
def test_an_entry_that_is_not_the_next_is_refused(valkey: redis.Redis, generation: str, seq: int) -> None:
    assert publishing.publish(valkey, "worker", [(generation, 1, delta(seq))]).refused == {generation}
    assert token_log.read(valkey, generation) == []


def test_another_entry_under_a_seq_that_is_taken_is_refused(valkey: redis.Redis, generation: str) -> None:
    publishing.publish(valkey, "worker", [(generation, 1, delta(1, text="one"))])
    outcome = publishing.publish(valkey, "worker", [(generation, 1, delta(1, text="other"))])
    assert outcome.refused == {generation}
    assert token_log.read(valkey, generation) == [delta(1, text="one")]


def test_a_tick_whose_answer_was_lost_may_be_repeated(valkey: redis.Redis, generation: str) -> None:
    tick = [(generation, 1, delta(1)), (generation, 1, delta(2))]
    publishing.publish(valkey, "worker", tick)
    assert publishing.publish(valkey, "worker", tick).refused == set()
    assert token_log.read(valkey, generation) == [delta(1), delta(2)]
    assert len(ticks(valkey)) == 1


def test_nothing_is_appended_after_the_end(valkey: redis.Redis, generation: str) -> None:
    publishing.publish(valkey, "worker", [(generation, 1, end(1))])
    assert publishing.publish(valkey, "worker", [(generation, 1, delta(2))]).refused == {generation}
    assert publishing.publish(valkey, "worker", [(generation, 1, end(1))]).refused == set()


def test_a_cancel_is_told_with_every_tick_until_the_worker_lets_go(
    queue: DispatchQueue, valkey: redis.Redis, generation: str
) -> None:
    queue.withdraw(generation, CancelReason.ACCESS_REVOKED)
    for _ in range(2):
        assert publishing.publish(valkey, "worker", []).cancelled == {generation: CancelReason.ACCESS_REVOKED}
    publishing.publish(valkey, "worker", [(generation, 1, end(1))])
    claims.acknowledge(valkey, generation, 1, 0)
    assert publishing.publish(valkey, "worker", []).cancelled == {}


def test_cancels_are_told_to_their_own_worker_only(
    queue: DispatchQueue, valkey: redis.Redis, generation: str
) -> None:
    queue.withdraw(generation, CancelReason.CLIENT_REQUESTED)
    assert publishing.publish(valkey, "another", []).cancelled == {}


def test_polling_for_cancels_writes_nothing(valkey: redis.Redis, generation: str) -> None:
    publishing.publish(valkey, "worker", [])
    assert valkey.exists(keys.STREAM) == 0


def test_the_stream_is_bounded(valkey: redis.Redis, generation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "STREAM_ENTRIES", 100)
    for seq in range(1, 501):
        publishing.publish(valkey, "worker", [(generation, 1, delta(seq))])
    assert valkey.xlen(keys.STREAM) <= 300  # trimmed by whole nodes
    assert len(token_log.read(valkey, generation)) == 500
