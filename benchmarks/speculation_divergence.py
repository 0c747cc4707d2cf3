"""Whether speculation says what plain decoding says, and how close a call it was where it first does not.

    python -m benchmarks.speculation_divergence

The engine answers every prompt greedily twice, alone and without a server: token by token, and in rounds with the
suffix pool and the draft length of a worker. On MLX's own BLAS both are the same to the bit. A real one adds the
products of a block up in another order than those of a single token, so the last bits of the logits differ, and where
the two best tokens are nearly equal the other one may win; from there on the answers are two texts. So what counts is
each answer's *first divergence*: at which token it is, and the gap between the two best log-probabilities of plain
decoding there. Beside it stands how far rounding moved that gap at all positions before, where both runs have the same
tokens behind them.

The script fails when a first divergence is at a gap above ``--near-tie``, in natural logarithms: that is no rounding.
``--pool-prompts`` adds prompts whose answers the shipped pool knows by heart, so that most of their rounds are
blocks of the full length.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from benchmarks.arguments import parser as arguments_parser
from benchmarks.prompts import TASKS, chat
from inference.messages import Sampling
from inference.scheduling.draft_length import first_length, next_length

if TYPE_CHECKING:
    from inference.engine.drafting.drafter import Drafter
    from inference.engine.engine import Engine

#: A gap up to which rounding may decide, for float32. A sum of n products is off by about √n × 2⁻²⁴ of its size, so 30
#: layers of sums of 576 to 1,536 products, one behind the other, come to some 10⁻⁵ of a logit. Logits here are 10 to
#: 30: 10⁻⁴ at most, for each of the two. At such a gap one token is as probable as the other to two parts in 10,000.
NEAR_TIE: Final = 2e-4
_GREEDY: Final = Sampling(seed=0, temperature=0.0)
_CHUNK_TOKENS: Final = 512

Logits = npt.NDArray[np.float32]


@dataclass
class Answer:
    """``logits``: those that each token was drawn from; some may follow that were not drawn from."""

    tokens: list[int]
    logits: list[Logits]
    #: Guesses of each round that asked the drafter, how many it was asked for, and how many were right.
    drafted: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    accepted: int = 0


@dataclass(frozen=True)
class Comparison:
    """A speculated answer beside the plain one, up to the first divergence, or to the end.

    ``gaps``: between plain decoding's two best log-probabilities at each position. ``moved``: by how much the other
    run's differ, at the positions before the divergence. ``diverged_at``: its position, which the last gap is of.
    """

    gaps: list[float]
    moved: float
    diverged_at: int | None


def main() -> None:
    parser = arguments_parser(__doc__)
    parser.add_argument("--max-tokens", type=int, default=160)
    parser.add_argument("--draft-tokens", type=int, default=4)
    parser.add_argument(
        "--pool-prompts", type=int, default=0, help="so many of the pool's own prompts as well"
    )
    parser.add_argument("--near-tie", type=float, default=NEAR_TIE)
    arguments = parser.parse_args()

    from inference.engine.blas import load_blas

    blas = load_blas(arguments.state / "blas")
    from inference.engine.drafting.neutral_pool import find_neutral, neutral_prompts
    from inference.engine.drafting.pool_drafter import PoolDrafter
    from inference.engine.drafting.pool_store import PoolOwner, PoolStore
    from inference.engine.engine import Engine
    from inference.tokenization import vocabulary
    from inference.tokenization.template import render_chat

    engine = Engine(arguments.state / "models" / arguments.model)
    owner = PoolOwner(arguments.model, engine.record.checksum, vocabulary.checksum(engine.tokenizer))
    prompts = {**TASKS, "of the pool": tuple(neutral_prompts()[: arguments.pool_prompts])}
    print(f"BLAS: {blas}; {arguments.max_tokens} tokens an answer at most\n")
    print(
        "| task | answers | that differ | tokens compared | of them near-ties | gap moved by, at most | "
        "drafted a round (length) | accepted of drafted |"
    )
    print(f"|{' --- |' * 8}", flush=True)
    compared: list[tuple[str, Comparison]] = []
    with tempfile.TemporaryDirectory() as empty:
        pools = PoolStore(Path(empty), owner, find_neutral(arguments.state / "pools", owner))
        for task, texts in prompts.items():
            answers, of_task = [], []
            for text in texts:
                prompt = render_chat(engine.tokenizer, chat(text))
                answer = speculated(
                    engine, prompt, arguments.max_tokens, PoolDrafter(pools), arguments.draft_tokens
                )
                answers.append(answer)
                of_task.append(compare(plain(engine, prompt, arguments.max_tokens), answer))
            if texts:
                print(_row(task, of_task, answers, arguments.near_tie), flush=True)
            compared += [(f"{task} {number}", each) for number, each in enumerate(of_task, 1)]
    print()
    for which, each in compared:
        if each.diverged_at is not None:
            print(f"{which}: first divergence at token {each.diverged_at}, at a gap of {each.gaps[-1]:.2g}")
    refuse_unless_near_ties([each for _, each in compared], arguments.near_tie)


def plain(engine: Engine, prompt: Sequence[int], most: int) -> Answer:
    """The answer token by token, with nothing beside it."""
    recorder = _Recorder(len(prompt))
    engine.admit("plain", prompt, _GREEDY, processors=[recorder])
    tokens: list[int] = []
    while not _over(engine, tokens, most):
        done = engine.prefill(["plain"], _CHUNK_TOKENS) if engine.remaining("plain") else engine.decode()
        for fault in done.faults.values():
            raise fault
        tokens += [token for _, token in done.tokens]
    engine.drop("plain")
    return Answer(tokens, recorder.logits(len(tokens)))


def speculated(
    engine: Engine, prompt: Sequence[int], most: int, drafter: Drafter, draft_tokens: int
) -> Answer:
    """The answer in rounds of at most ``draft_tokens`` guesses, as many as a worker would ask for."""
    engine.set_drafter(lambda: drafter)
    recorder = _Recorder(len(prompt))
    engine.admit("speculated", prompt, _GREEDY, processors=[recorder])
    answer = Answer([], [])
    while engine.remaining("speculated"):
        first = engine.slice_zero("speculated", _CHUNK_TOKENS)
        for fault in first.faults.values():
            raise fault
        answer.tokens += [token for _, token in first.tokens]
    engine.take_drafter("speculated")
    length = first_length(draft_tokens)
    while not _over(engine, answer.tokens, most):
        asked = min(length.length, most - len(answer.tokens) - 1)
        round_ = engine.speculate("speculated", asked)
        if (failed := round_.fault or round_.drafter_fault) is not None:
            raise failed
        answer.tokens += _to_its_end(engine, round_.tokens)
        if asked:
            answer.lengths.append(asked)
            answer.drafted.append(round_.proposed)
            answer.accepted += round_.accepted
        length = next_length(length, proposed=round_.proposed, accepted=round_.accepted)
    engine.drop("speculated")
    engine.set_drafter(None)
    answer.logits = recorder.logits(len(answer.tokens))
    return answer


def compare(decoded: Answer, other: Answer) -> Comparison:
    """Raises ``ValueError`` where both have the same tokens, but one of them ends before the other."""
    gaps: list[float] = []
    moved = 0.0
    for position, (token, said) in enumerate(zip(decoded.tokens, other.tokens, strict=False)):
        logits, others = decoded.logits[position], other.logits[position]
        second, best = np.argpartition(logits, -2)[-2:]
        gaps.append(float(logits[best] - logits[second]))
        if token != said:
            return Comparison(gaps, moved, position)
        moved = max(moved, abs(gaps[-1] - float(others[best] - others[second])))
    if len(decoded.tokens) != len(other.tokens):
        raise ValueError(f"an answer of {len(decoded.tokens)} tokens became one of {len(other.tokens)}")
    return Comparison(gaps, moved, None)


def refuse_unless_near_ties(compared: Sequence[Comparison], near_tie: float) -> None:
    """End the script unless every first divergence is where rounding may decide."""
    gaps = [each.gaps[-1] for each in compared if each.diverged_at is not None]
    moved = max((each.moved for each in compared), default=0.0)
    if moved > near_tie:
        sys.exit(f"refused: a gap was moved by {moved:.2g}, which is more than rounding can be")
    if any(gap > near_tie for gap in gaps):
        sys.exit(
            f"refused: a first divergence at a gap of {max(gaps):.2g}, where rounding decides up to {near_tie:g}"
        )
    print(
        f"{len(gaps)} of {len(compared)} answers differ, each from a near-tie on (a gap of {near_tie:g} at most)"
    )


class _Recorder:
    """A logits processor that changes nothing, and remembers."""

    def __init__(self, prompt_length: int) -> None:
        self._prompt_length = prompt_length
        self._by_position: dict[int, Logits] = {}

    def __call__(self, tokens: Any, logits: Any) -> Any:
        import mlx.core as mx

        # What stood behind a wrong guess is overwritten by the round that draws there.
        self._by_position[len(tokens) - self._prompt_length] = np.array(logits[0].astype(mx.float32))
        return logits

    def logits(self, count: int) -> list[Logits]:
        return [self._by_position[position] for position in range(count)]


def _over(engine: Engine, tokens: Sequence[int], most: int) -> bool:
    return len(tokens) >= most or (bool(tokens) and tokens[-1] in engine.tokenizer.eos_ids)


def _to_its_end(engine: Engine, tokens: Sequence[int]) -> Iterator[int]:
    """The tokens up to one that ends the text, it included."""
    for token in tokens:
        yield token
        if token in engine.tokenizer.eos_ids:
            return


def _row(task: str, compared: Sequence[Comparison], answers: Sequence[Answer], near_tie: float) -> str:
    gaps = [gap for each in compared for gap in each.gaps]
    drafted = [count for answer in answers for count in answer.drafted]
    lengths = [length for answer in answers for length in answer.lengths]
    cells = (
        task,
        len(compared),
        sum(each.diverged_at is not None for each in compared),
        len(gaps),
        sum(gap <= near_tie for gap in gaps),
        f"{max(each.moved for each in compared):.1g}",
        f"{sum(drafted) / max(1, len(drafted)):.2f} ({min(lengths)}–{max(lengths)})",
        f"{sum(answer.accepted for answer in answers)} of {sum(drafted)}",
    )
    return f"| {' | '.join(str(cell) for cell in cells)} |"


if __name__ == "__main__":
    main()
