"""Decode throughput through the API beside mlx-lm's own batch generation and ``mlx_lm.server``, in one run.

    python -m benchmarks.decode_throughput

For 1, 4 and 8 streams, each arm generates the same greedy answers to the same prompts; the arms alternate,
and a row is the median of the repeats with their range. What is measured is decoding: the tokens that come while all
streams run, from the last stream's first token to the first stream's end. The platform's cost is its ratio to calling
mlx-lm directly. A run in which this window holds less than half of the tokens, or which began on a busy
machine, is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import processes
from benchmarks.arguments import parser as arguments_parser
from benchmarks.openai_stream import StreamTiming, stream_chat
from benchmarks.prompts import PROMPTS, chat
from benchmarks.trust import refuse_when_busy, spread

#: Answers to so many prompts: when each one's tokens came, in seconds.
Run = Callable[[int], Sequence[Sequence[float]]]


def main() -> None:
    parser = arguments_parser(__doc__)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--stock", action="store_true", help="also mlx_lm.server as installed (slow)")
    arguments = parser.parse_args()
    refuse_when_busy()
    directory = arguments.state / "models" / arguments.model
    with contextlib.ExitStack() as stack:
        platform = stack.enter_context(processes.platform(arguments.state, arguments.model))
        key = platform.key()
        direct = stack.enter_context(processes.direct_batch(directory, arguments.state / "blas"))
        server = stack.enter_context(processes.mlx_server(directory, arguments.state / "blas"))
        prompts = [_token_ids(directory, prompt) for prompt in PROMPTS]
        arms: dict[str, Run] = {
            "mlx-lm directly": lambda n: direct.run(prompts[:n], arguments.max_tokens),
            "Signalbox": lambda n: _streams(platform.port, arguments.model, n, arguments.max_tokens, key),
            "mlx_lm.server": lambda n: _streams(server, str(directory), n, arguments.max_tokens),
        }
        if arguments.stock:
            stock = stack.enter_context(processes.mlx_server(directory, None))
            arms["mlx_lm.server as installed"] = lambda n: _streams(
                stock, str(directory), n, arguments.max_tokens
            )
        print(
            f"BLAS: {direct.blas}; {os.cpu_count()} cores; {arguments.repeats} repeats; "
            f"{arguments.max_tokens} tokens an answer\n"
        )
        print("| streams | arm | tokens/s (median, range) | of mlx-lm directly (median, range) |")
        print("| --- | --- | --- | --- |")
        for streams in arguments.streams:
            _table(streams, arms, arguments.repeats)


def _table(streams: int, arms: dict[str, Run], repeats: int) -> None:
    for run in arms.values():
        run(streams)
    rates: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(repeats):
        for name, run in arms.items():
            rates[name].append(_decode_rate(run(streams)))
    direct = rates["mlx-lm directly"]
    for name, measured in rates.items():
        ratios = [own / peer for own, peer in zip(measured, direct, strict=True)]
        print(f"| {streams} | {name} | {spread(measured, 1)} | {spread(ratios, 3)} |", flush=True)


def _decode_rate(arrivals: Sequence[Sequence[float]]) -> float:
    """Tokens a second while all streams ran."""
    start, end = max(times[0] for times in arrivals), min(times[-1] for times in arrivals)
    within = sum(start < at <= end for times in arrivals for at in times)
    if within < 0.5 * sum(len(times) for times in arrivals):
        sys.exit("refused: the streams ran beside each other for less than half of their tokens")
    return within / (end - start)


def _streams(port: int, model: str, n: int, max_tokens: int, key: str = "none") -> list[tuple[float, ...]]:
    async def all_of_them() -> list[StreamTiming]:
        return await asyncio.gather(
            *(stream_chat(port, model, chat(prompt), max_tokens, key) for prompt in PROMPTS[:n])
        )

    return [timing.arrivals for timing in asyncio.run(all_of_them())]


def _token_ids(directory: Path, prompt: str) -> list[int]:
    from inference.tokenization import template, tokenizer

    return template.render_chat(tokenizer.load(directory), chat(prompt))


if __name__ == "__main__":
    main()
