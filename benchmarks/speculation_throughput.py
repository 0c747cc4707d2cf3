"""What all clients get together with speculation as it is shipped, against without, by clients.

    python -m benchmarks.speculation_throughput

Two installations run in turns, the first of one repeat last in the next: one decides by its measured verdict who
speculates (it is let to profile first, on every prompt), the other never does. Each client sends one request for a long
greedy answer and reads it to its end, each repeat beginning with another prompt; what counts is answer tokens over the
time until the last has ended. A row is the median of the paired ratios with their range.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time

from benchmarks import counters, processes
from benchmarks.arguments import parser as arguments_parser
from benchmarks.openai_stream import stream_chat
from benchmarks.prompts import PROMPTS, chat
from benchmarks.trust import refuse_when_busy, spread


def main() -> None:
    parser = arguments_parser(__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    refuse_when_busy()
    with contextlib.ExitStack() as stack:
        with_it = stack.enter_context(processes.platform(arguments.state, arguments.model))
        without = stack.enter_context(processes.platform(arguments.state, arguments.model))
        counters.speculates(with_it, arguments.model, "measured")
        keys = {with_it: with_it.key(), without: without.key()}

        def run(platform: processes.Platform, clients: int, first: int) -> float:
            prompts = [PROMPTS[(first + client) % len(PROMPTS)] for client in range(clients)]
            return asyncio.run(
                _tokens_per_second(
                    platform.port, arguments.model, keys[platform], prompts, arguments.max_tokens
                )
            )

        for first in range(len(PROMPTS)):
            run(with_it, 1, first)
        profiled = counters.read(with_it)
        if not profiled.speculation_gain:
            sys.exit(f"refused: {len(PROMPTS)} generations did not settle whether speculation pays")
        print(f"measured gain alone: {profiled.speculation_gain:.2f}\n")
        print("| clients | with, tokens/s | without, tokens/s | ratio (median, range) | rounds counted |")
        print("| --- | --- | --- | --- | --- |")
        for clients in arguments.clients:
            own: list[float] = []
            plain: list[float] = []
            before = counters.read(with_it)
            arms = [(with_it, own), (without, plain)]
            for repeat in range(arguments.repeats + 1):
                for platform, speeds in arms if repeat % 2 else reversed(arms):
                    speeds.append(run(platform, clients, repeat))
            rounds = counters.read(with_it).since(before).speculative_rounds
            own, plain = own[1:], plain[1:]  # the first pair is a warm-up
            ratios = [a / b for a, b in zip(own, plain, strict=True)]
            print(
                f"| {clients} | {spread(own, 1)} | {spread(plain, 1)} | {spread(ratios, 3)} | {rounds:.0f} |",
                flush=True,
            )
        if counters.read(without).speculative_rounds:
            sys.exit("refused: the installation without speculation speculated")


async def _tokens_per_second(port: int, model: str, key: str, prompts: list[str], max_tokens: int) -> float:
    started = time.perf_counter()
    timings = await asyncio.gather(
        *(stream_chat(port, model, chat(prompt), max_tokens, key) for prompt in prompts)
    )
    return sum(timing.completion_tokens for timing in timings) / (time.perf_counter() - started)


if __name__ == "__main__":
    main()
