"""Valkey killed, restarted, emptied: what is in the append-only file is all there, and everybody finds back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from inference.dispatch import claims, keys, publishing, token_log
from inference.dispatch.delivery import Delivery, Follower, RefillReason, StreamDiverged
from inference.dispatch.queue import DispatchQueue
from inference.dispatch.wake import WakeListener
from inference.messages import Publication
from tests.inference.dispatch.conftest import (
    DEADLINE_S,
    MODEL,
    OwnValkey,
    delta,
    end,
    let_lease_lapse,
    make_task,
    wait_until,
)


def test_queue_leases_and_logs_survive_a_killed_valkey(own_valkey: OwnValkey) -> None:
    client = own_valkey.client()
    queue = DispatchQueue(client)
    running, waiting, low = make_task(), make_task(tenant="other"), make_task(rank=2)
    for task in (running, waiting, low):
        queue.enqueue(task)
    claims.claim(client, "worker", MODEL, 30)
    publishing.publish(client, "worker", [(running.generation, 1, delta(1))])

    own_valkey.crash()
    own_valkey.start()

    assert queue.depths(MODEL) == {1: 1, 2: 1}
    assert claims.renew(client, "worker", {running.generation: 1}, 30) == set()
    assert publishing.publish(client, "worker", [(running.generation, 1, delta(2))]).refused == set()
    assert token_log.read(client, running.generation) == [delta(1), delta(2)]
    assert not queue.enqueue(running)
    order = [claims.claim(client, "worker", MODEL, 30).claim for _ in range(2)]
    assert [claim.task for claim in order if claim] == [waiting, low]


def test_leases_go_on_lapsing_after_a_restart(own_valkey: OwnValkey) -> None:
    client = own_valkey.client()
    task = make_task()
    DispatchQueue(client).enqueue(task)
    claims.claim(client, "worker", MODEL, 0.2)
    own_valkey.crash()
    own_valkey.start()
    resumed: list[claims.Claim] = []

    def claimed() -> bool:
        claim = claims.claim(client, "other", MODEL, 30).claim
        if claim is not None:
            resumed.append(claim)
        return claim is not None

    wait_until(claimed)
    assert (resumed[0].task, resumed[0].epoch) == (task, 2)


def test_a_wiped_valkey_is_filled_by_the_sweep_above_the_databases_epochs(own_valkey: OwnValkey) -> None:
    client = own_valkey.client()
    queue = DispatchQueue(client)
    task = make_task()
    queue.enqueue(task)
    claims.claim(client, "worker", MODEL, 30)
    publishing.publish(client, "worker", [(task.generation, 1, delta(1))])

    own_valkey.crash()
    own_valkey.forget()
    own_valkey.start()

    assert queue.contains([task.generation]) == set()
    assert publishing.publish(client, "worker", [(task.generation, 1, delta(2))]).refused == {task.generation}
    assert queue.enqueue(task, epoch_floor=1)
    claim = claims.claim(client, "worker", MODEL, 30).claim
    assert claim is not None
    assert (claim.task, claim.epoch, claim.log, claim.log_lost) == (task, 2, [], True)


def test_a_listener_hears_again_after_a_restart(own_valkey: OwnValkey) -> None:
    client = own_valkey.client()
    queue = DispatchQueue(client)
    with WakeListener(client, MODEL) as listener:
        own_valkey.crash()
        own_valkey.start()

        def woken() -> bool:
            queue.enqueue(make_task())
            return listener.wait(0.05)

        wait_until(woken)


async def in_thread(call: Callable[[], object]) -> None:
    """Starting a server blocks: the followers' event loop must run meanwhile."""
    await asyncio.get_running_loop().run_in_executor(None, call)


async def within_deadline(awaitable: Awaitable[Publication]) -> Publication:
    async with asyncio.timeout(DEADLINE_S):
        return await awaitable


async def rest_of(stream: Follower) -> list[Publication]:
    async with asyncio.timeout(DEADLINE_S):
        return [publication async for publication in stream]


@pytest.fixture
def generation(own_valkey: OwnValkey) -> str:
    """One that ``worker`` runs in epoch 1."""
    client = own_valkey.client()
    task = make_task()
    DispatchQueue(client).enqueue(task)
    claims.claim(client, "worker", MODEL, 60)
    return task.generation


async def test_an_open_stream_goes_on_after_a_killed_valkey(own_valkey: OwnValkey, generation: str) -> None:
    client = own_valkey.client()
    deliver = Delivery(own_valkey.async_client, settled_within_s=0.0)
    async with deliver.follow(generation) as stream:
        publishing.publish(client, "worker", [(generation, 1, delta(1))])
        assert await within_deadline(anext(stream)) == delta(1)

        await in_thread(own_valkey.crash)
        assert await stream.next(0.1) is None
        await in_thread(own_valkey.start)

        publishing.publish(client, "worker", [(generation, 1, delta(2)), (generation, 1, end(3))])
        assert await rest_of(stream) == [delta(2), end(3)]
    assert deliver.refills[RefillReason.RECONNECTED] >= 1
    await deliver.aclose()


async def test_followers_find_back_by_the_stream_and_not_only_by_looking_at_the_log(
    own_valkey: OwnValkey, generation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inference.dispatch.follower.IDLE_S", 3600.0)
    client = own_valkey.client()
    deliver = Delivery(own_valkey.async_client, settled_within_s=0.0)
    async with deliver.follow(generation) as stream:
        publishing.publish(client, "worker", [(generation, 1, delta(1))])
        assert await within_deadline(anext(stream)) == delta(1)
        for seq in (2, 3):
            await in_thread(own_valkey.crash)
            await in_thread(own_valkey.start)
            publishing.publish(client, "worker", [(generation, 1, delta(seq))])
            assert await within_deadline(anext(stream)) == delta(seq)
    await deliver.aclose()


async def test_a_stream_opened_while_valkey_is_down_starts_when_it_is_back(
    own_valkey: OwnValkey, generation: str
) -> None:
    client = own_valkey.client()
    publishing.publish(client, "worker", [(generation, 1, delta(1)), (generation, 1, end(2))])
    own_valkey.crash()
    deliver = Delivery(own_valkey.async_client, settled_within_s=0.0)
    async with deliver.follow(generation) as stream:
        assert await stream.next(0.1) is None
        await in_thread(own_valkey.start)
        assert await rest_of(stream) == [delta(1), end(2)]
    await deliver.aclose()


async def test_a_reader_ahead_of_a_log_that_lost_its_end_is_told_so_on_reconnecting(
    own_valkey: OwnValkey, generation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power loss: the append-only file ends before what the reader has seen."""
    monkeypatch.setattr("inference.dispatch.follower.IDLE_S", 3600.0)
    client = own_valkey.client()
    publishing.publish(client, "worker", [(generation, 1, delta(1))])
    deliver = Delivery(own_valkey.async_client, settled_within_s=0.0)
    async with deliver.follow(generation) as stream:
        assert await within_deadline(anext(stream)) == delta(1)
        while not deliver.refills[RefillReason.RECONNECTED]:
            assert await stream.next(0.1) is None
        client.rpop(keys.log(generation))
        await in_thread(own_valkey.crash)
        await in_thread(own_valkey.start)
        with pytest.raises(StreamDiverged):
            await within_deadline(anext(stream))
    await deliver.aclose()


async def test_a_reader_whose_log_was_wiped_is_told_so(own_valkey: OwnValkey, generation: str) -> None:
    client = own_valkey.client()
    publishing.publish(client, "worker", [(generation, 1, delta(1))])
    deliver = Delivery(own_valkey.async_client, settled_within_s=0.0)
    async with deliver.follow(generation) as stream:
        assert await within_deadline(anext(stream)) == delta(1)
        await in_thread(own_valkey.crash)
        own_valkey.forget()
        await in_thread(own_valkey.start)
        with pytest.raises(StreamDiverged):
            await within_deadline(anext(stream))
    await deliver.aclose()


async def test_a_reader_that_had_seen_nothing_survives_a_wiped_valkey(own_valkey: OwnValkey) -> None:
    client = own_valkey.client()
    queue = DispatchQueue(client)
    task = make_task()
    queue.enqueue(task)
    deliver = Delivery(own_valkey.async_client, settled_within_s=0.0)
    async with deliver.follow(task.generation) as stream:
        assert await stream.next(0.1) is None
        await in_thread(own_valkey.crash)
        own_valkey.forget()
        await in_thread(own_valkey.start)
        assert await stream.next(0.1) is None
        queue.enqueue(task)
        claims.claim(client, "worker", MODEL, 60)
        publishing.publish(client, "worker", [(task.generation, 1, delta(1)), (task.generation, 1, end(2))])
        assert await rest_of(stream) == [delta(1), end(2)]
    await deliver.aclose()


def test_the_claim_of_a_restarted_worker_resumes_from_the_log(own_valkey: OwnValkey, generation: str) -> None:
    """All of it at once: worker and Valkey killed, the lease runs out, another worker takes over."""
    client = own_valkey.client()
    publishing.publish(client, "worker", [(generation, 1, delta(1)), (generation, 1, delta(2))])
    own_valkey.crash()
    own_valkey.start()
    let_lease_lapse(client, generation)
    claim = claims.claim(client, "restarted", MODEL, 30).claim
    assert claim is not None
    assert claim.log == [delta(1), delta(2)]
    assert publishing.publish(client, "restarted", [(generation, 2, delta(3, epoch=2))]).refused == set()
