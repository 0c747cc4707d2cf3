"""Several workers claim at the same time: nobody gets what another has, and the order in which Valkey grants is one
that the rules allow, whoever claims."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inference.dispatch import claims, functions
from inference.dispatch.queue import DispatchQueue
from inference.messages import GenerationTask
from inference.scheduling.fair_share import SCALE
from tests.inference.dispatch.conftest import MODEL, make_task

WORKERS = 4
TENANTS = ("a", "b")


class Grants:
    """Watches the one step in which Valkey grants a claim: in which order which generations went."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self._apply = functions.claim
        self._one_at_a_time = threading.Lock()

    def __call__(self, *arguments: Any) -> Any:
        with self._one_at_a_time:
            granted = self._apply(*arguments)
            if granted is not None:
                self.order.append(arguments[8])
        return granted


def claim_all(client: redis.Redis, count: int, cap: int) -> tuple[list[str], list[str]]:
    """What the workers got, and in which order it was granted, once nothing waits any more."""
    begin, grants = threading.Barrier(WORKERS), Grants()

    def work(number: int) -> list[str]:
        got = list[str]()
        begin.wait(10)
        while len(grants.order) < count:
            claim = claims.claim(client, f"worker-{number}", MODEL, 60, cap=cap).claim
            if claim is not None:
                got.append(claim.task.generation)
        return got

    with (
        pytest.MonkeyPatch.context() as patch,
        ThreadPoolExecutor(WORKERS) as workers,
    ):
        patch.setattr(functions, "claim", grants)
        got = [generation for one in workers.map(work, range(WORKERS)) for generation in one]
    return got, grants.order


def assert_lanes_keep_their_floor(order: list[GenerationTask], cap: int) -> None:
    """While so many lanes wait, each is served once at least in every ``cap + lanes - 1`` grants."""
    ranks = [task.lane_rank for task in order]
    lanes = set(ranks)
    last = {rank: max(number for number, other in enumerate(ranks) if other == rank) for rank in lanes}
    window, all_wait = cap + len(lanes) - 1, min(last.values()) + 1
    for begin in range(all_wait - window + 1):
        assert set(ranks[begin : begin + window]) == lanes, f"grants from {begin} on: {ranks}"


def assert_tenants_share(order: list[GenerationTask], rank: int) -> None:
    """While both wait in a lane, they have had the same by weight, but for one largest request of each."""
    tasks = [task for task in order if task.lane_rank == rank]
    left = Counter(task.tenant for task in tasks)
    if len(left) < len(TENANTS):
        return
    largest = {
        tenant: max(Fraction(task.cost, task.weight) for task in tasks if task.tenant == tenant)
        for tenant in TENANTS
    }
    had: dict[str, Fraction] = defaultdict(Fraction)
    for task in tasks:
        had[task.tenant] += Fraction(task.cost, task.weight)
        left[task.tenant] -= 1
        rounding = Fraction(len(tasks), SCALE)
        assert abs(had["a"] - had["b"]) <= sum(largest.values()) + rounding
        if not left[task.tenant]:
            return


requests = st.tuples(st.integers(0, 2), st.sampled_from(TENANTS), st.integers(1, 60))


def test_claims_that_are_made_at_once_are_granted_as_one_worker_would_have_them(valkey: redis.Redis) -> None:
    conflicts: list[int] = []

    @settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(
        asked=st.lists(requests, min_size=20, max_size=60),
        weights=st.tuples(st.integers(1, 3), st.integers(1, 3)),
        cap=st.integers(1, 4),
    )
    def holds(asked: list[tuple[int, str, int]], weights: tuple[int, int], cap: int) -> None:
        valkey.flushall()
        queue, weight_of = DispatchQueue(valkey), dict(zip(TENANTS, weights, strict=True))
        tasks: dict[str, GenerationTask] = {}
        for rank, tenant, tokens in asked:
            task = make_task(tenant=tenant, rank=rank, weight=weight_of[tenant], max_tokens=tokens)
            queue.enqueue(task)
            tasks[task.generation] = task
        got, order = claim_all(valkey, len(tasks), cap)
        assert sorted(got) == sorted(order) == sorted(tasks), "everything went once"
        in_order = [tasks[generation] for generation in order]
        assert_lanes_keep_their_floor(in_order, cap)
        for rank in {rank for rank, _, _ in asked}:
            assert_tenants_share(in_order, rank)
        conflicts.append(queue.counters(MODEL)["conflicts"])

    holds()
    assert sum(conflicts) > 0, "they never met"
