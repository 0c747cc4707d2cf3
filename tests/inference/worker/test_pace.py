"""How long ticks take, as the operator's targets and the draft length are reckoned with it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from inference.models import LanguageModel
from inference.scheduling.tick import Action
from inference.worker.pace import Pace
from tests.inference.worker.conftest import ENDLESS, submit
from tests.inference.worker.test_slot import SHORT, SlotWorker, drafter, slot_worker

__all__ = ["drafter", "slot_worker"]


def test_what_one_more_row_adds_is_told_once_two_numbers_of_rows_are_known() -> None:
    pace = Pace()
    for _ in range(5):
        pace.decoded(1, 0.100)
    assert pace.batch_cost is None
    for seconds in (0.160, 0.160, 0.160, 0.160):
        pace.decoded(3, seconds)
    assert pace.batch_cost is None, (
        "three ticks may have been chance, and the first with other rows does not count"
    )
    pace.decoded(3, 9.0)
    assert pace.batch_cost == pytest.approx(0.3), "the median, which one slow tick does not move"


@pytest.mark.parametrize("before", ["more rows", "a round", "a prompt", "a failure"])
def test_a_decode_tick_whose_step_was_run_before_it_does_not_tell_what_a_row_costs(before: str) -> None:
    """The last tick of the longer of two answers took 15 ms here: a second row seemed to cost five first ones."""
    pace = Pace()
    for rows, seconds in ((1, 0.100), (2, 0.110)):
        for _ in range(5):
            pace.decoded(rows, seconds)
    for _ in range(50):
        if before == "more rows":
            pace.decoded(2, 0.110)
        elif before == "a round":
            pace.speculated(0, 180.0)
        elif before == "a failure":
            pace.disturbed()
        else:
            pace.prefilled(64, 0.4, 64)
        pace.decoded(1, 0.015)
    assert pace.batch_cost == pytest.approx(0.1)


def test_a_decode_tick_behind_a_prompt_does_not_tell_what_decoding_takes() -> None:
    pace = Pace()
    for _ in range(5):
        pace.decoded(2, 0.100)
    for _ in range(50):
        pace.prefilled(64, 0.4, 64)
        pace.decoded(2, 0.080)
    assert pace.decode_ms == pytest.approx(100.0)


def test_what_one_more_drafted_token_adds_is_a_share_of_a_step_without_any() -> None:
    pace = Pace()
    for drafted, ms in ((0, 100.0), (2, 120.0), (4, 140.0)):
        for _ in range(4):
            pace.speculated(drafted, ms)
    assert pace.token_cost == pytest.approx(0.1)
    assert pace.batch_cost is None


def test_a_slice_0_tells_what_prompts_take(
    model: LanguageModel, slot_worker: Callable[..., SlotWorker]
) -> None:
    """Else a worker whose prompts are all short would run its first long one by terms that it has never measured."""
    worker = slot_worker()
    submit(model, prompt=SHORT, max_tokens=ENDLESS)
    worker.claim()
    assert worker.turn() is Action.SPECULATE
    shown = worker.loop.board.latest
    assert shown is not None
    assert (shown.chunk_ms is None, shown.decode_ms) == (False, None)
