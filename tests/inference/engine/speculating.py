"""Driving speculating sequences, with drafters whose guesses a test decides."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from inference.engine.drafting.drafter import DraftContext
from inference.engine.results import RoundResult, StepResult
from inference.messages import Sampling
from tests.inference.engine.driving import GREEDY, Drive

#: Guesses for a sequence, and at most how many are wanted.
Script = Callable[[DraftContext, int], list[int]]

PENALISED: Final = Sampling(seed=4, temperature=0.9, presence_penalty=0.6, frequency_penalty=0.3)

#: One for each way of drawing, and for each thing that changes logits by what came before.
SAMPLINGS: Final = {
    "greedy": GREEDY,
    "plain": Sampling(seed=1, temperature=1.0),
    "min_p": Sampling(seed=2, temperature=1.2, min_p=0.05),
    "top_p": Sampling(seed=3, temperature=0.8, top_p=0.9),
    "top_k": Sampling(seed=4, temperature=1.0, top_k=5),
    "penalties": PENALISED,
    "repetition": Sampling(seed=5, temperature=0.7, repetition_penalty=1.3, top_p=0.95),
    "greedy penalties": Sampling(seed=0, temperature=0.0, presence_penalty=1.5, repetition_penalty=1.2),
    "bias": Sampling(seed=6, temperature=1.0, logit_bias={40: 2.0, 41: -100.0}),
}


def no_guess(context: DraftContext, k: int) -> list[int]:
    return []


def knowing(text: Sequence[int], wrong: Callable[[int], bool] = lambda position: False) -> Script:
    """Guesses the tokens of a whole text, but for those at the positions that are to be wrong."""

    def guess(context: DraftContext, k: int) -> list[int]:
        begin = len(context.tokens)
        return [
            (token + 1) % 256 + 3 if wrong(begin + index) else token
            for index, token in enumerate(text[begin : begin + k])
        ]

    return guess


class ScriptedDrafter:
    """A drafter that guesses by a script, and writes down what it is told."""

    name = "scripted"
    memory_bytes = 1000

    def __init__(self, script: Script = no_guess) -> None:
        self.script = script
        self.bound: DraftContext | None = None
        self.told: list[tuple[str, object]] = []

    def bind(self, context: DraftContext) -> None:
        self.bound = context
        self.told.append(("bind", context.key))

    def draft(self, k: int) -> list[int]:
        assert self.bound is not None
        return self.script(self.bound, k)

    def observe(self, committed: Sequence[int], proposed: int, accepted: int) -> None:
        self.told.append(("observe", (list(committed), proposed, accepted)))

    def finish(self, context: DraftContext) -> None:
        self.told.append(("finish", list(context.tokens)))

    def release(self) -> None:
        self.bound = None
        self.told.append(("release", None))


class SpeculativeDrive(Drive):
    """An engine with a scripted drafter, and the tokens of every sequence, however they were produced."""

    def __init__(
        self, model_dir: Path, script: Script = no_guess, prefix_cache_bytes: int = 0, *, drafter: bool = True
    ) -> None:
        super().__init__(model_dir, prefix_cache_bytes)
        self.drafter = ScriptedDrafter(script)
        if drafter:
            self.engine.set_drafter(lambda: self.drafter)

    def slice_zero(self, key: str, chunk: int = 512) -> StepResult:
        return self._take(self.engine.slice_zero(key, chunk))

    def start(self, key: str, prompt: Sequence[int], sampling: Sampling = GREEDY, **options: object) -> None:
        """Admit a sequence, and run its prompt to the first token; it has caches of its own then."""
        self.admit(key, prompt, sampling, **options)
        self.slice_zero(key)

    def round(self, key: str, draft_tokens: int = 4) -> RoundResult:
        """One round, for which the sequence takes the drafter and returns it."""
        if draft_tokens:
            self.engine.take_drafter(key)
        result = self.engine.speculate(key, draft_tokens)
        self.engine.return_drafter(key)
        self.tokens[key] += result.tokens
        if result.fault is not None:
            self.faults[key] = result.fault
        return result

    def rounds(self, key: str, count: int = 24, lengths: Iterator[int] | None = None) -> list[int]:
        """Rounds until there are ``count`` tokens, or a fault; the first ``count`` of them."""
        while len(self.tokens[key]) < count and key not in self.faults:
            self.round(key, next(lengths) if lengths is not None else 4)
        return self.tokens[key][:count]
