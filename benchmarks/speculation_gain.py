"""What speculative decoding gains for one stream, by the kind of its task, beside plain decoding and ``mlx_lm.server``.

    python -m benchmarks.speculation_gain

One client at a time asks for greedy answers: free chat, a summary of a given text, and a given program with a small
change. The arms alternate on the same prompts: Signalbox with the slot forced on, Signalbox without, and
``mlx_lm.server`` with the same BLAS, which has no drafter of this tokenizer. What counts is decoding: tokens after the
first over the time from the first to the last. A row is the median of the prompts' own ratios with their range.

The run is refused when the two Signalbox arms do not say the same, but for at most one answer in eight: with a BLAS the
last bits of a block's logits differ from single steps', and a near-tie may fall the other way.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

from benchmarks import counters, processes
from benchmarks.arguments import parser as arguments_parser
from benchmarks.openai_stream import StreamTiming, stream_chat
from benchmarks.prompts import TASKS, chat
from benchmarks.trust import refuse_when_busy, spread

_SPECULATION, _PLAIN, _PEER = _ARMS = ("speculation", "plain", "mlx_lm.server")


def main() -> None:
    parser = arguments_parser(__doc__)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=2, help="of every prompt")
    arguments = parser.parse_args()
    refuse_when_busy()
    directory = arguments.state / "models" / arguments.model
    #: By task, then by arm: every answer, in the same order of prompts.
    answers: dict[str, dict[str, list[StreamTiming]]] = {task: {arm: [] for arm in _ARMS} for task in TASKS}
    with contextlib.ExitStack() as stack:
        platform = stack.enter_context(processes.platform(arguments.state, arguments.model))
        key = platform.key()
        server = stack.enter_context(processes.mlx_server(directory, arguments.state / "blas"))

        def ask(arm: str, prompt: str) -> StreamTiming:
            if arm == _PEER:
                return _one(server, str(directory), prompt, arguments.max_tokens, "none")
            return _one(platform.port, arguments.model, prompt, arguments.max_tokens, key)

        for repeat in range(arguments.repeats):
            for mode, arms in (("on", (_SPECULATION,)), ("off", (_PLAIN, _PEER))):
                counters.speculates(platform, arguments.model, mode)
                for task, prompts in TASKS.items():
                    for prompt in prompts:
                        for arm in arms:
                            if not repeat and not answers[task][arm]:
                                ask(arm, prompt)  # the first of its kind is a warm-up
                            answers[task][arm].append(ask(arm, prompt))
    _refuse_other_texts(answers)
    print(f"{arguments.max_tokens} tokens an answer at most, {arguments.repeats} repeats\n")
    print("| task | speculation, tokens/s | of plain | of mlx_lm.server | accepted of drafted |")
    print("| --- | --- | --- | --- | --- |")
    for task, by_arm in answers.items():
        own, plain, peer = ([_rate(timing) for timing in by_arm[arm]] for arm in _ARMS)
        accepted = sum(timing.accepted_tokens for timing in by_arm[_SPECULATION])
        drafted = accepted + sum(timing.rejected_tokens for timing in by_arm[_SPECULATION])
        print(
            f"| {task} | {spread(own, 1)} | {spread(_ratios(own, plain), 2)} | {spread(_ratios(own, peer), 2)} | "
            f"{accepted} of {drafted} |"
        )


def _refuse_other_texts(answers: dict[str, dict[str, list[StreamTiming]]]) -> None:
    pairs = [
        pair for by_arm in answers.values() for pair in zip(by_arm[_SPECULATION], by_arm[_PLAIN], strict=True)
    ]
    differing = sum(own.text != plain.text for own, plain in pairs)
    print(f"{differing} of {len(pairs)} answers differ from plain decoding's")
    if differing > len(pairs) / 8:
        sys.exit("refused: speculation changed more answers than near-ties explain")


def _rate(timing: StreamTiming) -> float:
    return (timing.completion_tokens - 1) / (timing.ended - timing.arrivals[0])


def _ratios(own: list[float], other: list[float]) -> list[float]:
    return [mine / theirs for mine, theirs in zip(own, other, strict=True)]


def _one(port: int, model: str, prompt: str, max_tokens: int, key: str) -> StreamTiming:
    return asyncio.run(stream_chat(port, model, chat(prompt), max_tokens, key))


if __name__ == "__main__":
    main()
