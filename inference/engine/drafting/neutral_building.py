"""Making a neutral pool: the model answers a list of prompts, several at once."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from inference.engine.drafting.pool_files import PoolContent
from inference.engine.drafting.suffix_pool import pack
from inference.messages import Sampling
from inference.tokenization import vocabulary
from inference.tokenization.template import render_chat
from inference.tokenization.tokenizer import Tokenizer

if TYPE_CHECKING:
    from inference.engine.engine import Engine, StepResult

_CHUNK_TOKENS: Final = 512
#: The most probable answer is what a pool has to predict.
_GREEDY: Final = Sampling(seed=0, temperature=0.0)


def build(
    engine: Engine,
    prompts: Sequence[str],
    *,
    answer_tokens: int,
    rows: int,
    notes: Path,
    advance: Callable[[int], object],
) -> PoolContent:
    """The neutral pool of the engine's model: a text for each prompt, in their order.

    Each answer is at most ``answer_tokens`` long; ``rows`` are generated at once. Every answer is put down in
    ``notes`` as it comes, so that a building that was interrupted goes on there; the caller deletes the file.
    ``advance`` is told how many more prompts were answered.

    Raises what a sequence failed of.
    """
    record = engine.record
    answers = _Notes(
        notes,
        {
            "model": record.checksum,
            "prompts": hashlib.sha256("\n".join(prompts).encode()).hexdigest(),
            "answer_tokens": answer_tokens,
        },
    )
    advance(len(answers.known))
    missing = {index: prompt for index, prompt in enumerate(prompts) if index not in answers.known}
    for index, tokens in _answers(engine, missing, answer_tokens, rows):
        answers.add(index, tokens)
        advance(1)
    return PoolContent(
        vocabulary=vocabulary.checksum(engine.tokenizer),
        model=record.name,
        model_checksum=record.checksum,
        texts=tuple(pack(answers.known[index]) for index in range(len(prompts))),
    )


def _answers(
    engine: Engine, prompts: Mapping[int, str], answer_tokens: int, rows: int
) -> Iterator[tuple[int, list[int]]]:
    """Each prompt's number and the tokens of its answer, without the one that ends it, as they are done."""
    waiting = deque(prompts.items())
    running: dict[str, list[int]] = {}

    def take(result: StepResult) -> Iterator[tuple[int, list[int]]]:
        for fault in result.faults.values():
            raise fault
        for key, token in result.tokens:
            answer = running[key]
            ended = token in engine.tokenizer.eos_ids
            if not ended:
                answer.append(token)
            if ended or len(answer) == answer_tokens:
                engine.drop(key)
                yield int(key), running.pop(key)

    while waiting or running:
        while waiting and len(running) < rows:
            index, prompt = waiting.popleft()
            key = str(index)
            engine.admit(key, _rendered(engine.tokenizer, prompt), _GREEDY)
            running[key] = []
            while key in running and engine.remaining(key):
                yield from take(engine.prefill([key], _CHUNK_TOKENS))
        yield from take(engine.decode())


def _rendered(tokenizer: Tokenizer, prompt: str) -> list[int]:
    if tokenizer.chat_template is None:
        return tokenizer.encode(f"{prompt}\n", add_special_tokens=True)
    return render_chat(tokenizer, [{"role": "user", "content": prompt}])


class _Notes:
    """The answers that there are, one a line of a file, behind a line that says what they belong to.

    A file that belongs to something else is begun anew. A line that was cut off is not counted.
    """

    def __init__(self, path: Path, heading: Mapping[str, object]) -> None:
        self._path = path
        self.known: Final[dict[int, list[int]]] = {}
        first = json.dumps(heading)
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
        whole = [line for line in lines if line.endswith("\n")]
        if not whole or whole[0].strip() != first:
            whole = [f"{first}\n"]
        for line in whole[1:]:
            index, tokens = json.loads(line)
            self.known[index] = tokens
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_text("".join(whole), encoding="utf-8")

    def add(self, index: int, tokens: list[int]) -> None:
        self.known[index] = tokens
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([index, tokens]) + "\n")
