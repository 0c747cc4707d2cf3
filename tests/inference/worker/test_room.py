"""KV memory, preemption and the prefix cache, in a worker driven by hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import redis

from inference.dispatch import claims
from inference.dispatch.claims import ClaimOutcome
from inference.engine.engine import Engine
from inference.messages import CancelReason, EndState
from inference.models import LanguageModel
from inference.scheduling.memory import Verdict
from inference.worker.requests import Admit, Cancel, PlanRoom, Request, RoomPlan
from tests.inference.doors import entitled_principal
from tests.inference.worker.conftest import (
    ENDLESS,
    GREEDY,
    PROMPT,
    SETTINGS,
    HandDrivenWorker,
    alone,
    end_of,
    submit,
    tokens_of,
)

HIGH, NORMAL, LOW = "high", "normal", "low"


@pytest.fixture
def of_one_slot(model: LanguageModel, engine: Engine, valkey: redis.Redis) -> Iterator[HandDrivenWorker]:
    yield HandDrivenWorker(engine, valkey, model.name, settings=replace(SETTINGS, slots=1))
    for key in engine.keys:
        engine.drop(key)


def ask(model: LanguageModel, lane: str, **changes: Any) -> str:
    """Accept one generation in ``lane``, of a tenant of its own; its id."""
    return submit(model, by=entitled_principal(lane), requested_lane=lane, **changes)


def look(worker: HandDrivenWorker) -> ClaimOutcome:
    """What a claim comes to that finds no room."""
    outcome = claims.claim(worker.client, worker.name, "tiny", 5.0, capacity=worker.memory.capacity())
    assert outcome.claim is None
    return outcome


def make_room(worker: HandDrivenWorker) -> RoomPlan | None:
    """Ask the tick thread who would give way to what comes first."""
    request = PlanRoom(look(worker).deferred)
    worker.loop.ask(request)
    worker.turn()
    return request.answer.result(0)


def plan_for(worker: HandDrivenWorker, generation: str) -> RoomPlan:
    """The plan that makes room for it, and for no other."""
    plan = make_room(worker)
    assert plan is not None
    assert plan.generation == generation
    return plan


def made_room(worker: HandDrivenWorker, generation: str) -> None:
    """It takes the place of whoever has to give way to it."""
    plan = plan_for(worker, generation)
    worker.claim(generation, plan.victims)


def test_a_higher_lane_takes_the_row_of_a_lower_one_which_goes_on_to_the_token(
    of_one_slot: HandDrivenWorker, model: LanguageModel, engine: Engine
) -> None:
    worker = of_one_slot
    low = ask(model, LOW, max_tokens=12)
    worker.claim()
    worker.turns(5)
    before = tokens_of(worker.log(low))
    assert before
    high = ask(model, HIGH, prompt=PROMPT[:7], max_tokens=3)
    assert look(worker).deferred[0].verdict is Verdict.DEFER_NO_ROW
    plan = make_room(worker)
    assert plan == RoomPlan(high, {low: 1})
    worker.claim(high, plan.victims)
    assert worker.loop.roster.find(low) is not None, "it goes on until the other is admitted"
    worker.turn()
    assert (worker.metrics.preemptions(LOW).value, worker.metrics.requeues.value) == (1, 1)
    worker.run_dry()
    assert end_of(worker.log(high)).state is EndState.COMPLETED
    resumed = worker.claim()
    assert (resumed.task.generation, resumed.epoch, resumed.preemptions) == (low, 2, 1)
    worker.run_dry()
    assert tokens_of(worker.log(low)) == alone(engine, PROMPT, GREEDY, 12)
    assert [entry.seq for entry in worker.log(low)] == list(range(1, len(worker.log(low)) + 1))


def test_nobody_is_preempted_for_its_own_or_a_lower_lane(
    of_one_slot: HandDrivenWorker, model: LanguageModel
) -> None:
    worker = of_one_slot
    running = ask(model, NORMAL, max_tokens=ENDLESS)
    worker.claim()
    worker.turns(3)
    ask(model, NORMAL)
    assert make_room(worker) is None
    ask(model, LOW)
    assert make_room(worker) is None
    assert worker.loop.roster.find(running) is not None


def test_one_sequence_makes_room_twice_and_no_more(
    of_one_slot: HandDrivenWorker, model: LanguageModel
) -> None:
    worker = of_one_slot
    ask(model, LOW, max_tokens=ENDLESS)
    for _ in range(2):
        worker.claim()
        worker.turns(3)
        high = ask(model, HIGH, max_tokens=2)
        made_room(worker, high)
        worker.run_dry()
    worker.claim()
    worker.turns(3)
    ask(model, HIGH, max_tokens=2)
    assert make_room(worker) is None


# Between the plan and the admission


@pytest.fixture
def of_two_slots(model: LanguageModel, engine: Engine, valkey: redis.Redis) -> Iterator[HandDrivenWorker]:
    yield HandDrivenWorker(engine, valkey, model.name, settings=replace(SETTINGS, slots=2))
    for key in engine.keys:
        engine.drop(key)


def full_of_low(worker: HandDrivenWorker, model: LanguageModel) -> tuple[str, str]:
    """Two streams of the low lane; the first of them has said more, so that the other would have to leave."""
    first = ask(model, LOW, max_tokens=ENDLESS)
    worker.claim()
    worker.turns(6)
    second = ask(model, LOW, max_tokens=ENDLESS)
    worker.claim()
    worker.turn_until(lambda: worker.loop.roster.decoding_rows == 2)
    return first, second


def running(worker: HandDrivenWorker) -> set[str]:
    return {sequence.key for sequence in worker.loop.roster}


@pytest.mark.parametrize("ended", [0, 1])
def test_nobody_leaves_where_the_victim_or_another_has_ended_meanwhile(
    of_two_slots: HandDrivenWorker, model: LanguageModel, ended: int
) -> None:
    """Also by a cancel that is carried out in the turn of the admission."""
    worker = of_two_slots
    low = full_of_low(worker, model)
    high = ask(model, HIGH, max_tokens=ENDLESS)
    plan = plan_for(worker, high)
    assert plan.victims == {low[1]: 1}
    worker.loop.ask(Cancel({low[ended]: CancelReason.CLIENT_REQUESTED}))
    worker.claim(high, plan.victims)
    worker.turn()
    assert running(worker) == {low[1 - ended], high}
    assert worker.metrics.preemptions(LOW).value == 0
    assert worker.memory.capacity().free_rows == 0


def test_all_that_were_to_leave_do_where_there_is_less_room_than_was_planned_with(
    of_two_slots: HandDrivenWorker, model: LanguageModel
) -> None:
    worker = of_two_slots
    first, _ = full_of_low(worker, model)
    high = ask(model, HIGH, max_tokens=ENDLESS)
    plan = plan_for(worker, high)
    worker.claim(high, plan.victims)
    worker.holdings.resize(1)
    worker.turn()
    assert running(worker) == {first, high}


def test_nobody_leaves_for_one_that_was_lost_before_it_is_admitted(
    of_two_slots: HandDrivenWorker, model: LanguageModel
) -> None:
    worker = of_two_slots
    low = full_of_low(worker, model)
    high = ask(model, HIGH, max_tokens=ENDLESS)
    plan = plan_for(worker, high)
    worker.claim(high, plan.victims)
    assert worker.memory.capacity().free_rows == -1, "nobody is given room that may not be there"
    worker.holdings.release(high, 1)
    assert worker.memory.capacity().free_rows == 0
    worker.turn()
    assert running(worker) == set(low)
    assert worker.metrics.preemptions(LOW).value == 0


def test_nobody_leaves_for_one_that_is_only_to_be_ended(
    of_two_slots: HandDrivenWorker, model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = of_two_slots
    low = full_of_low(worker, model)
    high = ask(model, HIGH, max_tokens=ENDLESS)
    plan = plan_for(worker, high)
    late: list[Admit] = []
    with monkeypatch.context() as unasked:
        unasked.setattr(worker.loop, "ask", late.append)
        worker.claim(high, plan.victims)
    [admit] = late
    worker.loop.ask(replace(admit, claim=replace(admit.claim, cancel=CancelReason.CLIENT_REQUESTED)))
    worker.turn()
    assert end_of(worker.log(high)).state is EndState.CANCELLED
    assert running(worker) == set(low)
    assert worker.metrics.preemptions(LOW).value == 0
    assert worker.memory.capacity().free_rows == 0


def test_what_was_cancelled_in_the_same_turn_has_given_its_room_back_when_room_is_planned(
    of_two_slots: HandDrivenWorker, model: LanguageModel
) -> None:
    worker = of_two_slots
    _, second = full_of_low(worker, model)
    high = ask(model, HIGH, max_tokens=2)
    request = PlanRoom(look(worker).deferred)
    worker.loop.ask(Cancel({second: CancelReason.CLIENT_REQUESTED}))
    worker.loop.ask(request)
    worker.turn()
    assert request.answer.result(0) == RoomPlan(high, {})


# Memory


def test_what_does_not_fit_waits_until_it_does_and_what_fits_passes(
    model: LanguageModel, engine: Engine, valkey: redis.Redis
) -> None:
    step = engine.kv_step * engine.kv_bytes_per_token
    settings = replace(SETTINGS, kv_budget_bytes=4 * step, kv_watermark_percent=0)
    worker = HandDrivenWorker(engine, valkey, model.name, settings=settings)
    first = submit(model, max_tokens=engine.kv_step)  # two steps with its prompt
    assert worker.claim().task.generation == first
    large = submit(model, max_tokens=2 * engine.kv_step)
    assert look(worker).deferred[0].verdict is Verdict.DEFER_NO_ROOM
    small = submit(model, max_tokens=2)
    assert worker.claim().task.generation == small
    worker.turns(2)
    for generation in (first, small):
        assert look(worker).deferred[0].verdict is Verdict.DEFER_NO_ROOM, "also beside a small one"
        worker.loop.roster.leave(worker.loop.roster[generation])
        worker.holdings.release(generation, 1)
    assert worker.claim().task.generation == large
    assert worker.holdings.occupied()[1] <= 4 * step
    for key in engine.keys:
        engine.drop(key)


def bytes_in_caches(engine: Engine) -> int:
    """What the rows' caches really take, those of prompts and of the speculative slot included."""
    rows = engine._rows.values()
    batches = [
        engine._decoding_rows._batch,
        *(row.prefill for row in rows if row.prefill is not None),
        *(row.session.batch for row in rows if row.session is not None),
    ]
    return sum(cache.nbytes for batch in batches for cache in batch.prompt_cache)


def test_what_is_padded_to_the_longest_row_stays_within_the_budget(
    model: LanguageModel, engine: Engine, valkey: redis.Redis
) -> None:
    """A long row and three short ones: the sum of what they were given fits, the batch of all of them does not."""
    step = engine.kv_step * engine.kv_bytes_per_token
    budget = 6 * step
    settings = replace(SETTINGS, kv_budget_bytes=budget, kv_watermark_percent=0)
    worker = HandDrivenWorker(engine, valkey, model.name, settings=settings)
    long = submit(model, prompt=PROMPT * 30, max_tokens=engine.kv_step // 2)
    worker.claim()
    worker.turn_until(lambda: worker.loop.roster.decoding_rows == 1)
    assert bytes_in_caches(engine) == 3 * step
    short = [submit(model, max_tokens=engine.kv_step // 2) for _ in range(3)]
    assert worker.claim().task.generation == short[0]
    assert look(worker).deferred[0].verdict is Verdict.DEFER_NO_ROOM
    worker.turn_until(lambda: worker.loop.roster.decoding_rows == 2)
    worker.turns(2)
    assert bytes_in_caches(engine) == worker.holdings.occupied()[1] == budget
    assert {sequence.key for sequence in worker.loop.roster} == {long, short[0]}
    worker.loop.ask(Cancel({long: CancelReason.CLIENT_REQUESTED}))
    worker.turn()
    for _ in short[1:]:
        worker.claim()
    worker.turn_until(lambda: worker.loop.roster.decoding_rows == 3)
    worker.turns(2)
    assert worker.holdings.occupied() == (3, 3 * step)
    assert bytes_in_caches(engine) <= budget
    for key in engine.keys:
        engine.drop(key)


def test_while_rows_decode_the_watermark_is_kept_free(
    model: LanguageModel, engine: Engine, valkey: redis.Redis
) -> None:
    step = engine.kv_step * engine.kv_bytes_per_token
    settings = replace(SETTINGS, kv_budget_bytes=4 * step, kv_watermark_percent=50)
    worker = HandDrivenWorker(engine, valkey, model.name, settings=settings)
    running = submit(model, max_tokens=4)
    worker.claim()
    waits = submit(model, max_tokens=engine.kv_step)  # two steps with its prompt
    worker.turn()
    worker.turn_until(lambda: worker.loop.roster.decoding_rows == 1)
    assert worker.metrics.kv_reserved.value == step
    assert look(worker).deferred[0].verdict is Verdict.DEFER_NO_ROOM
    worker.run_dry()
    assert worker.metrics.kv_reserved.value == 0
    assert end_of(worker.log(running)).state is EndState.COMPLETED
    assert worker.claim().task.generation == waits, "nothing decodes any more"
    assert worker.metrics.kv_budget.value == 4 * step


def test_of_the_prefix_cache_the_requester_s_own_goes_last(
    model: LanguageModel, engine: Engine, valkey: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = engine.kv_step * engine.kv_bytes_per_token
    room = replace(SETTINGS, kv_budget_bytes=4 * step, kv_watermark_percent=0, prefix_cache_bytes=4 * step)
    worker = HandDrivenWorker(engine, valkey, model.name, settings=room)
    own, others = ([first, *PROMPT] * 10 for first in (5, 6))  # most of a step each
    requester = entitled_principal(HIGH)
    for by, prompt in ((requester, own), (entitled_principal(HIGH), others)):  # its own is the older one
        submit(model, by=by, requested_lane=HIGH, prompt=prompt, max_tokens=2)
        worker.claim()
        worker.run_dry()
    ask(model, LOW, max_tokens=engine.kv_step)
    worker.claim()
    worker.turns(3)
    high = submit(model, by=requester, requested_lane=HIGH, prompt=[*own, 7], max_tokens=2 * engine.kv_step)
    evictions = engine.prefix_counters.evictions
    late: list[Request] = []
    plan = plan_for(worker, high)
    with monkeypatch.context() as during_a_tick:
        during_a_tick.setattr(worker.loop, "ask", late.append)
        worker.claim(high, plan.victims)
        worker.turn()
    assert engine.prefix_counters.evictions == evictions, "its room is its victim's still"
    worker.loop.ask(*late)
    worker.turn()
    assert engine.prefix_counters.evictions > evictions, "the victim's bytes do not suffice"
    worker.turn_until(lambda: len(worker.log(high)) > 0)
    assert (worker.loop.roster[high].cached_tokens or 0) >= len(own)
    assert worker.metrics.prefix_evictions.value == engine.prefix_counters.evictions
    for key in engine.keys:
        engine.drop(key)
    engine.set_prefix_budget(0)


def test_an_admission_takes_of_the_prefix_cache_the_requester_s_own_last(
    model: LanguageModel, engine: Engine, valkey: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = engine.kv_step * engine.kv_bytes_per_token
    room = replace(SETTINGS, kv_budget_bytes=4 * step, kv_watermark_percent=0, prefix_cache_bytes=4 * step)
    worker = HandDrivenWorker(engine, valkey, model.name, settings=room)
    prompts = [[first, *PROMPT] * 10 for first in (5, 6, 7)]  # most of a step each
    owners = [entitled_principal(NORMAL) for _ in prompts]
    for by, prompt in zip(owners, prompts, strict=True):
        submit(model, by=by, prompt=prompt, max_tokens=2)
        worker.claim()
        worker.run_dry()
    oldest = [
        submit(model, by=by, prompt=[*prompt, 8], max_tokens=2)
        for by, prompt in zip(owners[:2], prompts[:2], strict=True)
    ]
    evictions = engine.prefix_counters.evictions
    late: list[Request] = []
    with monkeypatch.context() as during_a_tick:  # at its end they have their bytes, and are not admitted yet
        during_a_tick.setattr(worker.loop, "ask", late.append)
        for _ in oldest:
            worker.claim()
        worker.turn()
    for request in late:
        worker.loop.ask(request)
    assert engine.prefix_counters.evictions > evictions
    worker.run_dry()
    assert all(end_of(worker.log(key)).usage.cached_tokens >= len(prompts[0]) for key in oldest)
    engine.set_prefix_budget(0)


def test_a_chats_next_turn_finds_the_last_one_cached_and_says_so(
    model: LanguageModel, engine: Engine, valkey: redis.Redis
) -> None:
    worker = HandDrivenWorker(
        engine, valkey, model.name, settings=replace(SETTINGS, prefix_cache_bytes=1 << 24)
    )
    worker.turn()
    metrics = worker.metrics  # the engine is the session's: others have used its cache
    counted = (metrics.prefix_lookups, metrics.prefix_hits, metrics.prefix_hit_tokens)
    before = [series.value for series in counted]
    prompt = [3 + (7 * i) % 50 for i in range(30)]
    tenant = entitled_principal()
    first = submit(model, by=tenant, prompt=prompt, max_tokens=8)
    worker.claim()
    worker.run_dry()
    assert end_of(worker.log(first)).usage.cached_tokens == 0
    answer = tokens_of(worker.log(first))
    second = submit(model, by=tenant, prompt=[*prompt, *answer, *PROMPT[:6]], max_tokens=8)
    worker.claim()
    worker.run_dry()
    cached = end_of(worker.log(second)).usage.cached_tokens
    assert len(prompt) <= cached < len(prompt) + len(answer) + 6
    stranger = submit(model, prompt=prompt, max_tokens=2)
    worker.claim()
    worker.run_dry()
    assert end_of(worker.log(stranger)).usage.cached_tokens == 0, "a tenant's prefixes are its own"
    engine.set_prefix_budget(0)
    assert tokens_of(worker.log(second)) == alone(engine, [*prompt, *answer, *PROMPT[:6]], GREEDY, 8)
    assert [series.value - had for series, had in zip(counted, before, strict=True)] == [3, 1, cached]
    assert metrics.lane("normal").cached_tokens.value == cached
