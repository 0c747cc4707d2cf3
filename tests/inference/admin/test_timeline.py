"""The timeline on a generation's page: its layout, for any story; and the page, for what the database holds."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from accounts.models import Lane
from accounts.tenancy import every_tenant
from inference.admin.timeline import MOST_ROWS, Run, Story, draw, ticks
from inference.admin.timeline_shapes import Bar, Drawing, Mark
from inference.models import Generation, GenerationRun, RunOutcome
from inference.runs import Event, EventKind
from tests.factories import GenerationFactory, WorkerFactory

SECONDS = st.floats(0, 5000)


def story(**changes: Any) -> Story:
    fields: dict[str, Any] = {"lane": "normal", "lane_rank": 1, "epoch": 0, "live": False, "until": 10.0}
    return Story(**{**fields, **changes})


def run(epoch: int, claimed: float, ended: float, *events: Event, **changes: Any) -> Run:
    fields: dict[str, Any] = {"worker": "mac-1:7", "outcome": RunOutcome.COMPLETED, "events": events}
    return Run(epoch=epoch, claimed=claimed, ended=ended, **{**fields, **changes})


def shapes(drawing: Drawing) -> list[list[str]]:
    return [[*(bar.kind for bar in row.bars), *(mark.kind for mark in row.marks)] for row in drawing.rows]


@st.composite
def events(draw_from: Any, start: float, end: float) -> list[Event]:
    """Anything that may be in a row, of this version or another, whether or not it fits the run's own times."""
    kinds = st.sampled_from([*EventKind, "of_another_version"])
    details = st.fixed_dictionaries(
        {},
        optional={
            "s": st.floats(0, 100),
            "tokens": st.integers(0, 9999),
            "done": st.integers(0, 9999),
            "total": st.integers(0, 9999),
            "beside": st.integers(0, 8),
            "merged": st.integers(1, 64),
            "busy": st.floats(0, 10),
            "gap": st.floats(0, 10),
            "reason": st.just("length"),
            "rounds": st.integers(0, 99),
            "proposed": st.integers(0, 999),
            "accepted": st.integers(0, 999),
            "parked": st.just(True),
        },
    )
    times = sorted(draw_from(st.lists(st.floats(start - 1, end + 1), max_size=12)))
    return [(at, draw_from(kinds), draw_from(details)) for at in times]


@st.composite
def stories(draw_from: Any) -> Story:
    bounds = sorted(draw_from(st.lists(SECONDS, min_size=2, max_size=30)))
    pairs = list(zip(bounds[::2], bounds[1::2], strict=False))
    epochs = draw_from(st.sets(st.integers(1, len(pairs) + 2), max_size=len(pairs)))
    runs = [
        Run(
            epoch=epoch,
            worker="w",
            claimed=claimed,
            ended=ended,
            outcome=draw_from(st.sampled_from(RunOutcome)),
            events=draw_from(events(claimed, ended)),
        )
        for epoch, (claimed, ended) in zip(sorted(epochs), pairs, strict=False)
    ]
    return story(
        epoch=draw_from(st.integers(max(epochs, default=0), len(pairs) + 3)),
        live=draw_from(st.booleans()),
        until=draw_from(SECONDS),
        claimed=draw_from(st.none() | SECONDS),
        cancel_asked=draw_from(st.none() | SECONDS),
        runs=runs,
    )


@pytest.mark.slow
@given(stories())
def test_every_shape_is_inside_the_drawing_and_bars_are_in_order(told: Story) -> None:
    drawing = draw(told)
    assert len(drawing.rows) <= MOST_ROWS
    for row in drawing.rows:
        for bar in row.bars:
            assert 0 <= bar.x <= bar.x + bar.width <= 100.001
            assert bar.width > 0
            assert 0 <= bar.y < bar.y + bar.height <= drawing.height
            assert bar.title
        for mark in row.marks:
            assert 0 <= mark.x <= 100
            assert mark.title
        drawn = [bar.x for bar in row.bars if bar.kind is not Bar.WAITING]
        # As events are, up to the width that a bar has at least at the very end of the drawing.
        assert all(earlier <= later + 0.201 for earlier, later in pairwise(drawn))
    for row in drawing.all_rows:
        times = [line.at for line in row.lines]
        assert times == sorted(times)


def test_a_last_token_that_came_at_once_makes_no_other_look_slow() -> None:
    spans: list[Event] = [(float(at), EventKind.TOKENS, {"s": 1.0, "tokens": 8}) for at in range(4)]
    spans.append((4.0, EventKind.TOKENS, {"s": 0.01, "tokens": 1}))
    [row] = draw(story(epoch=1, runs=[run(1, 0.0, 5.0, *spans)])).rows
    heights = {bar.height for bar in row.bars if bar.kind is Bar.TOKENS}
    assert len(heights) == 1


@given(st.floats(0.001, 3_000_000))
def test_an_axis_has_few_round_moments_inside_the_drawing(total: float) -> None:
    moments = ticks(total)
    assert 2 <= len(moments) <= 7
    assert moments[0] == (0, "0")
    assert all(at <= total * (1 + 1e-6) for at, _ in moments)
    assert len({label for _, label in moments}) == len(moments)


@pytest.mark.parametrize(
    ("total", "labels"),
    [
        (0.05, ["0", "10", "20", "30", "40", "50 ms"]),
        (1.3, ["0", "0.5", "1.0 s"]),
        (75, ["0", "20", "40", "60 s"]),
        (1200, ["0", "5:00", "10:00", "15:00", "20:00 min"]),
        (9000, ["0", "0:30", "1:00", "1:30", "2:00", "2:30 h"]),
    ],
)
def test_moments_are_written_as_people_say_them(total: float, labels: list[str]) -> None:
    assert [label for _, label in ticks(total)] == labels


def test_a_run_is_drawn_as_wait_chunks_first_token_tokens_and_end() -> None:
    done = run(
        1,
        2.0,
        10.0,
        (2.0, EventKind.CLAIMED, {}),
        (2.0, EventKind.CHUNK, {"s": 1.0, "tokens": 16, "done": 16, "total": 30}),
        (3.0, EventKind.CHUNK, {"s": 1.0, "tokens": 14, "done": 30, "total": 30}),
        (4.0, EventKind.FIRST_TOKEN, {}),
        (4.0, EventKind.TOKENS, {"s": 2.0, "tokens": 20, "gap": 0.2}),
        (6.0, EventKind.TOKENS, {"s": 4.0, "tokens": 20, "gap": 0.9}),
        (10.0, EventKind.ENDED, {"reason": "stop"}),
    )
    drawing = draw(story(epoch=1, claimed=2.0, runs=[done]))
    (row,) = drawing.rows
    assert shapes(drawing) == [["waiting", "chunk", "chunk", "tokens", "tokens", "first_token", "end"]]
    assert [(bar.x, bar.width) for bar in row.bars] == [(0, 20), (20, 10), (30, 10), (40, 20), (60, 40)]
    fast, slow = row.bars[-2:]
    assert fast.height == pytest.approx(2 * slow.height), "twice as fast is twice as high"
    assert list(row.facts) == [
        "30 prompt tokens in 2 chunks, 2.0 s of work",
        "41 tokens",
        "6.7 tokens/s",
        "longest pause 900 ms",
    ]
    assert row.lines[-1].title == "Completed: stop (after 10.0 s)"


def test_a_run_that_no_worker_reported_is_drawn_as_lost_between_its_neighbours() -> None:
    drawing = draw(story(epoch=2, claimed=6.0, runs=[run(2, 6.0, 10.0)]))
    lost, done = drawing.rows
    assert (lost.outcome, done.outcome) == (RunOutcome.LOST, RunOutcome.COMPLETED)
    assert [(bar.kind, bar.x, bar.width) for bar in lost.bars] == [(Bar.UNREPORTED, 0, 60)]


def test_runs_lost_in_a_row_lie_somewhere_in_the_same_time_and_the_last_begins_at_its_claim() -> None:
    drawing = draw(story(epoch=3, claimed=6.0, runs=[run(3, 6.0, 10.0)]))
    assert [(bar.x, bar.width) for row in drawing.rows for bar in row.bars] == [(0, 60), (0, 60)]
    drawing = draw(story(epoch=1, claimed=6.0))
    assert shapes(drawing) == [[Bar.WAITING, Bar.UNREPORTED]]
    assert drawing.rows[0].bars[1].x == 60


def test_between_two_runs_it_waits_again() -> None:
    first = run(1, 1.0, 4.0, outcome=RunOutcome.REQUEUED)
    drawing = draw(story(epoch=2, claimed=5.0, runs=[first, run(2, 5.0, 10.0)]))
    assert [[(bar.kind, bar.x) for bar in row.bars] for row in drawing.rows] == [
        [(Bar.WAITING, 0)],
        [(Bar.WAITING, 40)],
    ]


@pytest.mark.parametrize(
    ("changes", "drawn"),
    [
        ({}, [["waiting"]]),
        ({"epoch": 1, "claimed": 4.0}, [["waiting", "running"]]),
        (
            {"epoch": 1, "claimed": 1.0, "runs": [run(1, 1.0, 4.0, outcome=RunOutcome.PREEMPTED)]},
            [["waiting", "end"], ["waiting"]],
        ),
        ({"cancel_asked": 9.0}, [["waiting", "cancel_asked"]]),
        ({"epoch": 1, "claimed": 4.0, "cancel_asked": 9.0}, [["waiting", "running", "cancel_asked"]]),
    ],
)
def test_a_live_generation_is_drawn_so_far(changes: dict[str, Any], drawn: list[list[str]]) -> None:
    drawing = draw(story(live=True, **changes))
    assert shapes(drawing) == drawn
    for row in drawing.rows:
        assert [line.at for line in row.lines] == sorted(line.at for line in row.lines)


def test_the_slot_is_drawn_below_the_tokens_with_its_rounds_in_words() -> None:
    done = run(
        1,
        0.0,
        10.0,
        (0.0, EventKind.SLOT_WAIT, {"s": 1.0}),
        (1.0, EventKind.SLOT_GRANT, {"s": 2.0, "rounds": 8, "proposed": 28, "accepted": 21}),
        (1.0, EventKind.TOKENS, {"s": 2.0, "tokens": 29, "gap": 0.3}),
        (3.0, EventKind.SLOT_WAIT, {"s": 4.0, "parked": True}),
        (
            7.0,
            EventKind.SLOT_GRANT,
            {"s": 2.0, "rounds": 6, "proposed": 0, "accepted": 0, "merged": 3, "busy": 1.5},
        ),
        (9.0, EventKind.CLASSIC, {"reason": "drafter_unavailable"}),
    )
    drawing = draw(story(epoch=1, claimed=0.0, runs=[done]))
    (row,) = drawing.rows
    assert [(bar.kind, bar.x, bar.width) for bar in row.bars] == [
        (Bar.SLOT_WAIT, 0, 10),
        (Bar.SLOT_GRANT, 10, 20),
        (Bar.TOKENS, 10, 20),
        (Bar.SLOT_WAIT, 30, 40),
        (Bar.SLOT_GRANT, 70, 20),
    ]
    tokens = row.bars[2]
    assert all(bar.y > tokens.y + tokens.height for bar in row.bars if bar is not tokens)
    assert [(line.what, line.detail) for line in row.lines][:6] == [
        ("Waiting", "for the speculative slot"),
        ("Speculative slot", "8 rounds, 21 of 28 drafted tokens kept"),
        ("Answer", "29 tokens, 14.5 tokens/s, longest pause 300 ms"),
        ("Parked", "for the speculative slot"),
        ("3 grants of the slot", "6 rounds, 1.5 s in all"),
        ("Plain decoding", "drafter unavailable"),
    ]
    assert "4 grants of the slot, 14 rounds, 21 of 28 drafted tokens kept" in row.facts


def test_a_drawing_has_room_for_the_slot_only_where_it_was_used() -> None:
    plain = run(1, 0.0, 10.0, (1.0, EventKind.TOKENS, {"s": 2.0, "tokens": 29}))
    slotted = run(1, 0.0, 10.0, (1.0, EventKind.SLOT_WAIT, {"s": 2.0}))
    heights = [draw(story(epoch=1, claimed=0.0, runs=[one])).height for one in (plain, slotted)]
    assert heights[0] < heights[1]


def test_what_ended_in_the_queue_is_a_wait_and_an_end() -> None:
    withdrawn = run(
        1, 8.0, 8.0, (8.0, EventKind.CANCELLED, {"reason": "timed_out"}), outcome=RunOutcome.WITHDRAWN
    )
    drawing = draw(story(epoch=1, until=8.0, cancel_asked=7.9, runs=[withdrawn]))
    assert shapes(drawing) == [["waiting", Mark.CANCEL_ASKED, Mark.END]]
    assert drawing.rows[0].name == "Never claimed"


def test_what_nobody_claimed_or_reported_is_a_wait() -> None:
    assert shapes(draw(story(epoch=1))) == [[Bar.WAITING]]
    assert shapes(draw(story())) == [[Bar.WAITING]]


def test_of_very_many_claims_the_last_are_drawn_and_all_are_in_the_table() -> None:
    runs = [run(n, n - 0.5, float(n), outcome=RunOutcome.REQUEUED) for n in range(1, 31)]
    drawing = draw(story(epoch=30, until=30.0, claimed=29.5, runs=runs))
    assert len(drawing.rows) == MOST_ROWS
    assert len(drawing.all_rows) == 30
    assert drawing.rows[-1].name == "Run 30"


# The page


def _page(client: Client, generation: Generation) -> Any:
    return client.get(reverse("admin:inference_generation_change", args=(generation.pk,)))


def _with_runs(count: int, chunks: int = 3) -> Generation:
    at = timezone.now()
    generation: Generation = GenerationFactory(
        state="completed", epoch=count, claimed_at=at, ended_at=at + timedelta(seconds=count)
    )
    worker = WorkerFactory(hostname="mac-<1>")
    with every_tenant("a test makes rows"):
        for epoch in range(1, count + 1):
            GenerationRun.objects.create(
                generation=generation,
                epoch=epoch,
                worker=worker,
                worker_name=str(worker),
                claimed_at=at + timedelta(seconds=epoch - 0.9),
                ended_at=at + timedelta(seconds=epoch),
                outcome=RunOutcome.COMPLETED if epoch == count else RunOutcome.REQUEUED,
                events=[
                    [epoch - 0.9 + n / 1000, "chunk", {"s": 0.001, "tokens": 8, "done": 8 * n, "total": 800}]
                    for n in range(chunks)
                ],
            )
    return generation


def test_the_page_draws_every_run_and_lists_it(as_operator: Client) -> None:
    generation = _with_runs(2)
    page = _page(as_operator, generation).content.decode()
    assert page.count('class="sb-timeline-track"') == 2
    assert page.count("Prompt chunk: 8 tokens") >= 2 * 3
    assert "mac-&lt;1&gt;" in page
    assert "mac-<1>" not in page


def test_who_may_only_look_sees_the_drawing(as_onlooker: Client) -> None:
    assert "sb-timeline-track" in _page(as_onlooker, _with_runs(1)).content.decode()


def test_a_generation_in_the_queue_is_drawn_with_its_lane(as_operator: Client) -> None:
    page = _page(as_operator, GenerationFactory(lane=Lane.objects.get(name="low"))).content.decode()
    assert "Waiting: in lane low" in page


def test_the_page_costs_as_many_queries_for_many_runs_as_for_one(
    as_operator: Client, django_assert_num_queries: Any
) -> None:
    one, many = _with_runs(1), _with_runs(9, chunks=100)
    with django_assert_num_queries(14, exact=False) as few:
        _page(as_operator, one)
    with django_assert_num_queries(len(few)):
        _page(as_operator, many)
