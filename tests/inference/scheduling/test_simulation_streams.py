"""The whole scheduler at work while streams decode and prompts arrive: how long each waits, and what prompts cost."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given

from inference.scheduling.tick import Action, PrefillLimits
from tests.inference.scheduling.simulation import (
    AMPLE,
    Machine,
    Request,
    Trouble,
    Worker,
    days,
    few,
    machines,
    shapes,
)

CHUNK, INTERVAL = 8, 4
#: Ticks from one token of a stream to its next, at most: one other tick may come between them.
LONGEST_GAP = 2


@dataclass(frozen=True)
class Grant:
    """A prompt tick: when it was, of whom it ran how many tokens, beside streams or not, and what it was charged.

    ``waiting``: prompts that were still parked after it.
    """

    at: int
    ran: dict[str, int]
    producing: bool
    charged: int
    waiting: int

    @property
    def padded(self) -> int:
        return len(self.ran) * max(self.ran.values())


@dataclass
class Watch:
    """Ticks a worker, and notes what its requests live through. Times are in ticks."""

    worker: Worker
    came: dict[str, int] = field(default_factory=dict)
    tokens_at: dict[str, list[int]] = field(default_factory=dict)
    grants: list[Grant] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)

    def arrive(self, prompt: int, *, tokens: int = 4, tenant: str = "b", lane: int = 1) -> Request:
        request = self.worker.arrive(tenant, lane, prompt, tokens, tokens)
        self.came[request.name] = self.worker.now
        return request

    def tick(self) -> Action:
        worker = self.worker
        produced = {one.name: one.produced for one in worker.requests}
        remaining = {one.request.name: one.remaining for one in worker.running}
        debt, producing = worker.last.prefill_debt, bool(worker.decoding)
        action = worker.tick()
        self.actions.append(action)
        for one in worker.requests:
            if one.produced > produced[one.name]:
                self.tokens_at.setdefault(one.name, []).append(worker.now)
        if action is Action.PREFILL:
            left = {one.request.name: one.remaining for one in worker.running}
            ran = {
                one.name: remaining.get(one.name, one.prompt) - left.get(one.name, 0)
                for one in worker.requests
                if one.name in remaining or one.name in left or one.produced > produced[one.name]
            }
            charged = worker.last.prefill_debt - debt
            ran = {name: count for name, count in ran.items() if count}
            self.grants.append(Grant(worker.now, ran, producing, charged, len(worker.parked)))
        return action

    def tick_until_done(self, requests: Iterable[Request]) -> None:
        requests = list(requests)
        while not all(request.ended for request in requests):
            self.tick()

    def longest_gap(self, request: Request) -> int:
        """Between two of its tokens."""
        return max(after - before for before, after in itertools.pairwise(self.tokens_at[request.name]))

    def waited(self, request: Request) -> int:
        """From its arrival to its first token."""
        return self.tokens_at[request.name][0] - self.came[request.name]


def streaming(count: int, tokens: int = 3000) -> tuple[Watch, list[Request]]:
    """A worker with so many streams that decode and owe nothing."""
    watch = Watch(Worker(Machine(PrefillLimits(CHUNK, INTERVAL), rows=64)))
    streams = [watch.arrive(4, tokens=tokens, tenant="a", lane=2) for _ in range(count)]
    while not all(stream.produced for stream in streams) or watch.worker.last.prefill_debt:
        watch.tick()
    return watch, streams


@pytest.mark.parametrize("prompt", [CHUNK - 1, CHUNK, CHUNK + 1, 12 * CHUNK])
@pytest.mark.parametrize("a_tick", [40, 1])
def test_f4_no_stream_waits_for_more_than_one_other_tick_while_40_prompts_arrive(
    prompt: int, a_tick: int
) -> None:
    """Just under, at and just above a chunk, and very long; all at once, and one after the other. No prompt waits for
    the streams longer than is stated either."""
    watch, streams = streaming(8)
    prompts: list[Request] = []
    while len(prompts) < 40:
        prompts += [watch.arrive(prompt) for _ in range(a_tick)]
        watch.tick()
    watch.tick_until_done(prompts)
    assert max(watch.longest_gap(stream) for stream in streams) == LONGEST_GAP
    assert all(watch.longest_gap(one) <= LONGEST_GAP for one in prompts), (
        "they are streams from their first token on"
    )
    for before, after in itertools.pairwise(watch.grants):
        if before.waiting:
            assert after.at - before.at <= math.ceil(INTERVAL / before.waiting) + 1
    if prompt <= CHUNK:
        firsts = [watch.tokens_at[one.name][0] for one in prompts]
        assert firsts == sorted(firsts), "short prompts go in the order in which they came"
    if prompt <= CHUNK and a_tick == 40:
        within = itertools.accumulate(math.ceil(INTERVAL / waiting) + 1 for waiting in range(40, 0, -1))
        assert all(watch.waited(one) <= bound for one, bound in zip(prompts, within, strict=True))
    within_all = sum(math.ceil(INTERVAL / max(1, grant.waiting)) + 1 for grant in watch.grants)
    assert max(map(watch.waited, prompts)) <= within_all


def test_f5_a_very_long_prompt_and_those_just_under_a_chunk_are_charged_alike_and_neither_dodges_the_ledger() -> (
    None
):
    watch, [stream] = streaming(1)
    began = len(watch.grants)
    long = watch.arrive(50 * CHUNK)
    watch.tick()
    near: list[Request] = []
    while len(near) < 40:
        near.append(watch.arrive(CHUNK - 1))
        watch.tick()
    watch.tick_until_done([long, *near])
    grants = watch.grants[began:]
    assert {grant.padded for grant in grants} == {CHUNK - 1, CHUNK}
    for grant in grants:
        assert grant.producing
        assert grant.charged == grant.padded * INTERVAL, "by the token, whoever's they are"
    # While both wait they take turns: the long one gets its chunks, and no near one waits for all of those.
    assert len(near) < sum(long.name in grant.ran for grant in grants)
    contended = [long.name in grant.ran for grant in grants if grant.at <= watch.tokens_at[near[-1].name][0]]
    assert all(before != after for before, after in itertools.pairwise(contended))
    # What they are charged is paid by ticks of the stream, before the next of them.
    assert watch.longest_gap(stream) == LONGEST_GAP
    decodes = watch.actions.count(Action.DECODE)
    assert decodes >= sum(grant.charged for grant in grants) / (CHUNK * (len(near) + 1))
    alone = [after.at - before.at for before, after in itertools.pairwise(grants) if before.waiting == 1]
    assert set(alone[1:]) == {INTERVAL + 1}, (
        "the rest of the long one costs exactly the interval for each chunk"
    )


@few
@given(machines(budgets=AMPLE), days(shapes(), crowd=5))
def test_f5_whatever_arrives_prompt_work_beside_streams_is_charged_by_the_token_and_starts_when_all_is_paid(
    machine: Machine, day: list[Trouble]
) -> None:
    watch = Watch(Worker(replace(machine, preempts=False)))
    for arrivals, _ in day:
        for shape in arrivals:
            watch.arrive(shape.prompt, tokens=shape.max_tokens, tenant=shape.tenant, lane=shape.lane)
        watch.tick()
    watch.tick_until_done(watch.worker.requests)
    for grant in watch.grants:
        if grant.producing:
            assert grant.charged == grant.padded * machine.limits.interval
            assert grant.padded <= machine.limits.chunk_tokens
        else:
            assert grant.charged <= 0, "nobody streams who could be held up"
    for one in watch.worker.requests:
        if one.produced > 1:
            assert watch.longest_gap(one) <= LONGEST_GAP
