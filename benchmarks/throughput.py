"""Throughput of prompt-heavy and decode-heavy work beside ``mlx_lm.server`` with the same BLAS, by clients.

    python -m benchmarks.throughput

Each client sends one request and reads it to its end; what counts is the tokens of all requests, prompt and answer,
over the time until the last has ended. The two servers alternate, and a row is the median of the paired ratios with
their range; a repeat in which they did not do the same work (their token counts differ by more than 2 %) ends the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
import time

from benchmarks import processes
from benchmarks.arguments import parser as arguments_parser
from benchmarks.openai_stream import stream_chat
from benchmarks.prompts import chat, long_prompt
from benchmarks.trust import refuse_when_busy, spread

#: Prompt and answer tokens of a request.
_WORK = {"prompt-heavy": (2000, 32), "decode-heavy": (100, 400)}


def main() -> None:
    parser = arguments_parser(__doc__)
    parser.add_argument("--work", nargs="+", choices=_WORK, default=list(_WORK))
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="of all token counts, for slow machines")
    arguments = parser.parse_args()
    refuse_when_busy()
    directory = arguments.state / "models" / arguments.model
    seeds = itertools.count()
    with contextlib.ExitStack() as stack:
        platform = stack.enter_context(processes.platform(arguments.state, arguments.model))
        platform.schedule(arguments.model, slots=max(arguments.clients))
        key = platform.key()
        server = stack.enter_context(processes.mlx_server(directory, arguments.state / "blas"))
        print("| work | clients | Signalbox, tokens/s | mlx_lm.server, tokens/s | ratio (median, range) |")
        print("| --- | --- | --- | --- | --- |")
        for work in arguments.work:
            size = tuple(max(1, round(count * arguments.scale)) for count in _WORK[work])
            for clients in arguments.clients:
                ours: list[float] = []
                theirs: list[float] = []
                for repeat in range(arguments.repeats + 1):
                    prompts = [chat(long_prompt(size[0], next(seeds))) for _ in range(clients)]
                    first = _run(platform.port, arguments.model, key, prompts, size)
                    second = _run(server, str(directory), "none", prompts, size)
                    if abs(first[0] - second[0]) > 0.02 * max(first[0], second[0]):
                        sys.exit(f"refused: the servers did not do the same work: {first[0]} and {second[0]}")
                    if repeat:
                        ours.append(first[0] / first[1])
                        theirs.append(second[0] / second[1])
                ratios = [own / peer for own, peer in zip(ours, theirs, strict=True)]
                row = (work, str(clients), spread(ours, 1), spread(theirs, 1), spread(ratios, 3))
                print(f"| {' | '.join(row)} |", flush=True)


def _run(
    port: int, model: str, key: str, prompts: list[list[dict[str, str]]], size: tuple[int, ...]
) -> tuple[int, float]:
    """Tokens of all requests, and seconds until the last had ended."""
    prompt_tokens, max_tokens = size

    async def all_of_them() -> int:
        streams = [stream_chat(port, model, prompt, max_tokens, key) for prompt in prompts]
        return sum(timing.completion_tokens for timing in await asyncio.gather(*streams))

    started = time.perf_counter()
    produced = asyncio.run(all_of_them())
    return produced + len(prompts) * prompt_tokens, time.perf_counter() - started


if __name__ == "__main__":
    main()
