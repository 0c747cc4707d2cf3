"""A speculating sequence that leaves, leaves nothing but what others may begin with."""

from __future__ import annotations

import gc
from pathlib import Path

import mlx.core as mx
import pytest

from tests.inference.engine.driving import alone, prompts_of
from tests.inference.engine.speculating import PENALISED, Script, SpeculativeDrive, knowing

PLENTY = 1 << 30


def half_right(text: list[int]) -> Script:
    return knowing(text, lambda position: position % 3 == 0)


@pytest.mark.parametrize("rounds", range(5))
def test_the_next_that_begins_alike_goes_on_from_what_was_run(any_tiny_model: Path, rounds: int) -> None:
    drive = SpeculativeDrive(any_tiny_model, prefix_cache_bytes=PLENTY)
    prompt = prompts_of(drive)["g2"][:9]
    said = alone(any_tiny_model, prompt, count=40)
    drive.drafter.script = half_right([*prompt, *said])
    drive.start("first", prompt, namespace="tenant")
    for _ in range(rounds):
        drive.round("first")
    count = len(drive.tokens["first"])
    drive.engine.drop("first")
    assert drive.engine.keys == ()
    with pytest.raises(KeyError):
        drive.engine.drop("first")
    begin = [*prompt, *said[:count]]
    for question in ([*begin, 11, 12, 13], [*begin[:-1], 14, 15]):
        drive.admit("next", question, namespace="tenant")
        # The last token was never run.
        assert drive.engine.cached_tokens("next") == len(begin) - 1
        drive.slice_zero("next")
        assert drive.rounds("next", 12) == alone(any_tiny_model, question, count=12)
        drive.engine.drop("next")


def test_a_prompt_is_kept_as_soon_as_it_is_run(tiny_model: Path) -> None:
    drive = SpeculativeDrive(tiny_model, prefix_cache_bytes=PLENTY)
    prompt = prompts_of(drive)["g2"]
    drive.start("first", prompt, namespace="tenant")
    drive.admit("second", [*prompt, 9], namespace="tenant")
    assert drive.engine.cached_tokens("second") == len(prompt)
    drive.admit("other", [*prompt, 9], namespace="other tenant")
    assert drive.engine.cached_tokens("other") == 0
    drive.slice_zero("second")
    counters = drive.engine.prefix_counters
    assert (counters.lookups, counters.hits, counters.hit_tokens) == (2, 1, len(prompt))
    for key, expected in (("first", prompt), ("second", [*prompt, 9])):
        assert drive.rounds(key) == alone(tiny_model, expected)


def test_rejected_guesses_are_not_kept(tiny_model: Path) -> None:
    drive = SpeculativeDrive(tiny_model, lambda context, k: [7] * k, prefix_cache_bytes=PLENTY)
    prompt = prompts_of(drive)["g0"]
    drive.start("g", prompt, namespace="tenant")
    drive.round("g")
    drive.engine.drop("g")
    drive.admit("next", [*prompt, drive.tokens["g"][0], 7, 7, 7], namespace="tenant")
    assert drive.engine.cached_tokens("next") == len(prompt) + 1


@pytest.mark.parametrize("when", ["parked", "after slice 0", "with the drafter", "waiting", "in the batch"])
def test_a_sequence_can_be_dropped_whenever_and_comes_back_as_it_was(tiny_model: Path, when: str) -> None:
    drive = SpeculativeDrive(tiny_model, prefix_cache_bytes=PLENTY)
    prompt = prompts_of(drive)["g2"]
    expected = alone(tiny_model, prompt, PENALISED)
    drive.drafter.script = half_right([*prompt, *expected])
    drive.admit("g", prompt, PENALISED, namespace="tenant")
    if when != "parked":
        drive.slice_zero("g")
    if when in ("waiting", "in the batch"):
        drive.rounds("g", 6)
    if when == "with the drafter":
        assert drive.engine.take_drafter("g")
        drive.tokens["g"] += drive.engine.speculate("g", 4).tokens
    if when == "in the batch":
        drive.engine.into_classic("g")
        drive.decode(2)
    drive.engine.drop("g")
    assert drive.engine.keys == ()
    assert drive.engine.decoding == 0
    assert drive.engine.drafter.holder is None
    emitted = drive.tokens["g"]
    drive.start("g", prompt, PENALISED, emitted=emitted, namespace="tenant")
    assert [*emitted, *drive.rounds("g", 24 - len(emitted))] == expected


def test_the_memory_of_dropped_sessions_is_free(tiny_model: Path) -> None:
    drive = SpeculativeDrive(tiny_model)
    prompt = prompts_of(drive)["g2"]
    expected = alone(tiny_model, prompt)
    drive.drafter.script = half_right([*prompt, *expected])

    def held() -> int:
        gc.collect()
        mx.clear_cache()
        return mx.get_active_memory()

    def run() -> None:
        for key in ("a", "b", "c"):
            drive.start(key, prompt)
            drive.rounds(key, 8)
        drive.engine.into_classic("b")
        for key in ("a", "b", "c"):
            drive.engine.drop(key)
        drive.decode()

    run()
    before = held()
    run()
    assert held() <= before
