"""What speculative decoding gains for one stream, by the kind of its task, beside plain decoding and ``mlx_lm.server``.

    python -m benchmarks.speculation_gain

One client at a time asks for greedy answers: free chat, a summary of a given text, and a given program with a small
change. Three arms take turns on each prompt, the last of one repeat first in the next: an installation with the slot
forced on, one without, and ``mlx_lm.server`` on the same BLAS, which has no drafter of this tokenizer. What counts
is decoding: tokens after the first over the time from the first to the last. A row is the median of the answers' own
ratios with their range; *k* is what was drafted a round, the median of the answers' means with their range, by the
rounds that the worker counted.

The run is refused when the two installations do not say the same, but for at most one answer in eight: with a BLAS the
last bits of a block's logits differ from single steps', and a near-tie may fall the other way
(``speculation_divergence`` looks at each).
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks import counters, processes
from benchmarks.arguments import parser as arguments_parser
from benchmarks.openai_stream import StreamTiming, stream_chat
from benchmarks.prompts import TASKS, chat
from benchmarks.trust import refuse_when_busy, spread

_SPECULATION, _PLAIN, _PEER = "speculation", "plain", "mlx_lm.server"


@dataclass(frozen=True)
class _Answer:
    timing: StreamTiming
    #: Of the slot, in the arm that has it.
    rounds: int = 0

    @property
    def rate(self) -> float:
        """Tokens a second, from the first to the last."""
        return (self.timing.completion_tokens - 1) / (self.timing.ended - self.timing.arrivals[0])

    @property
    def drafted(self) -> int:
        return self.timing.accepted_tokens + self.timing.rejected_tokens


def main() -> None:
    parser = arguments_parser(__doc__)
    parser.add_argument("--max-tokens", type=int, default=160)
    parser.add_argument("--repeats", type=int, default=3, help="of every prompt")
    arguments = parser.parse_args()
    refuse_when_busy()
    directory = arguments.state / "models" / arguments.model
    with contextlib.ExitStack() as stack:
        with_it = stack.enter_context(processes.platform(arguments.state, arguments.model))
        without = stack.enter_context(processes.platform(arguments.state, arguments.model))
        server = stack.enter_context(processes.mlx_server(directory, arguments.state / "blas"))
        counters.speculates(with_it, arguments.model, "on")
        keys = {with_it: with_it.key(), without: without.key()}

        def ask(platform: processes.Platform, prompt: str) -> StreamTiming:
            return _one(platform.port, arguments.model, prompt, arguments.max_tokens, keys[platform])

        def speculating(prompt: str) -> _Answer:
            before = counters.read(with_it)
            timing = ask(with_it, prompt)
            time.sleep(counters.BEAT_S)
            return _Answer(timing, round(counters.read(with_it).since(before).speculative_rounds))

        arms: dict[str, Callable[[str], _Answer]] = {
            _SPECULATION: speculating,
            _PLAIN: lambda prompt: _Answer(ask(without, prompt)),
            _PEER: lambda prompt: _Answer(_one(server, str(directory), prompt, arguments.max_tokens, "none")),
        }
        answers = _all_answers(arms, arguments.repeats)
        if counters.read(without).speculative_rounds:
            sys.exit("refused: the installation without speculation speculated")
    _refuse_other_texts(answers)
    print(f"{arguments.max_tokens} tokens an answer at most, {arguments.repeats} repeats\n")
    print("| task | speculation, tokens/s | of plain | of mlx_lm.server | k | accepted of drafted |")
    print(f"|{' --- |' * 6}")
    for task, by_arm in answers.items():
        own, plain, peer = ([answer.rate for answer in by_arm[arm]] for arm in arms)
        speculated = by_arm[_SPECULATION]
        drafted = [answer.drafted / max(1, answer.rounds) for answer in speculated]
        accepted = sum(answer.timing.accepted_tokens for answer in speculated)
        print(
            f"| {task} | {spread(own, 1)} | {spread(_ratios(own, plain), 2)} | {spread(_ratios(own, peer), 2)} | "
            f"{spread(drafted, 2)} | {accepted} of {sum(answer.drafted for answer in speculated)} |"
        )


def _all_answers(
    arms: dict[str, Callable[[str], _Answer]], repeats: int
) -> dict[str, dict[str, list[_Answer]]]:
    """By task, then by arm: every answer, in the same order of prompts."""
    answers: dict[str, dict[str, list[_Answer]]] = {task: {arm: [] for arm in arms} for task in TASKS}
    for arm in arms.values():
        arm(TASKS["free chat"][0])  # a warm-up
    for repeat in range(repeats):
        for task, prompts in TASKS.items():
            for prompt in prompts:
                for name in reversed(arms) if repeat % 2 else arms:
                    answers[task][name].append(arms[name](prompt))
    return answers


def _refuse_other_texts(answers: dict[str, dict[str, list[_Answer]]]) -> None:
    pairs = [
        pair for by_arm in answers.values() for pair in zip(by_arm[_SPECULATION], by_arm[_PLAIN], strict=True)
    ]
    differing = sum(own.timing.text != plain.timing.text for own, plain in pairs)
    print(f"{differing} of {len(pairs)} answers differ from plain decoding's")
    if differing > len(pairs) / 8:
        sys.exit("refused: speculation changed more answers than near-ties explain")


def _ratios(own: list[float], other: list[float]) -> list[float]:
    return [mine / theirs for mine, theirs in zip(own, other, strict=True)]


def _one(port: int, model: str, prompt: str, max_tokens: int, key: str) -> StreamTiming:
    return asyncio.run(stream_chat(port, model, chat(prompt), max_tokens, key))


if __name__ == "__main__":
    main()
