"""The parts of a simulation: the real rules over a machine that only counts, and the trouble that may come to it.

The worker of the simulation applies what the rules return and decides nothing. Every promise is checked for every
request at every tick, so each test only brings another kind of trouble.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st

from inference.scheduling import fair_share
from inference.scheduling.claiming import Candidate, ClaimChoice, LaneQueue, choose_claim
from inference.scheduling.fair_share import Head
from inference.scheduling.memory import RESERVED_AFTER, Capacity, Deferrals, Room, Verdict
from inference.scheduling.preemption import MOST_PREEMPTIONS, Requester, Victim, choose_victims
from inference.scheduling.prefill import ParkedPrompt, PrefillLedger
from inference.scheduling.quiet import PromptPlan, plan_prompts
from inference.scheduling.tick import Action, PrefillLimits, TickDecision, TickState, decide_tick

CAP = 4
LANES = 3
#: Grants in which a waiting lane is served at least once.
LANE_WINDOW = CAP + LANES - 1
STEP = 4


@dataclass(eq=False)
class Request:
    """A request from its arrival to its end. ``length``: tokens until it ends by itself, at most ``max_tokens``."""

    name: str
    tenant: str
    lane: int
    prompt: int
    max_tokens: int
    length: int
    arrival: int
    charged: bool = False
    produced: int = 0
    preempted: int = 0
    ended: str = ""

    @property
    def cost(self) -> int:
        return self.prompt + self.max_tokens


@dataclass(eq=False)
class Sequence:
    """An admitted request. ``remaining``: prompt tokens still to run, those of its earlier answer included."""

    request: Request
    order: int
    bytes: int
    remaining: int
    admitted_at: int
    must_leave_by: int
    chunk_by: int = 0
    begun: bool = False


@dataclass
class Waiting:
    """Promises to one that waits for bytes: how many may still be admitted past it."""

    may_pass: int


@dataclass(frozen=True)
class Machine:
    """What a worker runs on; a byte of cache a token."""

    limits: PrefillLimits
    rows: int = 4
    budget: int = 10**6
    watermark: int = 0
    preempts: bool = True


@dataclass
class Worker:
    """One model, one worker, and the queue before it."""

    machine: Machine
    now: int = 0
    queue: list[Request] = field(default_factory=list)
    running: list[Sequence] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    cached: int = 0
    skips: dict[int, int] = field(default_factory=dict)
    virtual_times: dict[int, int] = field(default_factory=dict)
    finishes: dict[tuple[int, str], int] = field(default_factory=dict)
    known: set[tuple[int, str]] = field(default_factory=set)
    deferrals: Deferrals = ()
    waiting: dict[str, Waiting] = field(default_factory=dict)
    passed_over: dict[int, int] = field(default_factory=dict)
    last: TickDecision = field(default_factory=lambda: TickDecision(Action.IDLE, 0, False, False))
    ledger: PrefillLedger = field(default_factory=PrefillLedger)
    since_decode: int = 0
    grants: int = 0
    refused: tuple[object, ...] | None = None
    orders: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    # What comes and goes

    def arrive(self, tenant: str, lane: int, prompt: int, max_tokens: int, length: int) -> Request:
        number = len(self.requests)
        request = Request(f"r{number}", tenant, lane, prompt, max_tokens, min(length, max_tokens), number)
        self.requests.append(request)
        self.queue.append(request)
        return request

    def cancel(self, request: Request) -> None:
        if request.ended:
            return
        if request in self.queue:
            self._leave_queue(request)
            request.ended = "cancelled while queued"
            self._give_back(request, 0)
        else:
            [sequence] = [one for one in self.running if one.request is request]
            self._end(sequence, "cancelled")

    def _leave_queue(self, request: Request) -> None:
        self.queue.remove(request)
        if not any(one.tenant == request.tenant and one.lane == request.lane for one in self.queue):
            self.known.discard((request.lane, request.tenant))

    def _give_back(self, request: Request, used: int) -> None:
        if request.charged:
            self.finishes[request.lane, request.tenant] -= fair_share.refund(request.cost - used, 1)

    def _end(self, sequence: Sequence, how: str) -> None:
        request = sequence.request
        self._leave(sequence)
        request.ended = how
        self._give_back(request, request.prompt + request.produced)
        self._keep_cold(sequence)

    def _leave(self, sequence: Sequence) -> None:
        """It ended, or was preempted."""
        self.running.remove(sequence)

    def _keep_cold(self, sequence: Sequence) -> None:
        """What it has run stays in the prefix cache, as far as there is room."""
        self.cached += min(sequence.bytes, max(0, self.room.free(decoding=False)))

    # Claiming

    @property
    def room(self) -> Room:
        return self._room(self.running)

    def _room(self, running: Iterable[Sequence]) -> Room:
        return Room(
            budget=self.machine.budget,
            watermark=self.machine.watermark,
            given=tuple(one.bytes for one in running),
            cached=self.cached,
        )

    @property
    def decoding(self) -> list[Sequence]:
        return [one for one in self.running if not one.remaining]

    @property
    def parked(self) -> list[Sequence]:
        return sorted((one for one in self.running if one.remaining), key=lambda one: one.order)

    def capacity(self, leaving: Collection[Sequence] = ()) -> Capacity:
        """What can be taken on, once these have left."""
        staying = [one for one in self.running if one not in leaving]
        return Capacity(
            room=self._room(staying),
            bytes_per_token=1,
            step=STEP,
            free_rows=self.machine.rows - len(staying),
            decoding=bool(self.decoding),
        )

    def _lanes(self) -> dict[int, LaneQueue]:
        firsts: dict[tuple[int, str], Request] = {}
        for request in sorted(self.queue, key=lambda one: one.arrival):
            firsts.setdefault((request.lane, request.tenant), request)
        lanes: dict[int, list[Head]] = {}
        for (lane, tenant), request in firsts.items():
            lanes.setdefault(lane, []).append(
                Head(
                    tenant=tenant,
                    generation=request.name,
                    arrival=request.arrival,
                    tokens=request.cost,
                    cost=0 if request.charged else request.cost,
                    weight=1,
                    finish=self.finishes.get((lane, tenant), 0),
                    joined=(lane, tenant) not in self.known,
                )
            )
        return {
            lane: LaneQueue(
                skips=self.skips.get(lane, 0), virtual_time=self.virtual_times.get(lane, 0), heads=heads
            )
            for lane, heads in lanes.items()
        }

    def claim(self) -> None:
        """Take on what can be, and make room for higher lanes, until nothing changes."""
        if self.refused == self._situation():
            return
        while True:
            choice = self._choose()
            if choice.grant is not None:
                self._apply(choice)
            made_room = self.machine.preempts and self._make_room(choice.deferred)
            if choice.grant is None and not made_room:
                self.refused = self._situation()
                return

    def _choose(self, promised: str | None = None, leaving: Collection[Sequence] = ()) -> ClaimChoice:
        lanes = self._lanes()
        choice = choose_claim(
            lanes, capacity=self.capacity(leaving), deferrals=self.deferrals, promised=promised, cap=CAP
        )
        self._watch(choice, lanes, in_turn=promised is None)
        self.deferrals = choice.deferrals
        return choice

    def _situation(self) -> tuple[object, ...]:
        """All that a claim's answer depends on."""
        return (*self.queue, None, *self.running, bool(self.decoding), self.cached)

    def _apply(self, choice: ClaimChoice) -> None:
        grant = choice.grant
        assert grant is not None
        candidate, service = grant.candidate, grant.service
        rank = candidate.lane_rank
        self.skips = grant.skips
        self.virtual_times[rank] = service.virtual_time
        for tenant, finish in service.finishes.items():
            self.finishes[rank, tenant] = finish
            self.known.add((rank, tenant))
        [request] = [one for one in self.queue if one.name == candidate.head.generation]
        self._leave_queue(request)
        request.charged = True
        if candidate.verdict is Verdict.NEVER_FITS:
            assert candidate.bytes > self.machine.budget
            request.ended = "never fits"
            self._give_back(request, 0)
            return
        self.cached -= self.room.reclaim_for(candidate.bytes, bool(self.decoding))
        remaining = request.prompt + request.produced
        self.running.append(
            Sequence(
                request,
                order=next(self.orders),
                bytes=candidate.bytes,
                remaining=remaining,
                admitted_at=self.now,
                must_leave_by=self.now + self._longest_run(remaining, request.length - request.produced),
            )
        )
        kept_free = self.machine.watermark if self.decoding else 0
        assert self.room.reserved + self.cached + kept_free <= self.machine.budget
        assert len(self.running) <= self.machine.rows

    def _make_room(self, deferred: tuple[Candidate, ...]) -> bool:
        """Take on the first for whom room can be made: it is claimed, and then those leave who are in its way."""
        sequences = {one.request.name: one for one in self.running}
        victims = [
            Victim(
                key=name,
                lane_rank=one.request.lane,
                bytes=one.bytes,
                generated=one.request.produced,
                order=one.order,
                preempted=one.request.preempted,
            )
            for name, one in sequences.items()
        ]
        capacity = self.capacity()
        for candidate in deferred:
            answer = choose_victims(Requester(candidate.lane_rank, candidate.bytes), victims, capacity)
            if answer is None or not answer.victims:
                continue
            leaving = [sequences[key] for key in answer.victims]
            choice = self._choose(candidate.head.generation, leaving)
            assert choice.grant is not None, "what was planned is not enough"
            assert choice.grant.candidate.head.generation == candidate.head.generation
            for sequence in leaving:
                request = sequence.request
                assert request.lane > candidate.lane_rank, "only a strictly lower lane gives way"
                request.preempted += 1
                assert request.preempted <= MOST_PREEMPTIONS
                self._leave(sequence)
            cached = self.cached
            self._apply(choice)
            assert cached - self.cached <= answer.reclaim
            self.queue += [sequence.request for sequence in leaving]
            return True
        return False

    # One tick

    def tick(self) -> Action:
        self.claim()
        self.now += 1
        return self._act()

    def _act(self) -> Action:
        before = self.last
        parked, decoding = self.parked, self.decoding
        producing = self._producing(len(decoding))
        plan = plan_prompts(
            self._prompts(parked),
            self.ledger,
            self.machine.limits,
            producing=producing,
            last=before.action,
            cap=CAP,
        )
        self._promise_chunks(parked)
        self.last = decide_tick(self._tick_state(len(decoding), len(parked), plan))
        action = self.last.action
        assert (action is Action.IDLE) == (not self.running)
        assert action is not Action.IDLE or not self.queue, "it rests although something waits"
        if action is Action.PREFILL:
            assert plan.padded <= self.machine.limits.tokens(producing=producing)
            self.ledger = plan.ledger
            for index in plan.indices:
                parked[index].remaining -= min(plan.tokens, parked[index].remaining)
                parked[index].begun, parked[index].chunk_by = True, 0
                if not parked[index].remaining:
                    self._produce(parked[index])
        elif action is Action.DECODE:
            for sequence in decoding:
                self._produce(sequence)
        elif action is Action.SPECULATE and not self._slice():
            self.last = before
            self.claim()
            return self._act()
        self._check_tick(action, bool(decoding))
        return action

    def _prompts(self, parked: list[Sequence]) -> list[ParkedPrompt]:
        return [ParkedPrompt(one.order, one.request.lane, one.remaining, begun=one.begun) for one in parked]

    def _producing(self, decoding: int) -> bool:
        return decoding > 0

    def _tick_state(self, decoding: int, prefills: int, plan: PromptPlan) -> TickState:
        return TickState(
            decoding=decoding,
            prefills=prefills,
            next_prefill_tokens=plan.padded,
            limits=self.machine.limits,
            prefill_debt=self.last.prefill_debt,
            speculative_yielded=self.last.speculative_yielded,
            slice_prompt_last=self.last.slice_prompt_last,
            prefill_gave_way=self.last.prefill_gave_way,
        )

    def _slice(self) -> bool:
        """Run one; False if nobody could, so that the tick is to be decided anew."""
        raise AssertionError("there is no slot here")

    def _produce(self, sequence: Sequence) -> None:
        sequence.request.produced += 1
        if sequence.request.produced == sequence.request.length:
            self._end(sequence, "completed")

    # What is promised

    @property
    def starves(self) -> bool:
        return self.machine.limits.interval == 0

    @property
    def most_others(self) -> int:
        """Other ticks between two of a stream's."""
        return 1

    def _longest_run(self, remaining: int, tokens: int) -> int:
        """Ticks from admission to the end: each chunk within its bound, each token within two ticks."""
        return (
            math.ceil(remaining / self.machine.limits.chunk_tokens) * self._longest_gap(self.machine.rows)
            + 2 * tokens
        )

    def _longest_gap(self, parked: int) -> int:
        """Ticks to the next chunk of a prompt, of so many parked in its lane: grants, times ticks a grant."""
        return 2 * parked * LANE_WINDOW * (self.machine.limits.interval + 1)

    def _promise_chunks(self, parked: list[Sequence]) -> None:
        for one in parked:
            in_lane = sum(other.request.lane == one.request.lane for other in parked)
            one.chunk_by = one.chunk_by or self.now + self._longest_gap(in_lane)

    def _check_tick(self, action: Action, rows_decoded: bool) -> None:
        self.since_decode = 0 if action is Action.DECODE or not rows_decoded else self.since_decode + 1
        assert self.since_decode <= self.most_others, "a stream waits too long"
        assert self.room.reserved + self.cached <= self.machine.budget
        assert self._held() + self.cached <= self.machine.budget, "the batch takes more than there is"
        assert not (self.starves and rows_decoded and action is Action.PREFILL)
        if not self.starves:
            for one in self.running:
                assert not one.remaining or not one.chunk_by or self.now <= one.chunk_by, "a prompt starves"
                assert self.now <= one.must_leave_by, "an admitted request starves"

    def _held(self) -> int:
        """What caches take if all that run are one batch, as long in each row as in the longest."""
        tokens = [one.request.prompt + one.request.produced - one.remaining for one in self.running]
        return len(tokens) * math.ceil(max(tokens, default=0) / STEP) * STEP

    def _watch(self, choice: ClaimChoice, lanes: dict[int, LaneQueue], in_turn: bool) -> None:
        """That no lane is passed over too often, and no request that waits for bytes."""
        grant = choice.grant
        leaves = grant is not None and grant.candidate.head.generation in self.waiting
        for position, one in enumerate(choice.deferrals):
            if one.generation not in self.waiting:
                older = position + leaves
                self.waiting[one.generation] = Waiting(RESERVED_AFTER + (older + 1) * CAP + older)
        if grant is not None:
            self.grants += 1
            chosen = grant.candidate
            self.waiting.pop(chosen.head.generation, None)
            if chosen.verdict is Verdict.ADMIT:
                for name, waiting in self.waiting.items():
                    waiting.may_pass -= 1
                    assert waiting.may_pass >= 0, f"too many were admitted past {name}"
            for rank, lane in lanes.items():
                refused = grant.skips[rank] == lane.skips and rank != chosen.lane_rank
                if rank == chosen.lane_rank or refused:
                    self.passed_over[rank] = 0
                elif in_turn:
                    self.passed_over[rank] = self.passed_over.get(rank, 0) + 1
                assert self.passed_over.get(rank, 0) < LANE_WINDOW, f"lane {rank} starves"
        for rank in set(self.passed_over) - lanes.keys():
            del self.passed_over[rank]
        ledger = {one.generation for one in choice.deferrals}
        self.waiting = {name: one for name, one in self.waiting.items() if name in ledger}

    def run_dry(self) -> None:
        """No more arrives: every tick does some of the work that is left, and all of it is done at last."""
        chunk = self.machine.limits.chunk_tokens
        work = sum(
            (1 + MOST_PREEMPTIONS) * math.ceil((one.prompt + one.length) / chunk) + one.length
            for one in self.requests
            if not one.ended
        )
        for _ in range(work):
            if self.tick() is Action.IDLE:
                break
        assert self.tick() is Action.IDLE
        assert all(one.ended for one in self.requests)
        assert all(one.produced == one.length for one in self.requests if one.ended == "completed")
        assert (self.running, self.queue, self.deferrals) == ([], [], ())
        assert self.room.reserved == 0


# Trouble of every kind


@dataclass(frozen=True)
class Shape:
    """What a request asks for."""

    tenant: str
    lane: int
    prompt: int
    max_tokens: int
    length: int


def shapes(
    *,
    prompt: tuple[int, int] = (1, 60),
    tokens: tuple[int, int] = (1, 30),
    lanes: tuple[int, int] = (0, LANES - 1),
) -> st.SearchStrategy[Shape]:
    return st.builds(
        Shape,
        st.sampled_from("abc"),
        st.integers(*lanes),
        st.integers(*prompt),
        st.integers(*tokens),
        st.integers(*tokens),
    )


#: One tick's trouble: who arrives, and which of the earlier requests are cancelled (by number, modulo).
Trouble = tuple[list[Shape], list[int]]


def days(
    shape: st.SearchStrategy[Shape], *, crowd: int = 2, cancels: int = 0
) -> st.SearchStrategy[list[Trouble]]:
    return st.lists(
        st.tuples(st.lists(shape, max_size=crowd), st.lists(st.integers(0, 50), max_size=cancels)),
        min_size=1,
        max_size=30,
    )


@st.composite
def machines(
    draw: st.DrawFn, *, budgets: tuple[int, int] = (40, 250), chunks: tuple[int, int] = (2, 24)
) -> Machine:
    budget, chunk = draw(st.integers(*budgets)), draw(st.integers(*chunks))
    return Machine(
        limits=PrefillLimits(
            chunk, draw(st.sampled_from((1, 2, 7))), quiet_tokens=draw(st.sampled_from((0, 2, 4))) * chunk
        ),
        rows=draw(st.integers(1, 5)),
        budget=budget,
        watermark=draw(st.integers(0, budget // 2)),
        preempts=draw(st.booleans()),
    )


AMPLE = (10**6, 10**6)


def live(machine: Machine, day: list[Trouble]) -> Worker:
    worker = Worker(machine)
    for arrivals, cancels in day:
        for shape in arrivals:
            worker.arrive(shape.tenant, shape.lane, shape.prompt, shape.max_tokens, shape.length)
        for number in cancels:
            if worker.requests:
                worker.cancel(worker.requests[number % len(worker.requests)])
        worker.tick()
    worker.run_dry()
    return worker


few = settings(max_examples=40, deadline=None)


def flood(worker: Worker, tenants: Mapping[int, Iterator[Shape]]) -> None:
    """Keep one request of each flooding tenant waiting in its lane."""
    for lane, shape in tenants.items():
        if not any(one.tenant == "flood" and one.lane == lane for one in worker.queue):
            one = next(shape)
            worker.arrive("flood", lane, one.prompt, one.max_tokens, one.max_tokens)


floods = st.fixed_dictionaries(
    {lane: st.lists(shapes(prompt=(1, 40), tokens=(4, 20)), min_size=1, max_size=3) for lane in range(LANES)}
)
