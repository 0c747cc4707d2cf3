"""A speculating sequence joins the decode batch, and nothing of it is run again."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import pytest
from mlx.nn.layers.base import Module

from inference.engine.batch import DecodeBatch
from inference.engine.drafting.drafter import DraftContext
from tests.inference.engine.driving import GREEDY, Drive, alone, each_alone, prompts_of
from tests.inference.engine.speculating import PENALISED, SAMPLINGS, SpeculativeDrive, knowing


class CountingEmbedding(Module):
    """Counts the tokens that are run."""

    def __init__(self, embedding: Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.embedding = embedding
        self.count = 0

    def __call__(self, tokens: mx.array) -> mx.array:
        self.count += tokens.size
        embedded: mx.array = self.embedding(tokens)
        return embedded


@pytest.mark.parametrize("sampling", [GREEDY, PENALISED], ids=["greedy", "penalised"])
@pytest.mark.parametrize("rounds", range(7))
def test_a_sequence_goes_on_in_the_batch_at_any_time_and_nobody_notices(
    any_tiny_model: Path, rounds: int, sampling: object
) -> None:
    prompts = prompts_of(Drive(any_tiny_model))
    mover = prompts.pop("g0")
    samplings = {"g1": SAMPLINGS["top_p"], "g2": PENALISED, "g3": SAMPLINGS["plain"]}
    expected = each_alone(any_tiny_model, prompts, samplings)
    expected["mover"] = alone(any_tiny_model, mover, sampling)  # type: ignore[arg-type]
    text = [*mover, *expected["mover"]]
    drive = SpeculativeDrive(any_tiny_model, knowing(text, lambda position: position % 3 == 0))
    for key, prompt in prompts.items():
        drive.admit(key, prompt, samplings.get(key, GREEDY))
    drive.prefill("g2", "g4")
    drive.decode(2)
    drive.start("mover", mover, sampling)  # type: ignore[arg-type]
    for _ in range(rounds):
        drive.round("mover", 3)
        drive.decode()
    drive.prefill("g1")
    drive.engine.into_classic("mover")
    assert drive.engine.decoding == 4
    drive.decode()
    drive.prefill("g3")
    assert drive.decode_until(24) == expected


def test_each_token_is_run_once(tiny_model: Path) -> None:
    drive = SpeculativeDrive(tiny_model)
    prompt = prompts_of(drive)["g2"]
    expected = alone(tiny_model, prompt)
    drive.drafter.script = knowing([*prompt, *expected])
    counting = CountingEmbedding(drive.engine.model.model.embed_tokens)
    drive.engine.model.model.embed_tokens = counting
    drive.start("g", prompt)
    drive.round("g", 4)
    drive.engine.into_classic("g")
    assert counting.count == len(prompt) + 5
    assert drive.decode().tokens == []
    assert drive.decode(3).tokens == [("g", expected[8])]
    # The batch is a step ahead.
    assert counting.count == len(prompt) + 5 + 4
    assert drive.tokens["g"] == expected[:9]


def test_a_sequence_alone_joins_an_empty_batch(any_tiny_model: Path) -> None:
    drive = SpeculativeDrive(any_tiny_model)
    prompt = prompts_of(drive)["g4"]
    drive.start("g", prompt, SAMPLINGS["top_k"])
    drive.round("g", 2)
    drive.engine.into_classic("g")
    assert drive.decode_until(24)["g"] == alone(any_tiny_model, prompt, SAMPLINGS["top_k"])
    with pytest.raises(ValueError, match="'g' is decoding, not speculating"):
        drive.engine.speculate("g", 0)


def test_who_joins_the_batch_returns_the_drafter(tiny_model: Path) -> None:
    drive = SpeculativeDrive(tiny_model, lambda context, k: [5] * k)
    prompts = prompts_of(drive)
    drive.start("g0", prompts["g0"])
    drive.start("g1", prompts["g1"])
    assert drive.engine.take_drafter("g0")
    drive.engine.into_classic("g0")
    assert drive.drafter.told[-1] == ("release", None)
    assert drive.engine.take_drafter("g1")


def test_processors_see_the_same_tokens_in_the_batch(tiny_model: Path) -> None:
    seen: list[list[int]] = []

    def look(tokens: mx.array, logits: mx.array) -> mx.array:
        seen.append(tokens.tolist())  # type: ignore[arg-type]
        return logits

    drive = SpeculativeDrive(tiny_model)
    prompt = prompts_of(drive)["g0"]
    expected = alone(tiny_model, prompt, SAMPLINGS["penalties"], 12)
    text = [*prompt, *expected]

    def guess(context: DraftContext, k: int) -> list[int]:
        return [*text[len(context.tokens) :][: k - 1], 3]

    drive.drafter.script = guess
    drive.start("g", prompt, SAMPLINGS["penalties"], processors=[look])
    drive.round("g", 3)
    drive.engine.into_classic("g")
    drive.decode_until(12)
    assert drive.tokens["g"][:12] == expected
    reached = [tokens for tokens in seen if tokens == text[: len(tokens)]]
    assert [len(tokens) for tokens in reached][:10] == list(range(len(prompt), len(prompt) + 10))


def test_who_joins_takes_no_room_beside_who_has_left(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drive = SpeculativeDrive(tiny_model)
    prompts = prompts_of(drive)
    for key in ("g0", "g1"):
        drive.admit(key, prompts[key])
    drive.prefill("g0", "g1")
    drive.start("mover", prompts["g2"])
    drive.engine.drop("g0")
    rows, extend = list[int](), DecodeBatch.extend

    def counted(batch: DecodeBatch, other: DecodeBatch) -> None:
        extend(batch, other)
        rows.append(len(batch))

    monkeypatch.setattr(DecodeBatch, "extend", counted)
    drive.engine.into_classic("mover")
    assert rows == [2]
