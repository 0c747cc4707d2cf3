"""Any order of steps by several workers: each generation is in exactly one place, none is lost or run twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from itertools import product
from typing import Self

import pytest
import redis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from inference.dispatch import claims, keys, publishing, token_log
from inference.dispatch.queue import DispatchQueue, WithdrawOutcome
from inference.messages import CancelReason, EndState, GenerationTask, LogEntry
from inference.scheduling.fair_share import SCALE
from signalbox import store
from tests.inference.dispatch.conftest import MODEL, delta, end, let_lease_lapse, make_task

WORKERS = ("ada", "bob")
TENANTS = ("x", "y", "z")
RANKS = (0, 1, 2)


class QueueMachine(RuleBasedStateMachine):
    """The queue beside the simplest model of it: which state each generation is in, and who owns it in which epoch."""

    tasks = Bundle("tasks")
    #: (generation, worker, epoch): claims that were made at some time; most of them are a ghost's by now.
    made = Bundle("made")

    @initialize()
    def start_empty(self) -> None:
        self.client = store.sync_client()
        self.client.flushall()
        self.queue = DispatchQueue(self.client)
        self.known: dict[str, GenerationTask] = {}
        self.waiting: set[str] = set()
        self.running: dict[str, tuple[str, int]] = {}
        self.ended: set[str] = set()
        self.lapsed: set[str] = set()
        self.epochs: dict[str, int] = {}
        self.cancelled: set[str] = set()
        self.logs: dict[str, int] = {}

    def teardown(self) -> None:
        if hasattr(self, "client"):
            self.client.close()

    @rule(
        target=tasks, tenant=st.sampled_from(TENANTS), rank=st.sampled_from(RANKS), weight=st.integers(1, 3)
    )
    def accept(self, tenant: str, rank: int, weight: int) -> GenerationTask:
        return make_task(tenant=tenant, rank=rank, weight=weight)

    @rule(task=tasks)
    def enqueue(self, task: GenerationTask) -> None:
        """At first, or swept in again at any time."""
        enqueued = self.queue.enqueue(task, self.epochs.get(task.generation, 0))
        assert enqueued == (task.generation not in self.known)
        if enqueued:
            self.known[task.generation] = task
            self.waiting.add(task.generation)

    @rule(target=made, worker=st.sampled_from(WORKERS))
    def claim(self, worker: str) -> object:
        claim = claims.claim(self.client, worker, MODEL, 3600).claim
        for generation in self.lapsed:
            del self.running[generation]
            self.waiting.add(generation)
        self.lapsed.clear()
        if claim is None:
            assert not self.waiting
            return multiple()
        generation = claim.task.generation
        assert claim.task == self.known[generation]
        assert claim.epoch > self.epochs.get(generation, 0), "no two claims in one epoch"
        assert (claim.cancel is not None) == (generation in self.cancelled)
        assert [entry.seq for entry in claim.log] == list(range(1, self.logs.get(generation, 0) + 1))
        self.waiting.remove(generation)
        self.running[generation] = (worker, claim.epoch)
        self.epochs[generation] = claim.epoch
        return (generation, worker, claim.epoch)

    @rule(claim=made)
    def lapse(self, claim: tuple[str, str, int]) -> None:
        generation = claim[0]
        if generation in self.running:
            let_lease_lapse(self.client, generation)
            self.lapsed.add(generation)

    @rule(claim=made)
    def renew(self, claim: tuple[str, str, int]) -> None:
        generation, worker, epoch = claim
        lost = claims.renew(self.client, worker, {generation: epoch}, 3600)
        assert lost == (set() if self._owns(claim) else {generation})
        if self._owns(claim):
            self.lapsed.discard(generation)

    @rule(claim=made)
    def publish(self, claim: tuple[str, str, int]) -> None:
        generation, worker, epoch = claim
        seq = self.logs.get(generation, 0) + 1
        outcome = publishing.publish(self.client, worker, [(generation, epoch, delta(seq, epoch))])
        assert outcome.refused == (set() if self._owns(claim) else {generation})
        assert outcome.cancelled.keys() == {
            one for one, (owner, _) in self.running.items() if owner == worker and one in self.cancelled
        }
        if self._owns(claim):
            self.logs[generation] = seq

    @rule(claim=made)
    def requeue(self, claim: tuple[str, str, int]) -> None:
        generation, _, epoch = claim
        assert claims.requeue(self.client, generation, epoch) == self._owns(claim)
        if self._owns(claim):
            del self.running[generation]
            self.lapsed.discard(generation)
            self.waiting.add(generation)

    @rule(claim=consumes(made), unused=st.integers(0, 7))
    def finish(self, claim: tuple[str, str, int], unused: int) -> None:
        generation, worker, epoch = claim
        owned = self._owns(claim)
        seq = self.logs.get(generation, 0) + 1
        last = end(seq, epoch, completion_tokens=7 - unused)
        refused = publishing.publish(self.client, worker, [(generation, epoch, last)]).refused
        assert refused == (set() if owned else {generation})
        assert claims.acknowledge(self.client, generation, epoch, unused) == owned
        if owned:
            del self.running[generation]
            self.lapsed.discard(generation)
            self.logs[generation] = seq
            self.ended.add(generation)

    @rule(task=tasks)
    def cancel(self, task: GenerationTask) -> None:
        generation = task.generation
        withdrawal = self.queue.withdraw(
            generation, CancelReason.CLIENT_REQUESTED, self.epochs.get(generation, 0)
        )
        assert withdrawal.last_seq == self.logs.get(generation, 0)
        if generation in self.ended:
            assert withdrawal.outcome is WithdrawOutcome.ENDED
        elif generation in self.running and generation not in self.lapsed:
            assert withdrawal.outcome is WithdrawOutcome.RUNNING
            self.cancelled.add(generation)
        else:
            known = generation in self.known
            assert withdrawal.outcome is (WithdrawOutcome.QUEUED if known else WithdrawOutcome.UNKNOWN)
            assert withdrawal.epoch > self.epochs.get(generation, 0)
            last = end(withdrawal.last_seq + 1, withdrawal.epoch, state=EndState.CANCELLED)
            assert publishing.append_end(self.client, generation, withdrawal.epoch, last)
            self.known[generation] = task
            self.epochs[generation] = withdrawal.epoch
            self.logs[generation] = last.seq
            self.waiting.discard(generation)
            self.running.pop(generation, None)
            self.lapsed.discard(generation)
            self.ended.add(generation)

    def _owns(self, claim: tuple[str, str, int]) -> bool:
        generation, worker, epoch = claim
        return self.running.get(generation) == (worker, epoch)

    @invariant()
    def valkey_holds_what_the_model_says(self) -> None:
        seen = Snapshot.take(self.client, self.logs)
        self._each_generation_is_in_exactly_one_place(seen)
        self._logs_are_whole_and_in_order_of_epochs(seen)
        self._no_tenant_was_charged_more_than_it_asked_for(seen)

    def _each_generation_is_in_exactly_one_place(self, seen: Snapshot) -> None:
        for (rank, tenant), fifo in seen.fifos.items():
            assert bool(fifo) == (tenant in seen.tenants[rank])
            assert all(self.known[one].tenant == tenant and self.known[one].lane_rank == rank for one in fifo)
        in_fifos = [one for fifo in seen.fifos.values() for one in fifo]
        assert sorted(seen.queued) == sorted(in_fifos) == sorted(self.waiting)
        assert sorted(seen.leased) == sorted(self.running)
        assert self.waiting | self.running.keys() | self.ended == self.known.keys()
        assert self.queue.contains(list(self.known)) == self.waiting | self.running.keys()
        for worker in WORKERS:
            assert seen.told[worker] == {
                one for one, (owner, _) in self.running.items() if owner == worker and one in self.cancelled
            }

    def _logs_are_whole_and_in_order_of_epochs(self, seen: Snapshot) -> None:
        for generation, length in self.logs.items():
            assert [entry.seq for entry in seen.logs[generation]] == list(range(1, length + 1))
            epochs = [entry.epoch for entry in seen.logs[generation]]
            assert epochs == sorted(epochs)

    def _no_tenant_was_charged_more_than_it_asked_for(self, seen: Snapshot) -> None:
        asked: Counter[tuple[int, str]] = Counter()
        for task in self.known.values():
            asked[task.lane_rank, task.tenant] += -(-task.cost * SCALE // task.weight)
        for (rank, tenant), finish in seen.finishes.items():
            assert finish <= seen.virtual_times.get(rank, 0) + asked[rank, tenant]


@dataclass(frozen=True)
class Snapshot:
    """What lies in Valkey, read in one step."""

    queued: list[str]
    fifos: dict[tuple[int, str], list[str]]
    tenants: dict[int, set[str]]
    finishes: dict[tuple[int, str], int]
    virtual_times: dict[int, int]
    leased: list[str]
    told: dict[str, set[str]]
    logs: dict[str, list[LogEntry]]

    @classmethod
    def take(cls, client: redis.Redis, logs: Collection[str]) -> Self:
        lanes = list(product(RANKS, TENANTS))
        with client.pipeline() as pipeline:
            for rank in RANKS:
                pipeline.zrange(f"dispatch:queue:{MODEL}:{rank}", 0, -1)
                pipeline.hkeys(f"dispatch:tenants:{MODEL}:{rank}")
                pipeline.hgetall(f"dispatch:finishes:{MODEL}:{rank}")
            for rank, tenant in lanes:
                pipeline.zrange(f"dispatch:fifo:{MODEL}:{rank}:{tenant}", 0, -1)
            for worker in WORKERS:
                pipeline.hkeys(f"dispatch:cancels:{worker}")
            for generation in logs:
                pipeline.lrange(keys.log(generation), 0, -1)
            pipeline.hgetall(f"dispatch:virtual:{MODEL}")
            pipeline.zrange(f"dispatch:leases:{MODEL}", 0, -1)
            answers = iter(pipeline.execute())
        queued, tenants, finishes = [], {}, {}
        for rank in RANKS:
            queued += [one.decode() for one in next(answers)]
            tenants[rank] = {one.decode() for one in next(answers)}
            finishes |= {(rank, tenant.decode()): int(tag) for tenant, tag in next(answers).items()}
        return cls(
            queued=queued,
            tenants=tenants,
            finishes=finishes,
            fifos={lane: [one.decode() for one in next(answers)] for lane in lanes},
            told={worker: {one.decode() for one in next(answers)} for worker in WORKERS},
            logs={generation: token_log.decode(next(answers)) for generation in logs},
            virtual_times={int(rank): int(time) for rank, time in next(answers).items()},
            leased=[one.decode() for one in next(answers)],
        )


@pytest.mark.slow
@pytest.mark.usefixtures("valkey")
def test_each_generation_is_in_exactly_one_place_and_none_is_lost_or_run_twice() -> None:
    # A failure is shown as it was found: shrinking it against a real server takes longer than reading it.
    run_state_machine_as_test(
        QueueMachine,
        settings=settings(
            max_examples=40,
            stateful_step_count=40,
            deadline=None,
            phases=[Phase.explicit, Phase.reuse, Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
