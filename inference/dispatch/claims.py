"""Claims and leases: how a worker comes to own a generation, keeps it, and lets it go.

A claim raises the generation's epoch. Whatever an owner does with it names that epoch, and is refused once
another claim (or a withdrawal) has raised it: a worker that was stopped past its lease can do no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import uuid4

import redis

from inference.dispatch import functions, keys
from inference.dispatch.token_log import decode, keep_ms
from inference.messages import CancelReason, GenerationTask, LogEntry, task_decoder
from inference.scheduling import fair_share
from inference.scheduling.claiming import Candidate, ClaimChoice, LaneQueue, choose_claim
from inference.scheduling.memory import Capacity, Deferrals, Verdict

#: How often a claim chooses again because others changed the queue in between. Each time, another worker got something.
CLAIM_ATTEMPTS = 16
#: Lapsed leases that one claim returns to the queue, at most: a bound on its time.
LAPSES_PER_CLAIM = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A generation owned by a worker for as long as it renews the lease.

    ``log``: what earlier owners published; if its last entry is an ``End``, only settlement and acknowledgement are
    left to do. ``log_lost``: an earlier owner may have published what Valkey has lost since; the log starts anew.
    ``cancel``: it is to be ended at once, for this reason. ``lapses``: how many owners fell silent with it.
    ``preemptions``: how often it had to make room for one of a higher lane. ``suspicion``: what speaks for its being
    the cause of steps that failed (``inference.scheduling.faults``). ``returns``: how many owners gave it back without
    having begun with it. ``cached``: what an earlier owner's first run of it found in the prefix cache, where that one
    gave it back; None if it ran nothing, or fell silent: then its log may tell. ``silent_s``: seconds since the last
    entry of its log was published; None for an empty log.
    """

    task: GenerationTask
    epoch: int
    log: list[LogEntry]
    log_lost: bool
    cancel: CancelReason | None
    lapses: int
    preemptions: int
    suspicion: int
    returns: int = 0
    cached: int | None = None
    silent_s: float | None = None

    @property
    def is_first(self) -> bool:
        """Whether no earlier owner can have begun with it."""
        return self.epoch == 1 + self.returns


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimOutcome:
    """What a claim came to, and the worker's next ledger.

    ``claim`` and ``candidate`` (with the bytes that it is given; its verdict is ``NEVER_FITS`` for a claim that is only
    to be ended): None if nothing was claimed. ``deferred``: those that came first and lack bytes or a row.
    """

    claim: Claim | None
    candidate: Candidate | None
    deferrals: Deferrals
    deferred: tuple[Candidate, ...]


def claim(
    client: redis.Redis,
    worker: str,
    model: str,
    lease_s: float,
    *,
    capacity: Capacity | None = None,
    deferrals: Deferrals = (),
    promised: str | None = None,
    cap: int = 4,
    look_again: Callable[[], Capacity] | None = None,
) -> ClaimOutcome:
    """Claim the generation of ``model`` that is to be served next, for ``lease_s`` seconds.

    ``capacity``, ``deferrals``, ``promised``, ``cap``: as for ``choose_claim``; by default anything can be taken on.
    ``look_again``: what there is by now; asked before one is claimed only to be ended, for it may have been accepted
    because of a worker of which ``capacity`` does not know yet.

    First returns to the queue what silent workers held, so that no other process is needed for that. Nothing is
    claimed if nothing waits, nothing fits, or other workers were quicker ``CLAIM_ATTEMPTS`` times in a row (they are
    counted as ``conflicts``).
    """
    claim_id = uuid4().hex
    for _ in range(CLAIM_ATTEMPTS):
        version, lanes = _contenders(client, model)
        choose = partial(choose_claim, lanes, deferrals=deferrals, promised=promised, cap=cap)
        choice = choose(capacity=capacity)
        if look_again is not None and _only_ends(choice):
            capacity = look_again()
            choice = choose(capacity=capacity)
        grant = choice.grant
        if grant is None:
            return ClaimOutcome(
                claim=None, candidate=None, deferrals=choice.deferrals, deferred=choice.deferred
            )
        granted = functions.claim(
            client,
            model,
            version,
            claim_id,
            worker,
            _milliseconds(lease_s),
            grant.candidate.lane_rank,
            grant.service.tenant,
            grant.candidate.head.generation,
            grant.service.virtual_time,
            len(grant.service.finishes),
            *(part for tag in grant.service.finishes.items() for part in tag),
            *(part for skipped in grant.skips.items() for part in skipped),
        )
        if granted is not None:
            return ClaimOutcome(
                claim=_claim_of(granted),
                candidate=grant.candidate,
                deferrals=choice.deferrals,
                deferred=choice.deferred,
            )
    return ClaimOutcome(claim=None, candidate=None, deferrals=deferrals, deferred=())


def renew(client: redis.Redis, worker: str, claims: Mapping[str, int], lease_s: float) -> set[str]:
    """Keep what the worker owns (epochs by generation) for another ``lease_s`` seconds.

    Returns the generations that are no longer its: they are to be dropped silently.
    """
    if not claims:
        return set()
    owned = (part for claimed in claims.items() for part in claimed)
    return {one.decode() for one in functions.renew(client, worker, _milliseconds(lease_s), *owned)}


def requeue(
    client: redis.Redis,
    generation: str,
    epoch: int,
    epoch_floor: int = 0,
    *,
    preempted: bool = False,
    suspicion: int = 0,
    begun: bool = True,
    cached: int | None = None,
) -> bool:
    """Give the generation back unfinished: it waits first of its tenant's and is not charged again.

    ``epoch_floor``: the database's epoch, where the claim's was not above it. ``preempted``: it makes room for another;
    that is counted. ``suspicion``: what a step that failed adds to it. ``begun``: the caller had admitted it.
    ``cached``: what its first run found in the prefix cache, if any of it was run; later claims are told.
    False: it is no longer the caller's.
    """
    return bool(
        functions.requeue(
            client,
            generation,
            epoch,
            epoch_floor,
            int(preempted),
            suspicion,
            int(not begun),
            "" if cached is None else cached,
        )
    )


def acknowledge(client: redis.Redis, generation: str, epoch: int, unused_tokens: int) -> bool:
    """Let go of a generation that has ended and is settled; its log is kept for a while.

    ``unused_tokens``: what it was charged (prompt + max tokens) less what it used; given back to its tenant's share.
    False: it is no longer the caller's. Acknowledging again is harmless.
    """
    weight = client.hget(keys.generation(generation), "weight")
    refund = fair_share.refund(unused_tokens, int(weight)) if weight is not None else 0
    return bool(functions.acknowledge(client, generation, epoch, refund, keep_ms()))


def _only_ends(choice: ClaimChoice) -> bool:
    return choice.grant is not None and choice.grant.candidate.verdict is Verdict.NEVER_FITS


def _contenders(client: redis.Redis, model: str) -> tuple[bytes, dict[int, LaneQueue]]:
    """Who waits, by lane rank, and the version of the queue that says so."""
    version, lanes = functions.contenders(client, model, LAPSES_PER_CLAIM)
    return version, {int(rank): _lane_of(*fields) for rank, *fields in lanes}


def _lane_of(skips: bytes, virtual_time: bytes, heads: list[list[bytes]]) -> LaneQueue:
    return LaneQueue(
        skips=int(skips),
        virtual_time=int(virtual_time),
        heads=[
            fair_share.Head(
                tenant=tenant.decode(),
                generation=generation.decode(),
                arrival=int(arrival),
                tokens=int(tokens),
                cost=int(due),
                weight=int(weight),
                finish=int(finish),
                joined=joined == b"joined",
            )
            for tenant, joined, finish, generation, arrival, tokens, due, weight in heads
        ],
    )


def _claim_of(granted: list[Any]) -> Claim:
    epoch, task, cancel, log_lost, lapses, preemptions, suspicion, returns, cached, silent_ms, log = granted
    return Claim(
        task=task_decoder.decode(task),
        epoch=int(epoch),
        log=decode(log),
        log_lost=log_lost == b"1",
        cancel=CancelReason(cancel.decode()) if cancel else None,
        lapses=int(lapses),
        preemptions=int(preemptions),
        suspicion=int(suspicion),
        returns=int(returns),
        cached=int(cached) if cached else None,
        silent_s=int(silent_ms) / 1000 if silent_ms != b"" else None,
    )


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))
