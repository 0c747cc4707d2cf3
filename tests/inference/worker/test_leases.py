"""What a worker believes it owns, and how it keeps that."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from inference.dispatch.claims import claim
from inference.dispatch.queue import DispatchQueue
from inference.worker.holdings import Holdings
from inference.worker.lease_thread import LeaseRenewal
from inference.worker.metrics import WorkerMetrics
from inference.worker.progress import Progress
from inference.worker.requests import Drop
from tests.inference.dispatch.conftest import let_lease_lapse, make_task

A, B, C = "a" * 32, "b" * 32, "c" * 32


class Stalled(Progress):
    """A tick that has been running for so long."""

    def __init__(self, age_s: float) -> None:
        super().__init__()
        self.stalled_s = age_s

    @property
    def age_s(self) -> float:
        return self.stalled_s


def renewal(
    client: redis.Redis, holdings: Holdings, dropped: list[Drop], progress: Progress | None = None
) -> LeaseRenewal:
    return LeaseRenewal(
        client, "worker", 5.0, holdings, progress or Stalled(0.0), WorkerMetrics(), dropped.append
    )


def claimed(client: redis.Redis, lease_s: float = 5.0) -> tuple[str, int]:
    DispatchQueue(client).enqueue(make_task(model="tiny"))
    got = claim(client, "worker", "tiny", lease_s).claim
    assert got is not None
    return got.task.generation, got.epoch


def lease_of(client: redis.Redis, generation: str) -> float:
    score = client.zscore("dispatch:leases:tiny", generation)
    assert isinstance(score, float)
    return score


def test_renewal_lengthens_every_lease_that_is_held(valkey: redis.Redis) -> None:
    holdings, dropped = Holdings(4, 5.0), list[Drop]()
    held = [claimed(valkey) for _ in range(2)]
    for generation, epoch in held:
        valkey.zincrby("dispatch:leases:tiny", -4000, generation)
        holdings.add(generation, epoch, time.monotonic() - 4.9, lane_rank=1, occupies_slot=True)
    before = [lease_of(valkey, generation) for generation, _ in held]
    renewal(valkey, holdings, dropped)()
    assert all(
        lease_of(valkey, generation) >= old + 3000 for (generation, _), old in zip(held, before, strict=True)
    )
    assert all(holdings.leased(*one) for one in held)
    assert dropped == []


def test_what_is_no_longer_ours_is_dropped_by_its_epoch(valkey: redis.Redis) -> None:
    holdings, dropped = Holdings(4, 5.0), list[Drop]()
    generation, epoch = claimed(valkey)
    holdings.add(generation, epoch, time.monotonic(), lane_rank=1, occupies_slot=True)
    let_lease_lapse(valkey, generation, "tiny")
    claimed(valkey)  # returns it to the queue and takes it, or the new one
    claimed(valkey)
    renewal(valkey, holdings, dropped)()
    assert dropped == [Drop({generation: epoch})]


def test_what_is_lost_is_told_and_counted_once_however_long_it_takes_to_let_go_of_it(
    valkey: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    holdings, dropped, metrics = Holdings(4, 5.0), list[Drop](), WorkerMetrics()
    renew = LeaseRenewal(valkey, "worker", 5.0, holdings, Stalled(0.0), metrics, dropped.append)
    holdings.add(A, 1, time.monotonic(), lane_rank=1, occupies_slot=True)
    renew()
    renew()
    holdings.add(B, 1, time.monotonic(), lane_rank=1, occupies_slot=True)
    renew()
    assert dropped == [Drop({A: 1}), Drop({A: 1}), Drop({A: 1, B: 1})], "asked for until it is done"
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    holdings.add(A, 2, time.monotonic(), lane_rank=1, occupies_slot=True)
    renew()
    assert len(caplog.records) == 3, "another claim of it is another loss"
    assert metrics.leases_lost.value == 3


def test_ticks_that_stall_again_and_again_are_told_once_until_they_have_not_for_a_while(
    valkey: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    progress = Stalled(0.0)
    renew = renewal(valkey, Holdings(4, 5.0), [], progress)

    def run(*ages_s: float) -> int:
        caplog.clear()
        for age_s in ages_s:
            progress.stalled_s = age_s
            renew()
        return sum(record.levelname == "ERROR" for record in caplog.records)

    assert run(5.1, 5.9, 0.1, 5.1, 0.1, 0.2, 5.1) == 1
    assert run(*[0.1] * 39, 5.1) == 0
    assert run(*[0.1] * 40, 5.1) == 1


def test_no_lease_is_renewed_while_ticks_stand_still(valkey: redis.Redis) -> None:
    holdings, dropped = Holdings(4, 5.0), list[Drop]()
    generation, epoch = claimed(valkey)
    holdings.add(generation, epoch, time.monotonic(), lane_rank=1, occupies_slot=True)
    before = lease_of(valkey, generation)
    renewal(valkey, holdings, dropped, Stalled(5.1))()
    assert lease_of(valkey, generation) == before


def test_a_tick_that_takes_half_a_lease_keeps_it_and_is_told_once(
    valkey: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    holdings, dropped = Holdings(4, 5.0), list[Drop]()
    generation, epoch = claimed(valkey, lease_s=1.0)
    holdings.add(generation, epoch, time.monotonic(), lane_rank=1, occupies_slot=True)
    before = lease_of(valkey, generation)
    renew = renewal(valkey, holdings, dropped, Stalled(3.0))
    renew()
    renew()
    assert lease_of(valkey, generation) > before
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_slot_is_free_when_its_generation_has_ended_and_the_lease_lasts_until_it_is_settled() -> None:
    holdings = Holdings(1, 5.0)
    holdings.add(A, 1, time.monotonic(), lane_rank=1, occupies_slot=True, bytes_=7)
    assert holdings.occupied() == (1, 7)
    holdings.vacate(A, 1)
    assert holdings.occupied() == (0, 0)
    assert holdings.epochs() == {A: 1}
    holdings.release(A, 1)
    assert holdings.epochs() == {}


def test_a_claim_into_room_that_others_are_to_leave_is_counted_beside_them_and_takes_nothing_yet() -> None:
    holdings = Holdings(2, 5.0)
    now = time.monotonic()
    for generation, bytes_ in ((A, 7), (B, 5)):
        holdings.add(generation, 1, now, lane_rank=1, occupies_slot=True, bytes_=bytes_, tenant=generation)
    assert holdings.given(leaving={A: 1, B: 2}) == (5,), "another claim of it stays"
    assert holdings.reserved_since() == (2 * 7, {A, B})
    holdings.add(C, 1, now, lane_rank=0, occupies_slot=True, bytes_=9, tenant=C, awaits_room=True)
    assert holdings.given() == (7, 5, 9)
    assert holdings.reserved_since() == (2 * 7, frozenset())
    holdings.take_room(C, 2)
    assert holdings.reserved_since() == (2 * 7, frozenset()), "another claim's"
    holdings.take_room(C, 1)
    assert holdings.reserved_since() == (3 * 9, {C})
    holdings.release(A, 1)
    assert holdings.occupied() == (2, 2 * 9)


def test_an_earlier_claims_end_does_not_touch_the_later_one() -> None:
    holdings = Holdings(1, 5.0)
    holdings.add(A, 1, time.monotonic(), lane_rank=1, occupies_slot=True)
    holdings.add(A, 2, time.monotonic(), lane_rank=1, occupies_slot=True)
    holdings.vacate(A, 1)
    holdings.release(A, 1)
    assert holdings.occupied()[0] == 1
    assert holdings.holds(A, 2)
    assert not holdings.leased(A, 1)


def test_a_lease_counts_from_when_it_was_asked_for() -> None:
    holdings = Holdings(2, 60.0)
    holdings.add(A, 1, time.monotonic() - 60.0, lane_rank=1, occupies_slot=True)
    holdings.add(B, 1, time.monotonic() - 1.0, lane_rank=1, occupies_slot=True)
    assert not holdings.leased(A, 1)
    assert holdings.leased(B, 1)
    holdings.renewed({A: 1}, time.monotonic())
    assert holdings.leased(A, 1)


def test_more_slots_and_freed_ones_wake_whoever_waits_for_room() -> None:
    makes_room: list[Callable[[Holdings], None]] = [
        lambda holdings: holdings.resize(2),
        lambda holdings: holdings.release(A, 1),
        lambda holdings: holdings.vacate(A, 1),
    ]
    for make_room in makes_room:
        holdings = Holdings(1, 5.0)
        holdings.add(A, 1, time.monotonic(), lane_rank=1, occupies_slot=True)
        with ThreadPoolExecutor(1) as pool:
            waiter = pool.submit(holdings.wait_for_change, holdings.changes, 30)
            make_room(holdings)
            assert waiter.result(20)


def test_fewer_slots_take_nothing_away() -> None:
    holdings = Holdings(3, 5.0)
    for generation in (A, B):
        holdings.add(generation, 1, time.monotonic(), lane_rank=1, occupies_slot=True)
    holdings.resize(1)
    assert holdings.epochs() == {A: 1, B: 1}
    holdings.release(A, 1)
    assert holdings.occupied()[0] == 1
