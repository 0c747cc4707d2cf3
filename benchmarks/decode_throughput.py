"""Decode throughput through the API beside mlx-lm's own batch generation and ``mlx_lm.server``, in one run.

    python -m benchmarks.decode_throughput

For 1, 4 and 8 streams, each arm generates the same greedy answers to the same prompts; the arms alternate,
and a row is the median of the repeats with their range. The platform's cost is its ratio to calling mlx-lm
directly. A run in which the arms' token counts differ, or in which the machine was busy with something
else, is refused.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import processes
from benchmarks.openai_stream import StreamTiming, stream_chat
from benchmarks.prompts import PROMPTS, chat

#: Load average above which somebody else uses the machine.
_BUSY_LOAD_PER_CORE = 0.6

Run = Callable[[int], tuple[int, float]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--state", type=Path, default=processes.ROOT / ".signalbox", help="set up by `make up`"
    )
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--stock", action="store_true", help="also mlx_lm.server as installed (slow)")
    arguments = parser.parse_args()
    _refuse_when_busy()
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
        counts = {}
        for name, run in arms.items():
            tokens, seconds = run(streams)
            counts[name] = tokens
            rates[name].append(tokens / seconds)
        if max(counts.values()) - min(counts.values()) > 0.02 * max(counts.values()):
            sys.exit(f"refused: the arms did not produce the same work: {counts}")
    direct = rates["mlx-lm directly"]
    for name, measured in rates.items():
        ratios = [own / peer for own, peer in zip(measured, direct, strict=True)]
        print(f"| {streams} | {name} | {_spread(measured, 1)} | {_spread(ratios, 3)} |", flush=True)


def _spread(values: list[float], digits: int) -> str:
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def _streams(port: int, model: str, n: int, max_tokens: int, key: str = "none") -> tuple[int, float]:
    async def all_of_them() -> list[StreamTiming]:
        return await asyncio.gather(
            *(stream_chat(port, model, chat(prompt), max_tokens, key) for prompt in PROMPTS[:n])
        )

    started = time.perf_counter()
    timings = asyncio.run(all_of_them())
    return sum(timing.completion_tokens for timing in timings), time.perf_counter() - started


def _token_ids(directory: Path, prompt: str) -> list[int]:
    from inference.tokenization import template, tokenizer

    return template.render_chat(tokenizer.load(directory), chat(prompt))


def _refuse_when_busy() -> None:
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    if load > _BUSY_LOAD_PER_CORE:
        sys.exit(
            f"refused: the machine is busy (load {load:.2f} a core); a benchmark beside other work says nothing"
        )


if __name__ == "__main__":
    main()
