"""The tiny model's forward passes, which a test can have fail as those of a broken device or of a poisoned text do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import mlx.core as mx
import pytest
from mlx_lm.models.llama import LlamaModel

from tests.inference.engine.tiny_model import SPECIAL_TOKENS, TURN_START

#: A pass that has this among its tokens fails. No text holds it, and the tiny model never chooses it by itself.
POISON: Final = SPECIAL_TOKENS.index(TURN_START)


class ForwardPasses:
    """All of the process: those of every engine."""

    def __init__(self) -> None:
        #: Whether every pass fails.
        self.broken = False
        #: Passes of fewer tokens fail.
        self.shortest = 0
        #: How many tokens each pass was to run of its rows, also one that failed.
        self.sizes: list[int] = []

    def check(self, tokens: mx.array) -> None:
        self.sizes.append(tokens.shape[-1])
        if self.broken or self.sizes[-1] < self.shortest:
            raise MemoryError("device")
        if (tokens == POISON).any().item():
            raise RuntimeError("poisoned")


@pytest.fixture
def forward_passes() -> Iterator[ForwardPasses]:
    """Inside the engine, where it meets what a model raises."""
    passes, run = ForwardPasses(), LlamaModel.__call__

    def checked(model: LlamaModel, inputs: mx.array, *arguments: Any, **named: Any) -> Any:
        passes.check(inputs)
        return run(model, inputs, *arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LlamaModel, "__call__", checked)
        yield passes
