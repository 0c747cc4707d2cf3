"""What a run's timeline keeps: of real ticks what happened in them, and of any number of ticks a bounded number."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounts.tenancy import every_tenant
from inference.dispatch.claims import Claim
from inference.messages import CancelReason, GenerationTask, Sampling
from inference.models import Generation, GenerationRun, LanguageModel, RunOutcome
from inference.runs import Event, EventKind
from inference.scheduling.tick import Action
from inference.worker.requests import Cancel
from inference.worker.timeline import MOST_CHUNKS, MOST_GRANTS, MOST_SPANS, RunTimeline
from tests.inference.dispatch.conftest import let_lease_lapse
from tests.inference.worker.conftest import PROMPT, HandDrivenWorker, submit

LONG_PROMPT = [*PROMPT, *PROMPT, *PROMPT]

RunsOf = Callable[[str], list[GenerationRun]]


@pytest.fixture
def runs_of(worker: HandDrivenWorker) -> Iterator[RunsOf]:
    """Gives a generation's rows, once the worker's settlement thread has written all it has."""
    worker.settlements.start()

    def rows(generation: str) -> list[GenerationRun]:
        assert worker.settlements.flush(30), "not everything was settled"
        with every_tenant("a test looks"):
            return list(GenerationRun.objects.filter(generation_id=generation).order_by("epoch"))

    yield rows
    worker.settlements.stop()
    worker.settlements.join(10)


def kinds_of(run: GenerationRun) -> list[str]:
    return [kind for _, kind, _ in run.events]


def of_kind(run: GenerationRun, kind: EventKind) -> list[dict[str, Any]]:
    return [details for _, name, details in run.events if name == kind]


# Of real ticks


def test_a_run_is_kept_with_its_chunks_its_first_token_and_its_tokens(
    worker: HandDrivenWorker, model: LanguageModel, runs_of: RunsOf
) -> None:
    generation = submit(model, prompt=LONG_PROMPT)  # 60 tokens, in chunks of 16
    worker.claim()
    worker.run_dry()
    (run,) = runs_of(generation)
    assert (run.epoch, run.outcome) == (1, RunOutcome.COMPLETED)
    chunks = of_kind(run, EventKind.CHUNK)
    assert [(chunk["tokens"], chunk["done"], chunk["total"]) for chunk in chunks] == [
        (16, 16, 60),
        (16, 32, 60),
        (16, 48, 60),
        (12, 60, 60),
    ]
    assert kinds_of(run)[:6] == [EventKind.CLAIMED, *[EventKind.CHUNK] * 4, EventKind.FIRST_TOKEN]
    assert kinds_of(run)[-1] == EventKind.ENDED
    assert of_kind(run, EventKind.ENDED) == [{"reason": "length"}]
    assert 1 + sum(span["tokens"] for span in of_kind(run, EventKind.TOKENS)) == 12
    times = [at for at, _, _ in run.events]
    assert times == sorted(times)
    assert run.claimed_at <= run.ended_at


def test_prompts_that_share_a_tick_say_so(
    worker: HandDrivenWorker, model: LanguageModel, runs_of: RunsOf
) -> None:
    first, second = submit(model, prompt=PROMPT[:5]), submit(model, prompt=PROMPT[:6])
    worker.claim()
    worker.claim()
    worker.run_dry()
    for generation in (first, second):
        (run,) = runs_of(generation)
        assert [chunk.get("beside") for chunk in of_kind(run, EventKind.CHUNK)] == [1]


def test_a_run_holds_no_text_and_no_token(
    worker: HandDrivenWorker, model: LanguageModel, runs_of: RunsOf
) -> None:
    generation = submit(model)
    worker.claim()
    worker.run_dry()
    (run,) = runs_of(generation)
    words = {value for _, _, details in run.events for value in details.values() if isinstance(value, str)}
    assert words == {"length"}


def test_what_goes_back_to_the_queue_leaves_a_run_and_the_next_one_says_what_it_kept(
    worker: HandDrivenWorker, model: LanguageModel, runs_of: RunsOf
) -> None:
    generation = submit(model, max_tokens=30)
    worker.claim()
    worker.turn_until(lambda: len(worker.log(generation)) == 5)
    worker.loop.hand_back()
    worker.claim()
    worker.run_dry()
    first, second = runs_of(generation)
    assert (first.outcome, second.outcome) == (RunOutcome.REQUEUED, RunOutcome.COMPLETED)
    assert of_kind(second, EventKind.RESUMED) == [{"tokens": 5}]
    assert EventKind.FIRST_TOKEN not in kinds_of(second)
    produced = [sum(span["tokens"] for span in of_kind(run, EventKind.TOKENS)) for run in (first, second)]
    assert produced == [5 - 1, 30 - 5]
    assert first.ended_at <= second.claimed_at
    with every_tenant("a test looks"):
        began_at = Generation.objects.get(id=generation).first_token_at
    assert began_at is not None
    assert first.claimed_at <= began_at <= first.ended_at


def test_a_claim_that_is_given_back_before_it_ran_leaves_a_run_too(
    worker: HandDrivenWorker, model: LanguageModel, runs_of: RunsOf
) -> None:
    generation = submit(model)
    worker.claim()
    worker.loop.hand_back()
    (run,) = runs_of(generation)
    assert (run.outcome, kinds_of(run)) == (RunOutcome.REQUEUED, [EventKind.CLAIMED, EventKind.ENDED])


def test_a_run_whose_lease_lapsed_is_kept_as_lost(
    worker: HandDrivenWorker, model: LanguageModel, runs_of: RunsOf
) -> None:
    generation = submit(model)
    worker.claim()
    worker.turns(3)
    let_lease_lapse(worker.client, generation, model.name)
    worker.claim()
    worker.run_dry()
    lost, completed = runs_of(generation)
    assert (lost.outcome, completed.outcome) == (RunOutcome.LOST, RunOutcome.COMPLETED)


def test_a_cancel_is_in_the_run_with_its_reason(
    worker: HandDrivenWorker, model: LanguageModel, runs_of: RunsOf
) -> None:
    generation = submit(model, prompt=LONG_PROMPT)
    worker.claim()
    worker.turns(2)
    worker.loop.ask(Cancel({generation: CancelReason.DETACHED}))
    assert worker.turn() is Action.IDLE
    (run,) = runs_of(generation)
    assert run.outcome == RunOutcome.CANCELLED
    assert of_kind(run, EventKind.CANCELLED) == [{"reason": "detached"}]
    assert len(of_kind(run, EventKind.CHUNK)) == 2


def test_a_fault_is_in_the_run_with_its_code_only(
    worker: HandDrivenWorker, model: LanguageModel, runs_of: RunsOf
) -> None:
    generation = submit(model, sampling=Sampling(seed=1, logit_bias={10**6: 1.0}))
    worker.claim()
    worker.run_dry()
    (run,) = runs_of(generation)
    assert run.outcome == RunOutcome.FAILED


def test_a_report_that_cannot_be_written_is_let_go_and_settlement_goes_on(
    worker: HandDrivenWorker, model: LanguageModel, runs_of: RunsOf
) -> None:
    gone = RunTimeline(claim_of("0" * 32)).left(RunOutcome.REQUEUED)  # the database knows no such generation
    worker.settlements.report(gone)
    generation = submit(model)
    worker.claim()
    worker.run_dry()
    assert [run.outcome for run in runs_of(generation)] == [RunOutcome.COMPLETED]
    with every_tenant("a test looks"):
        assert Generation.objects.get(id=generation).state == "completed"


# Of any number of ticks


def claim_of(generation: str) -> Claim:
    task = GenerationTask(
        generation=generation,
        tenant="acme",
        model="tiny",
        lane="normal",
        lane_rank=1,
        weight=1,
        prompt=[5, 6, 7],
        max_tokens=10,
        sampling=Sampling(seed=1),
        accepted_at=0.0,
    )
    return Claim(
        task=task,
        epoch=1,
        log=[],
        log_lost=False,
        cancel=None,
        lapses=0,
        preemptions=0,
        suspicion=0,
    )


def recorded(chunks: list[tuple[float, int]], pauses: list[float]) -> list[Event]:
    """The events of a run with these chunks (seconds, tokens), whose tokens came after these pauses."""
    clock = 1000.0
    timeline = RunTimeline(claim_of("1" * 32), clock)
    total, done = sum(tokens for _, tokens in chunks), 0
    for seconds, tokens in chunks:
        done += tokens
        timeline.chunk(clock, clock + seconds, done, total, beside=0)
        clock += seconds
    for pause in pauses:
        clock += pause
        timeline.tokens(clock)
    return timeline.left(RunOutcome.COMPLETED).events


def many(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    """Up to a thousand of them, repeated from a few: Hypothesis itself hardly ever makes lists as long as that."""
    return st.tuples(st.lists(parts, min_size=1, max_size=5), st.integers(0, 1000)).map(
        lambda drawn: list(islice(cycle(drawn[0]), drawn[1]))
    )


@given(
    chunks=many(st.tuples(st.floats(0, 5), st.integers(1, 512))),
    pauses=many(st.floats(0, 3)),
)
def test_a_timeline_is_bounded_and_merging_loses_no_token(
    chunks: list[tuple[float, int]], pauses: list[float]
) -> None:
    events = recorded(chunks, pauses)
    run = [details for _, kind, details in events if kind == EventKind.CHUNK]
    spans = [details for _, kind, details in events if kind == EventKind.TOKENS]
    assert len(run) <= MOST_CHUNKS
    assert len(spans) <= MOST_SPANS
    assert len(events) <= 400
    assert sum(chunk["tokens"] for chunk in run) == sum(tokens for _, tokens in chunks)
    assert sum(chunk.get("merged", 1) for chunk in run) == len(chunks)
    assert sum(chunk.get("busy", chunk["s"]) for chunk in run) == pytest.approx(
        sum(seconds for seconds, _ in chunks), abs=0.05
    )
    assert sum(span["tokens"] for span in spans) == max(0, len(pauses) - 1)
    if len(pauses) > 1:
        assert max(span["gap"] for span in spans) == pytest.approx(max(pauses[1:]), abs=1e-3)
    times = [at for at, _, _ in events[:-1]]
    assert times == sorted(times)
    json.dumps(events)


def test_a_long_run_has_spans_of_one_length() -> None:
    events = recorded([(0.1, 16)], [0.05] * 24_000)  # twenty minutes
    spans = [details["s"] for _, kind, details in events if kind == EventKind.TOKENS]
    assert 50 <= len(spans) <= MOST_SPANS
    assert max(spans) == pytest.approx(min(spans[:-1]), rel=0.1)


# Of the slot


def slot_events(timeline: RunTimeline) -> list[tuple[str, dict[str, Any]]]:
    events = timeline.left(RunOutcome.COMPLETED).events
    return [
        (kind, details) for _, kind, details in events if kind not in (EventKind.CLAIMED, EventKind.ENDED)
    ]


def test_waits_grants_and_parks_are_told_with_their_rounds() -> None:
    timeline = RunTimeline(claim_of("2" * 32), 1000.0)
    timeline.slot_waits(1001.0)
    timeline.slot_granted(1003.0)
    for drafted in ((4, 3), (4, 1)):
        timeline.slot_round()
        timeline.drafted(*drafted)
    timeline.slot_parked(1004.0)
    timeline.slot_granted(1006.0)
    timeline.slot_round()
    timeline.drafted(2, 0)
    timeline.slot_parked(1007.0)
    timeline.slot_left(1007.5, "drafter_unavailable")
    assert slot_events(timeline) == [
        ("slot_wait", {"s": 2.0}),
        ("slot_grant", {"s": 1.0, "rounds": 2, "proposed": 8, "accepted": 4}),
        ("slot_wait", {"s": 2.0, "parked": True}),
        ("slot_grant", {"s": 1.0, "rounds": 1, "proposed": 2, "accepted": 0}),
        ("slot_wait", {"s": 0.5, "parked": True}),
        ("classic", {"reason": "drafter_unavailable"}),
    ]


def test_what_ends_with_the_slot_or_while_it_waits_for_it_says_so() -> None:
    holding, waiting = (RunTimeline(claim_of("2" * 32)) for _ in range(2))
    holding.slot_granted(time.monotonic())
    holding.slot_round()
    holding.drafted(3, 2)
    waiting.slot_waits(time.monotonic())
    [(kind, details)] = slot_events(holding)
    assert (kind, details["rounds"]) == ("slot_grant", 1)
    assert [kind for kind, _ in slot_events(waiting)] == ["slot_wait"]


def test_no_token_came_while_it_was_parked() -> None:
    timeline = RunTimeline(claim_of("2" * 32), 1000.0)
    timeline.slot_granted(1000.0)
    for at in (1000.0, 1000.1, 1000.2):
        timeline.tokens(at)
    timeline.slot_parked(1000.2)
    timeline.slot_granted(1000.4)
    timeline.tokens(1000.5, 3)
    events = timeline.left(RunOutcome.COMPLETED).events
    spans = [(at - events[0][0], details) for at, kind, details in events if kind == EventKind.TOKENS]
    assert [(pytest.approx(at, abs=1e-3), details["s"], details["tokens"]) for at, details in spans] == [
        (0.0, 0.2, 2),
        (0.4, 0.1, 3),
    ]
    assert spans[1][1]["gap"] == pytest.approx(0.3)


@given(
    grants=many(
        st.tuples(
            st.floats(0, 3),
            st.floats(0, 3),
            st.lists(st.tuples(st.integers(0, 16), st.integers(0, 16)), max_size=3),
        )
    )
)
def test_merging_grants_loses_no_round_and_no_time(
    grants: list[tuple[float, float, list[tuple[int, int]]]],
) -> None:
    clock = 1000.0
    timeline = RunTimeline(claim_of("2" * 32), clock)
    for held, parked, rounds in grants:
        timeline.slot_granted(clock)
        for proposed, accepted in rounds:
            timeline.slot_round()
            timeline.drafted(proposed, accepted)
        timeline.slot_parked(clock + held)
        clock += held + parked
    timeline.slot_left(clock, "does_not_pay")
    told = slot_events(timeline)
    kept = [details for kind, details in told if kind == EventKind.SLOT_GRANT]
    assert len(kept) <= MOST_GRANTS
    assert len(told) <= 2 * MOST_GRANTS + 2
    rounds = [one for _, _, of_grant in grants for one in of_grant]
    assert sum(grant["rounds"] for grant in kept) == len(rounds)
    assert sum(grant["proposed"] for grant in kept) == sum(proposed for proposed, _ in rounds)
    assert sum(grant["accepted"] for grant in kept) == sum(accepted for _, accepted in rounds)
    assert sum(grant.get("merged", 1) for grant in kept) == len(grants)
    assert sum(grant.get("busy", grant["s"]) for grant in kept) == pytest.approx(
        sum(held for held, _, _ in grants), abs=0.05
    )
    json.dumps(told)
