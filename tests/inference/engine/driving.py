"""Driving an engine as a worker does, to the tokens of every sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from inference.engine.engine import Engine, StepResult
from inference.messages import Sampling

GREEDY: Final = Sampling(seed=0, temperature=0.0)

#: Ragged: one token, a few, and more than any window or chunk in these tests.
TEXTS: Final = (
    "The signal box",
    "x",
    "A short prompt hardly costs anything; a long one is run chunk by chunk. Who was given priority?",
    "こんにちは世界",
    "0 1 2 3 4 5 6 7 8 9",
)


#: What ``alone`` has found out, by what it was asked.
_alone: dict[tuple[object, ...], list[int]] = {}


class Drive:
    """One engine, and what came out of it so far."""

    def __init__(self, model_dir: Path, prefix_cache_bytes: int = 0) -> None:
        self.engine = Engine(model_dir, prefix_cache_bytes)
        self.tokens: dict[str, list[int]] = {}
        self.faults: dict[str, Exception] = {}

    def admit(self, key: str, prompt: Sequence[int], sampling: Sampling = GREEDY, **options: object) -> None:
        self.tokens[key] = []
        self.engine.admit(key, prompt, sampling, **options)  # type: ignore[arg-type]

    def prefill(self, *keys: str, chunk: int = 512) -> StepResult:
        """One chunk of these."""
        self.engine.look_up_prefixes()
        return self._take(self.engine.prefill(keys, chunk))

    def finish_prefill(self, *keys: str, chunk: int = 512) -> None:
        """Chunks of each of these, one after another, until it decodes."""
        for key in keys:
            while self.engine.remaining(key):
                self.prefill(key, chunk=chunk)

    def decode(self, times: int = 1, *, more: bool = True) -> StepResult:
        for _ in range(times):
            result = self._take(self.engine.decode(more=more))
        return result

    def decode_until(self, count: int) -> dict[str, list[int]]:
        """Decode until every decoding sequence has ``count`` tokens; the first ``count`` of each."""
        while any(len(tokens) < count and key not in self.faults for key, tokens in self.tokens.items()):
            self.decode()
        return {key: tokens[:count] for key, tokens in self.tokens.items()}

    def _take(self, result: StepResult) -> StepResult:
        for key, token in result.tokens:
            self.tokens[key].append(token)
        self.faults |= result.faults
        return result


def prompts_of(drive: Drive, texts: Sequence[str] = TEXTS) -> dict[str, list[int]]:
    return {f"g{index}": drive.engine.tokenizer.encode(text) for index, text in enumerate(texts)}


def alone(
    model_dir: Path, prompt: Sequence[int], sampling: Sampling = GREEDY, count: int = 24, **options: object
) -> list[int]:
    """What ``run_alone`` gives, run once for all tests that compare with it: it takes longer than most of them."""
    if options:
        return run_alone(model_dir, prompt, sampling, count, **options)
    asked = (model_dir, tuple(prompt), repr(sampling), count)
    if asked not in _alone:
        _alone[asked] = run_alone(model_dir, prompt, sampling, count)
    return list(_alone[asked])


def run_alone(
    model_dir: Path, prompt: Sequence[int], sampling: Sampling = GREEDY, count: int = 24, **options: object
) -> list[int]:
    """The tokens of a sequence that has the engine for itself and its prompt in one piece."""
    drive = Drive(model_dir)
    drive.admit("alone", prompt, sampling, **options)
    drive.finish_prefill("alone")
    return drive.decode_until(count)["alone"]


def each_alone(
    model_dir: Path,
    prompts: Mapping[str, Sequence[int]],
    samplings: Mapping[str, Sampling] | None = None,
    count: int = 24,
) -> dict[str, list[int]]:
    return {
        key: alone(model_dir, prompt, (samplings or {}).get(key, GREEDY), count)
        for key, prompt in prompts.items()
    }
