"""Delivery: each follower sees each event once, in order, whatever happens to the stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import redis

from inference.dispatch import claims, follower, keys, presence, publishing
from inference.dispatch.delivery import (
    Delivery,
    Follower,
    LogExpired,
    RefillReason,
    StreamDiverged,
    delivery,
)
from inference.dispatch.queue import DispatchQueue
from inference.messages import (
    CancelReason,
    Delta,
    End,
    EndState,
    PrefillProgress,
    Publication,
    TickEntry,
    encode,
)
from tests.inference.dispatch.conftest import DEADLINE_S, MODEL, delta, end, let_lease_lapse, make_task


@pytest.fixture
async def deliver(valkey: redis.Redis) -> AsyncIterator[Delivery]:
    # What is published here is settled by nobody.
    delivery().settled_within_s = 0.0
    yield delivery()
    await delivery().aclose()


@pytest.fixture
def generation(queue: DispatchQueue, valkey: redis.Redis) -> str:
    """One that ``worker`` runs in epoch 1."""
    task = make_task()
    queue.enqueue(task)
    assert claims.claim(valkey, "worker", MODEL, 30).claim is not None
    return task.generation


def publish(client: redis.Redis, generation: str, *publications: Publication, epoch: int = 1) -> None:
    tick = [(generation, epoch, publication) for publication in publications]
    assert publishing.publish(client, "worker", tick).refused == set()


async def rest_of(stream: Follower) -> list[Publication]:
    async with asyncio.timeout(DEADLINE_S):
        return [publication async for publication in stream]


async def next_of(stream: Follower) -> Publication:
    async with asyncio.timeout(DEADLINE_S):
        return await anext(stream)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.01)


async def until_reading(deliver: Delivery, client: redis.Redis) -> None:
    """Until the stream is being read, from a position before which all followers look at their logs."""
    task = make_task(model="probe")
    DispatchQueue(client).enqueue(task)
    tick = TickEntry(worker="probe", publications=[(task.generation, PrefillProgress(done=0, total=1))])
    async with deliver.follow(task.generation) as probe, asyncio.timeout(DEADLINE_S):
        while await probe.next(0.02) is None:
            client.xadd(keys.STREAM, {"tick": encode(tick)})


async def test_what_was_published_before_is_replayed_and_what_comes_after_follows(
    deliver: Delivery, valkey: redis.Redis, generation: str
) -> None:
    publish(valkey, generation, delta(1), delta(2))
    async with deliver.follow(generation) as stream:
        assert [await next_of(stream), await next_of(stream)] == [delta(1), delta(2)]
        publish(valkey, generation, delta(3))
        publish(valkey, generation, end(4))
        assert await rest_of(stream) == [delta(3), end(4)]
    assert deliver.following == 0


async def test_the_end_waits_for_the_settlement_and_nothing_is_lost_by_short_time_outs(
    deliver: Delivery, valkey: redis.Redis, generation: str
) -> None:
    deliver.settled_within_s = DEADLINE_S
    publish(valkey, generation, delta(1))
    async with deliver.follow(generation) as stream:
        assert await next_of(stream) == delta(1)
        publish(valkey, generation, end(2))
        for _ in range(5):
            assert await stream.next(0.02) is None
        claims.acknowledge(valkey, generation, 1, 0)
        assert await rest_of(stream) == [end(2)]


async def test_the_end_comes_although_nobody_settles(
    deliver: Delivery, valkey: redis.Redis, generation: str
) -> None:
    """The answer is whole; that the database is away is no reason to keep it."""
    deliver.settled_within_s = 0.05
    async with deliver.follow(generation) as stream:
        publish(valkey, generation, delta(1), end(2))
        assert await rest_of(stream) == [delta(1), end(2)]


async def test_a_follower_that_comes_back_gets_what_it_has_not_seen(
    deliver: Delivery, valkey: redis.Redis, generation: str
) -> None:
    publish(valkey, generation, delta(1), delta(2), delta(3), end(4))
    async with deliver.follow(generation, after=2, epoch=1) as stream:
        assert await rest_of(stream) == [delta(3), end(4)]
    async with deliver.follow(generation, after=4) as stream:
        assert await rest_of(stream) == []


async def test_many_followers_each_get_everything_once(
    deliver: Delivery, valkey: redis.Redis, generation: str
) -> None:
    """They join at any time while the worker publishes."""

    async def follow(after: int) -> list[int]:
        async with deliver.follow(generation, after) as stream:
            return [entry.seq for entry in await rest_of(stream) if isinstance(entry, Delta | End)]

    followers = []
    for seq in range(1, 301):
        if seq % 10 == 1:
            followers.append((seq - 1, asyncio.create_task(follow(seq - 1))))
        publish(valkey, generation, delta(seq))
        await asyncio.sleep(0)
    publish(valkey, generation, end(301))
    for after, follower_ in followers:
        assert await follower_ == list(range(after + 1, 302))


async def test_progress_comes_as_it_is(deliver: Delivery, valkey: redis.Redis, generation: str) -> None:
    async with deliver.follow(generation) as stream:
        await until_reading(deliver, valkey)
        publish(valkey, generation, PrefillProgress(done=1, total=2))
        assert await next_of(stream) == PrefillProgress(done=1, total=2)


async def test_a_queued_generation_is_followed_until_it_ends(
    deliver: Delivery, queue: DispatchQueue, valkey: redis.Redis
) -> None:
    task = make_task()
    queue.enqueue(task)
    async with deliver.follow(task.generation) as stream:
        assert await stream.next(0.05) is None
        epoch = queue.withdraw(task.generation, CancelReason.CLIENT_REQUESTED).epoch
        last = end(1, epoch, state=EndState.CANCELLED)
        publishing.append_end(valkey, task.generation, epoch, last)
        assert await rest_of(stream) == [last]


async def test_waiting_with_a_time_out_loses_nothing(
    deliver: Delivery, valkey: redis.Redis, generation: str
) -> None:
    async with deliver.follow(generation) as stream:
        seen = []
        for seq in range(1, 51):
            while (publication := await stream.next(0.001)) is not None:
                seen.append(publication)
            publish(valkey, generation, delta(seq))
        publish(valkey, generation, end(51))
        assert seen + await rest_of(stream) == [*(delta(seq) for seq in range(1, 51)), end(51)]


async def test_a_stream_goes_on_across_owners(
    deliver: Delivery, valkey: redis.Redis, generation: str
) -> None:
    async with deliver.follow(generation) as stream:
        publish(valkey, generation, delta(1))
        assert await next_of(stream) == delta(1)
        let_lease_lapse(valkey, generation)
        claims.claim(valkey, "worker", MODEL, 30)
        publish(valkey, generation, delta(2, epoch=2), end(3, epoch=2), epoch=2)
        assert await rest_of(stream) == [delta(2, epoch=2), end(3, epoch=2)]


async def test_a_gap_in_the_stream_is_filled_from_the_log(
    deliver: Delivery, valkey: redis.Redis, generation: str
) -> None:
    """The stream lost an entry (trimmed while the reader was slow): the log has it."""
    async with deliver.follow(generation) as stream:
        publish(valkey, generation, delta(1))
        assert await next_of(stream) == delta(1)
        await until_reading(deliver, valkey)
        while stream._refill is not None or stream._reading is not None:
            assert await stream.next(0.1) is None
        lost_tick(valkey, generation, delta(2))
        publish(valkey, generation, delta(3), end(4))
        assert await rest_of(stream) == [delta(2), delta(3), end(4)]
    assert deliver.refills[RefillReason.GAP] == 1


async def test_an_idle_follower_looks_at_the_log_so_that_nothing_depends_on_the_stream(
    deliver: Delivery, valkey: redis.Redis, generation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "IDLE_S", 0.05)
    async with deliver.follow(generation) as stream:
        while not deliver.refills[RefillReason.IDLE]:
            assert await stream.next(0.1) is None
        lost_tick(valkey, generation, delta(1))
        lost_tick(valkey, generation, end(2))
        assert await rest_of(stream) == [delta(1), end(2)]
    assert deliver.refills[RefillReason.IDLE] >= 1


async def test_a_slow_follower_costs_a_bounded_queue_and_misses_nothing(
    deliver: Delivery, valkey: redis.Redis, generation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "WAITING_LIMIT", 10)
    monkeypatch.setattr(follower, "EXCERPT_ENTRIES", 7)
    async with deliver.follow(generation) as slow, deliver.follow(generation) as quick:
        publish(valkey, generation, delta(1))
        assert await next_of(slow) == await next_of(quick) == delta(1)
        for seq in range(2, 100):
            publish(valkey, generation, delta(seq))
            assert await next_of(quick) == delta(seq)
            assert len(slow._arrived) <= 10
        publish(valkey, generation, end(100))
        assert await rest_of(slow) == [*(delta(seq) for seq in range(2, 100)), end(100)]
    assert deliver.refills[RefillReason.OVERFLOW] >= 1


async def test_a_long_log_is_replayed_in_bounded_parts(
    deliver: Delivery, valkey: redis.Redis, generation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "EXCERPT_ENTRIES", 16)
    publish(valkey, generation, *(delta(seq) for seq in range(1, 200)), end(200))
    async with deliver.follow(generation) as stream:
        seen = []
        async for entry in stream:
            seen.append(entry)
            assert len(stream._replay) <= 16
    assert seen == [*(delta(seq) for seq in range(1, 200)), end(200)]


async def test_an_older_epochs_entry_is_never_handed_out(
    deliver: Delivery, valkey: redis.Redis, generation: str
) -> None:
    async with deliver.follow(generation) as stream:
        let_lease_lapse(valkey, generation)
        claims.claim(valkey, "worker", MODEL, 30)
        publish(valkey, generation, delta(1, epoch=2), epoch=2)
        assert await next_of(stream) == delta(1, epoch=2)
        for ghost in (delta(1, epoch=1), delta(2, epoch=1)):
            stream.offer(ghost)
        publish(valkey, generation, end(2, epoch=2), epoch=2)
        assert await rest_of(stream) == [end(2, epoch=2)]


async def test_an_entry_that_cannot_be_read_costs_nobody_an_event(
    deliver: Delivery, valkey: redis.Redis, generation: str
) -> None:
    async with deliver.follow(generation) as stream:
        publish(valkey, generation, delta(1))
        assert await next_of(stream) == delta(1)
        valkey.xadd(keys.STREAM, {"tick": b"\xc1 of another version"})
        publish(valkey, generation, end(2))
        assert await rest_of(stream) == [end(2)]


async def test_expired_events_are_said_to_be_expired(
    deliver: Delivery, valkey: redis.Redis, generation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(valkey, generation, delta(1), end(2))
    claims.acknowledge(valkey, generation, 1, 0)
    valkey.delete(keys.generation(generation), keys.log(generation))
    async with deliver.follow(generation, after=1) as stream:
        with pytest.raises(LogExpired):
            await next_of(stream)


async def test_of_what_leaves_no_trace_a_follower_gives_up_after_two_sweeps(
    deliver: Delivery, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with deliver.follow(make_task().generation) as stream:
        assert await stream.next(0.05) is None
        stream._unknown_until = 0.0
        with pytest.raises(LogExpired):
            await next_of(stream)


async def test_what_was_let_go_of_without_an_end_is_not_waited_for(
    deliver: Delivery, valkey: redis.Redis, generation: str
) -> None:
    """The database had settled it, Valkey had lost its log."""
    claims.acknowledge(valkey, generation, 1, 0)
    async with deliver.follow(generation) as stream:
        with pytest.raises(LogExpired):
            await next_of(stream)


async def test_a_follower_ahead_of_the_log_is_told_so(
    deliver: Delivery, valkey: redis.Redis, generation: str
) -> None:
    publish(valkey, generation, delta(1))
    async with deliver.follow(generation, after=2) as stream:
        with pytest.raises(StreamDiverged, match=generation):
            await next_of(stream)


async def test_a_log_that_has_grown_again_is_never_mixed_with_what_was_seen(
    deliver: Delivery, valkey: redis.Redis, generation: str
) -> None:
    """Its last entries were lost and written anew by another owner, as many or more."""
    publish(valkey, generation, delta(1), delta(2))
    async with deliver.follow(generation) as stream:
        assert [await next_of(stream), await next_of(stream)] == [delta(1), delta(2)]
        valkey.rpop(keys.log(generation))
        let_lease_lapse(valkey, generation)
        claims.claim(valkey, "worker", MODEL, 30)
        publish(valkey, generation, delta(2, epoch=2), delta(3, epoch=2), epoch=2)
        with pytest.raises(StreamDiverged):
            await next_of(stream)
    async with deliver.follow(generation, after=2, epoch=1) as stream:
        with pytest.raises(StreamDiverged):
            await next_of(stream)


async def test_what_is_followed_counts_as_attached(
    deliver: Delivery, valkey: redis.Redis, generation: str
) -> None:
    async with deliver.follow(generation):
        await until(lambda: presence.absent(valkey, [generation]) == set())


async def test_a_reader_task_that_failed_is_started_again(
    deliver: Delivery, valkey: redis.Redis, generation: str
) -> None:
    async with deliver.follow(generation) as stream:
        for task in deliver._tasks:
            task.cancel()
        await until(lambda: all(task.done() for task in deliver._tasks))
        publish(valkey, generation, delta(1))
        async with deliver.follow(generation) as other:
            assert await next_of(other) == delta(1)
            publish(valkey, generation, end(2))
            assert await rest_of(stream) == [delta(1), end(2)]


def test_each_event_loop_has_its_own_delivery(valkey: redis.Redis, generation: str) -> None:
    async def follow() -> tuple[Delivery, list[Publication]]:
        async with delivery().follow(generation) as stream:
            return delivery(), await rest_of(stream)

    publish(valkey, generation, delta(1), end(2))
    claims.acknowledge(valkey, generation, 1, 0)
    first, seen = asyncio.run(follow())
    second, seen_again = asyncio.run(follow())
    assert first is not second
    assert seen == seen_again == [delta(1), end(2)]


def lost_tick(client: redis.Redis, generation: str, entry: Delta | End) -> None:
    """An entry that is in the log, and has gone from the stream before it was read."""
    client.rpush(keys.log(generation), encode(entry))
