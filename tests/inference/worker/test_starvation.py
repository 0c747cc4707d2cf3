"""F4 and F7: what streams, prompts and lanes may have to wait for, in real workers, in the stated bounds' units."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import pytest
import redis

from accounts.principal import Principal
from accounts.tenancy import every_tenant
from inference.dispatch import keys, token_log
from inference.engine.engine import Engine
from inference.messages import Delta, PrefillProgress, TickEntry, tick_entry_decoder
from inference.models import GenerationRun, LanguageModel, RunOutcome
from inference.models.generation import GenerationState
from inference.scheduling.preemption import MOST_PREEMPTIONS
from inference.scheduling.tick import Action
from tests.inference.doors import entitled_principal, row
from tests.inference.engine.speculating import ScriptedDrafter
from tests.inference.worker.conftest import (
    ENDLESS,
    GREEDY,
    PROMPT,
    SETTINGS,
    HandDrivenWorker,
    WorkerInThread,
    alone,
    submit,
    tokens_of,
    wait_until,
)
from tests.inference.worker.test_slot import drafter, speculating

__all__ = ["drafter"]

STREAMS, PROMPTS = 8, 40
ROOM = 64
CHUNK, INTERVAL = SETTINGS.limits.chunk_tokens, SETTINGS.limits.interval
#: Just under, at and just above a chunk, and very long.
LENGTHS = [CHUNK - 1, CHUNK, CHUNK + 1, 12 * CHUNK]


def of_length(tokens: int) -> list[int]:
    return (PROMPT * (tokens // len(PROMPT) + 1))[:tokens]


@dataclass
class Ticks:
    """What a worker has published since, tick by tick. Every tick that runs the model publishes."""

    client: redis.Redis
    since: bytes

    @classmethod
    def begin(cls, client: redis.Redis) -> Ticks:
        return cls(client, client.xrevrange(keys.STREAM, count=1)[0][0])

    def all(self) -> list[TickEntry]:
        entries = self.client.xrange(keys.STREAM, min=b"(" + self.since)
        assert self.client.xrange(keys.STREAM, self.since, self.since), "the stream has kept all of them"
        return [tick_entry_decoder.decode(fields[b"tick"]) for _, fields in entries]


def tokens_at(ticks: Sequence[TickEntry], generation: str) -> list[int]:
    """The ticks in which it said something."""
    return [
        number
        for number, tick in enumerate(ticks)
        if any(key == generation and isinstance(one, Delta) for key, one in tick.publications)
    ]


def longest_gap(ticks: Sequence[TickEntry], stream: str) -> int:
    """Ticks from one of its tokens to the next, at most; before the first and behind the last one, too."""
    at = [-1, *tokens_at(ticks, stream), len(ticks)]
    return max(after - before for before, after in itertools.pairwise(at))


def runs_prompt(tick: TickEntry) -> bool:
    return any(isinstance(one, PrefillProgress) for _, one in tick.publications)


# F4


@pytest.fixture
def make_worker(
    model: LanguageModel, engine: Engine, valkey: redis.Redis
) -> Iterator[Callable[..., HandDrivenWorker]]:
    def make(settings: Any = SETTINGS) -> HandDrivenWorker:
        return HandDrivenWorker(engine, valkey, model.name, settings=replace(settings, slots=ROOM))

    yield make
    for key in engine.keys:
        engine.drop(key)


def start_streams(worker: HandDrivenWorker, model: LanguageModel, count: int = STREAMS) -> list[str]:
    """So many endless streams, whose debts are paid."""
    by = entitled_principal()
    streams = [submit(model, by=by, prompt=PROMPT[:8], max_tokens=ENDLESS) for _ in range(count)]
    for _ in streams:
        worker.claim()
    worker.turn_until(
        lambda: all(worker.log(stream) for stream in streams) and not worker.metrics.prefill_debt.value
    )
    return streams


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("a_tick", [PROMPTS, 1])
def test_f4_no_stream_waits_for_more_than_one_other_tick_while_40_prompts_arrive(
    make_worker: Callable[..., HandDrivenWorker],
    model: LanguageModel,
    valkey: redis.Redis,
    length: int,
    a_tick: int,
) -> None:
    """All at once, and one after the other. Nor do the prompts wait for the streams longer than is stated."""
    worker = make_worker()
    streams, by = start_streams(worker, model), entitled_principal()
    prompts = [submit(model, by=by, prompt=of_length(length), max_tokens=4) for _ in range(PROMPTS)]
    ticks, waiting, came = Ticks.begin(valkey), list[int](), 0
    while came < PROMPTS or worker.loop.roster.decoding_rows > STREAMS or worker.loop.roster.prefills:
        for _ in range(min(a_tick, PROMPTS - came)):
            worker.claim()
            came += 1
        assert worker.turn() is not Action.IDLE
        waiting.append(worker.loop.roster.prefills)
    seen = ticks.all()
    assert len(seen) == len(waiting)
    assert max(longest_gap(seen, stream) for stream in streams) == 2
    granted = [number for number, tick in enumerate(seen) if runs_prompt(tick)]
    for before, after in itertools.pairwise(granted):
        if waiting[before]:
            assert after - before <= math.ceil(INTERVAL / waiting[before]) + 1
    firsts = [tokens_at(seen, prompt)[0] for prompt in prompts]
    if length <= CHUNK and a_tick == PROMPTS:
        within = itertools.accumulate(math.ceil(INTERVAL / left) + 1 for left in range(PROMPTS, 0, -1))
        assert all(first < bound for first, bound in zip(sorted(firsts), within, strict=True))


def test_f4_beside_a_slot_job_no_row_waits_for_more_than_three_other_ticks(
    make_worker: Callable[..., HandDrivenWorker],
    model: LanguageModel,
    valkey: redis.Redis,
    drafter: ScriptedDrafter,
) -> None:
    """One holds the slot, two take turns with it, and eight decode in the batch."""
    worker = make_worker(speculating(grant_rounds=2))
    streams, by = start_streams(worker, model, STREAMS + 3), entitled_principal()
    rows = [stream for stream in streams if not worker.loop.roster.is_at_slot(worker.loop.roster[stream])]
    assert len(rows) == STREAMS
    prompts = [submit(model, by=by, prompt=of_length(3 * CHUNK), max_tokens=4) for _ in range(PROMPTS)]
    ticks = Ticks.begin(valkey)
    for _ in prompts:
        worker.claim()
    worker.turn()
    worker.turn_until(lambda: len(worker.loop.roster) == len(streams))
    seen = ticks.all()
    assert 2 < max(longest_gap(seen, stream) for stream in rows) <= 4
    assert all(len(tokens_at(seen, prompt)) == 4 for prompt in prompts)
    assert all(tokens_at(seen, stream) for stream in streams), "nor do those at the slot stand still"


@pytest.mark.parametrize("length", [CHUNK - 1, 12 * CHUNK])
def test_f4_in_a_whole_worker_whose_claims_come_when_they_come(
    start_worker: Callable[..., WorkerInThread], model: LanguageModel, valkey: redis.Redis, length: int
) -> None:
    LanguageModel.objects.update(
        slots=ROOM, prefill_chunk_tokens=CHUNK, prefill_interval=INTERVAL, prefix_cache_mib=0
    )
    model.refresh_from_db()
    start_worker()
    by, other = entitled_principal(), entitled_principal()
    streams = [submit(model, by=by, prompt=PROMPT[:8], max_tokens=ENDLESS) for _ in range(STREAMS)]
    wait_until(lambda: all(len(token_log.read(valkey, stream)) > 1 for stream in streams))
    ticks = Ticks.begin(valkey)
    prompts = [submit(model, by=other, prompt=of_length(length), max_tokens=4) for _ in range(PROMPTS)]
    wait_until(lambda: all(len(token_log.read(valkey, prompt)) == 4 + 1 for prompt in prompts))
    seen = ticks.all()
    assert max(longest_gap(seen, stream) for stream in streams) == 2
    granted = [number for number, tick in enumerate(seen) if runs_prompt(tick)]
    assert len(granted) >= PROMPTS * math.ceil(length / CHUNK) * (length > CHUNK)
    for prompt in prompts:  # from a prompt's first chunk on, one is waiting for certain
        chunks = [
            number
            for number, tick in enumerate(seen)
            if any(key == prompt and isinstance(one, PrefillProgress) for key, one in tick.publications)
        ]
        within = [number for number in granted if chunks[0] <= number <= chunks[-1]]
        assert all(after - before <= INTERVAL + 1 for before, after in itertools.pairwise(within))


# F7

HIGHS, LOWS = 120, 3
#: Grants of which one is the low lane's, while both lanes have something that waits: the floor, and 2 lanes less 1.
WINDOW = SETTINGS.lane_floor + 2 - 1


def runs_of(generations: Sequence[str]) -> list[GenerationRun]:
    """Every claim of these, in the order in which they were made."""
    with every_tenant("the test looks"):
        found = GenerationRun.objects.filter(generation_id__in=[UUID(one) for one in generations])
        return list(found.order_by("claimed_at"))


@pytest.mark.parametrize("preemption", [True, False])
def test_f7_each_low_request_ends_within_the_bound_while_the_high_lane_is_saturated(
    start_worker: Callable[..., WorkerInThread],
    model: LanguageModel,
    engine: Engine,
    valkey: redis.Redis,
    preemption: bool,
) -> None:
    """Of each ``WINDOW`` grants one is a low request's; each needs one, and one more for each of its preemptions."""
    LanguageModel.objects.update(
        slots=2, prefill_chunk_tokens=CHUNK, prefill_interval=INTERVAL, preemption=preemption
    )
    model.refresh_from_db()
    expected = alone(engine, PROMPT * 3, GREEDY, 20)
    high, low = entitled_principal("high"), entitled_principal("low")

    def ask(by: Principal, lane: str, **changes: Any) -> str:
        return submit(model, by=by, requested_lane=lane, unattended=True, **changes)

    highs = [ask(high, "high", prompt=PROMPT * 2, max_tokens=12) for _ in range(HIGHS)]
    lows = [ask(low, "low", prompt=PROMPT * 3, max_tokens=20) for _ in range(LOWS)]
    worker = start_worker()
    wait_until(lambda: all(row(one).state == GenerationState.COMPLETED for one in lows))
    worker.stop()
    assert all(tokens_of(token_log.read(valkey, one)) == expected for one in lows)

    runs = runs_of([*highs, *lows])
    of_lows = [run for run in runs if run.generation_id.hex in lows]
    claimed = {run.generation_id.hex for run in runs[: runs.index(of_lows[-1])]}
    assert not claimed.issuperset(highs), "the high lane was saturated all the time"
    for one in lows:
        own = [run for run in of_lows if run.generation_id.hex == one]
        assert [run.outcome for run in own[:-1]] == [RunOutcome.PREEMPTED] * (len(own) - 1)
        assert len(own) - 1 <= (MOST_PREEMPTIONS if preemption else 0)
        waits_since = runs[0].claimed_at
        for run in own:
            grants = [other for other in runs if waits_since <= other.claimed_at < run.claimed_at]
            before_it = sum(other in of_lows for other in grants)
            assert len(grants) < (before_it + 1) * WINDOW
            waits_since = run.ended_at
