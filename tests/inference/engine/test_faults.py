"""A fault costs the sequence it belongs to; the others lose nothing and repeat nothing."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import pytest
from mlx.nn.layers.base import Module

from inference.engine.batch import ShapeError
from inference.messages import Sampling
from tests.inference.engine.driving import GREEDY, Drive, alone, each_alone, prompts_of
from tests.inference.engine.tiny_model import SPECIAL_TOKENS, TURN_START

#: No text holds it, and the tiny model never chooses it by itself.
POISON = SPECIAL_TOKENS.index(TURN_START)

SAMPLINGS = {
    "g0": GREEDY,
    "g1": Sampling(seed=4, temperature=0.9, presence_penalty=0.6),
    "g2": Sampling(seed=5, top_p=0.9, repetition_penalty=1.2),
    "g3": Sampling(seed=6),
}


class ProcessorFaultError(Exception):
    pass


class FailAt:
    """A logits processor that fails once the sequence has a certain length."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __call__(self, tokens: mx.array, logits: mx.array) -> mx.array:
        if len(tokens) >= self.length:
            raise ProcessorFaultError(f"at {len(tokens)} tokens")
        return logits


class PoisonAt:
    """A logits processor that makes the poison the next token at a certain length."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __call__(self, tokens: mx.array, logits: mx.array) -> mx.array:
        return logits.at[:, POISON].add(1e9) if len(tokens) == self.length else logits


class PoisonedEmbedding(Module):
    """Fails a whole forward pass that has the poison among its tokens."""

    def __init__(self, embedding: Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.embedding = embedding

    def __call__(self, tokens: mx.array) -> mx.array:
        if (tokens == POISON).any().item():
            raise RuntimeError("poisoned")
        embedded: mx.array = self.embedding(tokens)
        return embedded


def drive_poisonable(model_dir: Path) -> Drive:
    drive = Drive(model_dir)
    drive.engine.model.model.embed_tokens = PoisonedEmbedding(drive.engine.model.model.embed_tokens)
    return drive


def admit_others(drive: Drive) -> dict[str, list[int]]:
    """Four healthy sequences; returns what each would get alone."""
    prompts = {key: prompt for key, prompt in prompts_of(drive).items() if key in SAMPLINGS}
    for key, prompt in prompts.items():
        drive.admit(key, prompt, SAMPLINGS[key])
    return prompts


def assert_undisturbed(drive: Drive, model_dir: Path, prompts: dict[str, list[int]]) -> None:
    finished = drive.decode_until(24)
    assert {key: finished[key] for key in prompts} == each_alone(model_dir, prompts, SAMPLINGS)


def test_a_failing_processor_ends_its_own_sequence_only(tiny_model: Path) -> None:
    drive = Drive(tiny_model)
    prompts = admit_others(drive)
    drive.admit("bad", [20, 21, 22], processors=[FailAt(3 + 5)])
    drive.prefill("g0", "g1", "bad", "g2", "g3")
    assert_undisturbed(drive, tiny_model, prompts)
    assert drive.tokens["bad"] == alone(tiny_model, [20, 21, 22], count=5)
    assert [*drive.faults] == ["bad"]
    assert isinstance(drive.faults["bad"], ProcessorFaultError)


def test_a_fault_is_told_once_and_the_sequence_waits_to_be_dropped(tiny_model: Path) -> None:
    drive = Drive(tiny_model)
    drive.admit("bad", [20], processors=[FailAt(1 + 2)])
    drive.finish_prefill("bad")
    while not drive.faults:
        drive.decode()
    assert len(drive.tokens["bad"]) == 2
    assert drive.engine.decoding == 0
    assert drive.decode().faults == {}
    drive.engine.drop("bad")
    assert drive.engine.keys == ()


def test_a_token_that_nobody_needs_cannot_fail_a_sequence(tiny_model: Path) -> None:
    drive = Drive(tiny_model)
    drive.admit("ends", [20], processors=[FailAt(1 + 2)])
    drive.finish_prefill("ends")
    while len(drive.tokens["ends"]) < 2:
        drive.decode()
    # The third token has failed by now, one step ahead; the caller finds that the second was the last.
    assert drive.engine.decoding == 1
    drive.engine.drop("ends")
    assert drive.decode().faults == {}
    assert not drive.faults


def test_a_first_token_that_fails_is_told_by_the_prefill(tiny_model: Path) -> None:
    drive = Drive(tiny_model)
    prompts = admit_others(drive)
    drive.admit("bad", [20, 21, 22], processors=[FailAt(0)])
    result = drive.prefill(*prompts, "bad")
    assert isinstance(result.faults["bad"], ProcessorFaultError)
    assert {key for key, _ in result.tokens} == set(prompts)
    assert_undisturbed(drive, tiny_model, prompts)


def test_a_processor_that_returns_another_shape_is_a_fault_of_its_sequence(tiny_model: Path) -> None:
    drive = Drive(tiny_model)
    prompts = admit_others(drive)
    drive.admit("bad", [20, 21, 22], processors=[lambda tokens, logits: logits[:, 1:]])
    drive.prefill(*prompts, "bad")
    assert isinstance(drive.faults["bad"], ShapeError)
    assert_undisturbed(drive, tiny_model, prompts)


def test_a_step_that_fails_as_a_whole_is_run_apart(
    any_tiny_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    drive = drive_poisonable(any_tiny_model)
    prompts = admit_others(drive)
    drive.admit("bad", [20, 21, 22], processors=[PoisonAt(3 + 3)])
    drive.prefill(*prompts, "bad")
    drive.decode(2)
    assert_undisturbed(drive, any_tiny_model, prompts)
    assert drive.tokens["bad"] == [*alone(any_tiny_model, [20, 21, 22], count=3), POISON]
    assert {key: str(fault) for key, fault in drive.faults.items()} == {"bad": "poisoned"}
    [record] = [record for record in caplog.records if "failed together" in record.message]
    assert record.exc_info is not None


def test_running_apart_fails_no_sequence_for_a_token_that_nobody_needs(tiny_model: Path) -> None:
    drive = drive_poisonable(tiny_model)
    prompts = admit_others(drive)
    drive.admit("ends", [20, 21, 22], processors=[PoisonAt(3 + 3)])
    drive.prefill(*prompts, "ends")
    while POISON not in drive.tokens["ends"]:
        drive.decode()
    drive.engine.drop("ends")
    del drive.tokens["ends"]
    assert_undisturbed(drive, tiny_model, prompts)
    assert not drive.faults


def test_a_poisoned_prompt_in_a_packed_prefill_ends_alone(any_tiny_model: Path) -> None:
    drive = drive_poisonable(any_tiny_model)
    prompts = admit_others(drive)
    drive.admit("bad", [20, POISON, 21, 22])
    drive.admit("also bad", [23, 24, 25, POISON])
    result = drive.prefill("bad", *prompts, "also bad")
    assert result.faults.keys() == {"bad", "also bad"}
    assert {key for key, _ in result.tokens} == set(prompts)
    assert_undisturbed(drive, any_tiny_model, prompts)


def test_a_poisoned_chunk_ends_its_prompt_while_the_others_decode(tiny_model: Path) -> None:
    drive = drive_poisonable(tiny_model)
    prompts = admit_others(drive)
    drive.prefill(*prompts)
    drive.decode(3)
    drive.admit("bad", [20, 21, 22, 23, POISON, 24])
    assert drive.prefill("bad", chunk=2).faults == {}
    assert drive.prefill("bad", chunk=2).faults == {}
    assert drive.prefill("bad", chunk=2).faults.keys() == {"bad"}
    drive.engine.drop("bad")
    assert_undisturbed(drive, tiny_model, prompts)


def test_the_engine_goes_on_after_a_fault(tiny_model: Path) -> None:
    drive = drive_poisonable(tiny_model)
    drive.admit("bad", [20], processors=[PoisonAt(1 + 1)])
    drive.finish_prefill("bad")
    while not drive.faults:
        drive.decode()
    drive.engine.drop("bad")
    del drive.tokens["bad"]
    prompts = admit_others(drive)
    for key in prompts:
        drive.finish_prefill(key, chunk=5)
        drive.decode()
    assert_undisturbed(drive, tiny_model, prompts)
