"""The queue as those see it who put generations in and take them out again: intake, cancellation, recovery."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import cast

import redis

from inference.dispatch import functions, keys
from inference.dispatch.token_log import keep_ms
from inference.messages import CancelReason, GenerationTask, encode
from signalbox import store

#: How long a place is held for a generation that is being accepted.
PLACE_TTL_S = 60


class WithdrawOutcome(StrEnum):
    """What withdrawing found."""

    #: It waited (or its worker fell silent) and is out of the queue: the caller writes its end.
    QUEUED = "queued"
    #: A worker runs it and has been told: that worker writes its end. Or has written it, and is about to settle it.
    RUNNING = "running"
    #: Its log has its end already, and no worker is there to settle it: the caller settles that.
    ENDED = "ended"
    #: It was never here, or its trace has expired. It is barred from being enqueued: the caller writes its end.
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """``epoch`` and ``last_seq`` are what an end is written with: in this epoch, at ``last_seq + 1``."""

    outcome: WithdrawOutcome
    epoch: int
    last_seq: int


@dataclass(frozen=True, slots=True)
class WaitingLane:
    """One lane of one model's queue.

    ``depth``: how many wait. ``skips``: how often the lane was passed over since it was last served. ``first``: what
    arrived first of all that wait, if anything does.
    """

    depth: int
    skips: int
    first: str | None


class DispatchQueue:
    """The queue of every model, through one thread-safe client.

    Generations are named by 32 hexadecimal digits. Every method raises ``redis.RedisError`` when Valkey cannot be
    reached; all may be repeated.
    """

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    def take_place(self, model: str, generation: str, limit: int) -> bool:
        """Hold a place for a generation being accepted, 60 s at most. False: ``limit`` wait or hold one already."""
        return bool(functions.take_place(self._client, model, generation, limit, PLACE_TTL_S * 1000))

    def give_back_place(self, model: str, generation: str) -> None:
        """Give up a place that was held for nothing."""
        self._client.zrem(keys.places(model), generation)

    def enqueue(self, task: GenerationTask, epoch_floor: int = 0) -> bool:
        """Let the generation wait for a worker; its place becomes its own.

        ``epoch_floor``: the highest epoch that the database knows, so that a generation that Valkey has forgotten is
        claimed with a higher one. False: it is here (waiting, running) or was until lately (ended, withdrawn) and
        is not run a second time.
        """
        return bool(
            functions.enqueue(
                self._client,
                task.generation,
                encode(task),
                task.model,
                task.lane_rank,
                task.tenant,
                task.cost,
                task.weight,
                epoch_floor,
            )
        )

    def withdraw(
        self, generation: str, reason: CancelReason, epoch_floor: int = 0, *, never_claimed: bool = False
    ) -> Withdrawal:
        """Take the generation out of the queue, or tell its worker to end it within a tick.

        ``epoch_floor`` as in ``enqueue``. After ``QUEUED`` and ``UNKNOWN`` no worker can claim it or append to
        its log any more; the caller ends it by ``publishing.append_end`` and settles it. The reason outlives a
        worker that dies before it acts: the next one that claims the generation is told.

        With ``never_claimed`` one that a worker has, or had, is left alone: nobody is told, and it is ``RUNNING``.
        """
        outcome, epoch, last_seq = functions.withdraw(
            self._client, generation, reason, epoch_floor, keep_ms(), int(never_claimed)
        )
        return Withdrawal(WithdrawOutcome(outcome.decode()), epoch, last_seq)

    def position(self, generation: str) -> int | None:
        """Where it waits, 1 for the first: behind the higher lanes and what came to its own lane earlier.

        An estimate: fairness among tenants and the lanes' floor serve some sooner, some later. None: it is not waiting.
        """
        position = functions.position(self._client, generation)
        return None if position is None else int(position)

    def depths(self, model: str) -> dict[int, int]:
        """How many wait, by the rank of their lane; lanes that were never used are absent."""
        ranks = sorted(int(rank) for rank in self._client.smembers(keys.ranks(model)))
        with self._client.pipeline() as pipeline:
            for rank in ranks:
                pipeline.zcard(keys.queue(model, rank))
            return dict(zip(ranks, pipeline.execute(), strict=True))

    def lanes(self, model: str) -> dict[int, WaitingLane]:
        """The model's lanes by rank, seen at one moment; lanes that were never used are absent. One round trip."""
        return {
            int(rank): WaitingLane(int(depth), int(skips) if depth else 0, first.decode() if first else None)
            for rank, depth, skips, first in functions.lanes(self._client, model)
        }

    def contains(self, generations: Collection[str]) -> set[str]:
        """Those of ``generations`` that wait or run; the others are unknown here, withdrawn or ended."""
        asked = list(generations)
        with self._client.pipeline(transaction=False) as pipeline:
            for generation in asked:
                pipeline.hget(keys.generation(generation), "state")
            states = pipeline.execute()
        return {one for one, state in zip(asked, states, strict=True) if state in (b"queued", b"running")}

    def counters(self, model: str) -> dict[str, int]:
        """What has happened to the model's queue since Valkey was empty.

        ``arrivals``; ``claims``; ``conflicts``: claims that had to choose again; ``lapses``: leases that ran out.
        """
        ledger = self._client.hgetall(keys.ledger(model))
        return {
            name: int(ledger.get(name.encode(), 0)) for name in ("arrivals", "claims", "conflicts", "lapses")
        }

    def withdrawals(self, model: str) -> dict[tuple[int, str], int]:
        """How many were withdrawn while no worker had them since Valkey was empty, by lane's rank and reason."""
        found: dict[tuple[int, str], int] = {}
        ledger = cast("dict[bytes, bytes]", self._client.hgetall(keys.ledger(model)))
        for field, count in ledger.items():
            kind, *of = field.decode().split(":")
            if kind == "withdrawals":
                rank, reason = of
                found[int(rank), reason] = int(count)
        return found

    def memory_pressure(self) -> float:
        """Used share of Valkey's memory limit; 0.0 when it has none."""
        memory = self._client.info("memory")
        limit = int(memory["maxmemory"])
        return int(memory["used_memory"]) / limit if limit else 0.0


@cache
def dispatch_queue() -> DispatchQueue:
    """The queue through this process's shared client."""
    return DispatchQueue(store.shared_client())
