"""A model cut before its head: the same bits, and a prompt's end in one forward pass."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import pytest
from mlx.nn.layers.base import Module
from mlx_lm.models.cache import make_prompt_cache

from inference.engine.halves import cut
from inference.engine.model_loading import load_prepared
from inference.messages import Sampling
from tests.inference.engine.driving import GREEDY, Drive, each_alone, prompts_of

TOKENS = mx.array([[7, 11, 13, 17]])


class ScalesItsLogits(Module):
    """A model with the parts that most have, which are not all that it does."""

    def __init__(self, inner: Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.inner = inner
        self.model = inner.model
        self.layers = inner.layers

    def __call__(self, tokens: mx.array, cache: object = None) -> mx.array:
        logits: mx.array = self.inner(tokens, cache=cache) / 8
        return logits


class Counted(Module):
    """Counts the passes that go through a module."""

    def __init__(self, inner: Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.inner = inner
        self.passes: list[tuple[int, ...]] = []

    def __call__(self, hidden: mx.array) -> mx.array:
        self.passes.append(hidden.shape[:2])
        out: mx.array = self.inner(hidden)
        return out


def passes_of(drive: Drive) -> list[tuple[int, ...]]:
    """Rows and tokens of each forward pass from now on."""
    counted = Counted(drive.engine.model.model.norm)
    drive.engine.model.model.norm = counted
    return counted.passes


def test_trunk_and_head_are_the_model(any_tiny_model: Path) -> None:
    model, _ = load_prepared(any_tiny_model)
    halves = cut(model)
    assert halves is not None
    apart = halves.head(halves.trunk(TOKENS, make_prompt_cache(model)))
    assert mx.array_equal(apart, model(TOKENS, cache=make_prompt_cache(model)))


def test_a_model_that_does_more_than_its_parts_is_not_cut(tiny_model: Path) -> None:
    model, _ = load_prepared(tiny_model)
    assert cut(ScalesItsLogits(model)) is None


def test_a_model_without_these_parts_is_not_cut() -> None:
    assert cut(Module()) is None  # type: ignore[no-untyped-call]


def test_the_end_of_a_prompt_is_one_pass_with_its_last_token(tiny_model: Path) -> None:
    drive = Drive(tiny_model)
    passes = passes_of(drive)
    drive.admit("g", range(10, 20))
    drive.prefill("g", chunk=4)
    assert len(drive.prefill("g", chunk=6).tokens) == 1
    assert passes == [(1, 4), (1, 6)]


def test_prompts_end_together_in_one_pass_whatever_was_run_of_each(any_tiny_model: Path) -> None:
    drive = Drive(any_tiny_model)
    prompts = {key: prompt for key, prompt in prompts_of(drive).items() if len(prompt) > 6}
    for chunk, (key, prompt) in enumerate(prompts.items()):
        drive.admit(key, prompt)
        if chunk:
            drive.prefill(key, chunk=chunk)
    passes = passes_of(drive)
    drive.prefill(*prompts)
    assert [rows for rows, _ in passes] == [len(prompts)]
    assert drive.decode_until(24) == each_alone(any_tiny_model, prompts)


@pytest.mark.parametrize("whole", [False, True], ids=["cut", "whole"])
def test_prompts_with_one_or_two_tokens_left_end_in_one_pass_for_each_length(
    any_tiny_model: Path, whole: bool
) -> None:
    drive = Drive(any_tiny_model)
    if whole:
        drive.engine._halves = None
    prompts = {f"g{number}": list(range(20, 32 + 3 * number)) for number in range(6)}
    samplings = {key: GREEDY if index % 3 else Sampling(seed=index) for index, key in enumerate(prompts)}
    for number, (key, prompt) in enumerate(prompts.items()):
        drive.admit(key, prompt, samplings[key])
        drive.prefill(key, chunk=len(prompt) - 1 - number % 2)
    passes = passes_of(drive)
    assert len(drive.prefill(*prompts).tokens) == len(prompts)
    assert passes == ([(3, 1)] * 3 if whole else [(3, 1), (3, 2)])
    assert drive.decode_until(24) == each_alone(any_tiny_model, prompts, samplings)


def test_a_model_that_is_not_cut_gives_the_same_in_two_passes(any_tiny_model: Path) -> None:
    drive = Drive(any_tiny_model)
    drive.engine._halves = None
    prompts = prompts_of(drive)
    passes = passes_of(drive)
    for key, prompt in prompts.items():
        drive.admit(key, prompt)
    drive.prefill("g0", "g2")
    assert [tokens for _, tokens in passes] == [max(len(prompts["g0"]), len(prompts["g2"])) - 1, 1]
    for key in prompts:
        drive.finish_prefill(key)
    assert drive.decode_until(24) == each_alone(any_tiny_model, prompts)
