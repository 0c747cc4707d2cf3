"""Sequences that failed together are run again alone: no more of each than has to be, and not all in one step."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
from mlx.nn.layers.base import Module

from tests.inference.engine.driving import Drive, each_alone
from tests.inference.engine.test_engine_prefix import PLENTY, cached
from tests.inference.engine.test_faults import POISON, PoisonAt, drive_poisonable
from tests.inference.engine.test_halves import passes_of

PROMPTS = {f"g{number}": list(range(20 + number, 60 + number)) for number in range(4)}
CHUNK = 8


def tokens_of(passes: list[tuple[int, ...]]) -> int:
    return sum(rows * tokens for rows, tokens in passes)


class LongPassesOnly(Module):
    """Passes of one token fail until it is ``mended``: all of a row can be run again but its last token."""

    def __init__(self, embedding: Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.embedding = embedding
        self.mended = False

    def __call__(self, tokens: mx.array) -> mx.array:
        if tokens.shape[-1] == 1 and not self.mended:
            raise RuntimeError("one token")
        embedded: mx.array = self.embedding(tokens)
        return embedded


def failing(model_dir: Path) -> tuple[Drive, LongPassesOnly]:
    """All of the prompts, which decode, and fail together and alone from now on."""
    drive = Drive(model_dir)
    drive.engine.set_rerun_tokens(CHUNK)
    for key, prompt in PROMPTS.items():
        drive.admit(key, prompt, namespace="tenant")
    drive.prefill(*PROMPTS)
    drive.decode(3)
    embedding = LongPassesOnly(drive.engine.model.model.embed_tokens)
    drive.engine.model.model.embed_tokens = embedding
    return drive, embedding


def first_has_failed(model_dir: Path) -> tuple[Drive, LongPassesOnly]:
    """The first of them has been run again in vain, and the others have not."""
    drive, embedding = failing(model_dir)
    passes = passes_of(drive)
    while tokens_of(passes) <= len(PROMPTS["g0"]) + len(drive.tokens["g0"]):
        assert drive.decode().faults == {}
    assert tokens_of(passes) < 2 * len(PROMPTS["g0"])
    return drive, embedding


def decoding(model_dir: Path) -> Drive:
    """All of the prompts, and one that fails the step after its third token; they were run in other chunks."""
    drive = drive_poisonable(model_dir)
    drive.engine.set_rerun_tokens(CHUNK)
    for key, prompt in PROMPTS.items():
        drive.admit(key, prompt, namespace="tenant")
    drive.admit("bad", [20, 21, 22], processors=[PoisonAt(3 + 2)], namespace="tenant")
    drive.finish_prefill(*PROMPTS, "bad", chunk=2)
    return drive


def test_of_prompts_that_fail_together_only_what_remained_is_run_again(any_tiny_model: Path) -> None:
    drive = drive_poisonable(any_tiny_model)
    prompts = {**PROMPTS, "bad": [*range(20, 60), POISON, 30, 31]}
    for key, prompt in prompts.items():
        drive.admit(key, prompt)
        assert not drive.prefill(key, chunk=len(prompt) - 4).rerun
    passes = passes_of(drive)
    result = drive.prefill(*prompts, chunk=CHUNK)
    assert result.faults.keys() == {"bad"}
    assert {key for key, _ in result.tokens} == set(PROMPTS)
    assert result.rerun
    assert tokens_of(passes) == 4 * len(PROMPTS)
    finished = drive.decode_until(24)
    assert {key: finished[key] for key in PROMPTS} == each_alone(any_tiny_model, PROMPTS)


def test_rows_that_fail_together_begin_behind_what_the_prefix_cache_holds(any_tiny_model: Path) -> None:
    drive = drive_poisonable(any_tiny_model)
    drive.engine.set_prefix_budget(PLENTY)
    prompts = {**PROMPTS, "bad": [20, 21, 22]}
    for key, prompt in prompts.items():
        drive.admit(key, prompt, namespace="tenant", processors=[PoisonAt(3 + 2)] if key == "bad" else ())
    drive.prefill(*prompts)
    passes = passes_of(drive)
    while "bad" not in drive.faults:
        drive.decode()
    assert tokens_of(passes) < len(PROMPTS["g0"])
    finished = drive.decode_until(24)
    assert {key: finished[key] for key in PROMPTS} == each_alone(any_tiny_model, PROMPTS)


def test_what_is_run_again_is_a_chunk_a_step_and_who_is_done_goes_on(any_tiny_model: Path) -> None:
    drive = decoding(any_tiny_model)
    passes = passes_of(drive)
    steps = 0
    while "bad" not in drive.faults:
        passes.clear()
        drive.decode()
        steps += 1
        # Beside the chunk: a step of each row, and one more of each that comes back.
        assert tokens_of(passes) <= CHUNK + 2 * (len(PROMPTS) + 1)
    assert 1 < steps / (len(PROMPTS) * len(PROMPTS["g0"]) // CHUNK) < 2
    assert len(drive.tokens["g0"]) > len(drive.tokens["g3"])
    finished = drive.decode_until(24)
    assert {key: finished[key] for key in PROMPTS} == each_alone(any_tiny_model, PROMPTS)


def test_rows_that_all_fail_alone_are_told_together(any_tiny_model: Path) -> None:
    drive, _ = failing(any_tiny_model)
    steps = 0
    while not drive.faults:
        assert drive.decode().rerun
        steps += 1
    assert steps > len(PROMPTS)
    assert drive.faults.keys() == set(PROMPTS)
    assert drive.engine.decoding == 0


def test_who_failed_alone_is_told_with_the_first_token_of_another(any_tiny_model: Path) -> None:
    drive, embedding = first_has_failed(any_tiny_model)
    embedding.mended = True
    while not (result := drive.decode()).tokens:
        assert result.faults == {}
    assert result.faults.keys() == {"g0"}
    others = {key: prompt for key, prompt in PROMPTS.items() if key != "g0"}
    finished = drive.decode_until(24)
    assert {key: finished[key] for key in others} == each_alone(any_tiny_model, others)
    assert drive.faults.keys() == {"g0"}


def test_who_failed_alone_and_is_dropped_before_it_is_told_leaves_nothing(any_tiny_model: Path) -> None:
    drive, embedding = first_has_failed(any_tiny_model)
    drive.engine.set_prefix_budget(PLENTY)
    drive.engine.drop("g0")
    del drive.tokens["g0"]
    assert cached(drive, PROMPTS["g0"]) == 0
    embedding.mended = True
    others = {key: prompt for key, prompt in PROMPTS.items() if key != "g0"}
    assert drive.decode_until(24) == each_alone(any_tiny_model, others)
    assert drive.faults == {}


def test_the_last_tokens_of_all_can_be_asked_for_while_some_are_run_again(tiny_model: Path) -> None:
    drive = decoding(tiny_model)
    drive.decode(100, more=False)
    assert drive.faults.keys() == {"bad"}
    finished = drive.decode_until(24)
    assert {key: finished[key] for key in PROMPTS} == each_alone(tiny_model, PROMPTS)


def test_who_is_dropped_while_it_is_run_again_is_in_nobodys_way(any_tiny_model: Path) -> None:
    drive = decoding(any_tiny_model)
    drive.engine.set_prefix_budget(PLENTY)
    drive.decode()
    while drive.decode().tokens:
        assert len(drive.tokens["g0"]) < 6, "nobody waits"
    # The first has been run in part, the third waits.
    for key in ("g0", "g2"):
        drive.engine.drop(key)
        del drive.tokens[key]
    assert cached(drive, PROMPTS["g0"]) == CHUNK
    others = {key: PROMPTS[key] for key in ("g1", "g3")}
    finished = drive.decode_until(24)
    assert {key: finished[key] for key in others} == each_alone(any_tiny_model, others)
    assert drive.faults.keys() == {"bad"}
    drive.admit("again", PROMPTS["g0"], namespace="tenant")
    drive.finish_prefill("again")
    assert drive.decode_until(24)["again"] == each_alone(any_tiny_model, {"g0": PROMPTS["g0"]})["g0"]
