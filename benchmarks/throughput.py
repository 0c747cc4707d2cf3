"""Throughput of prompt-heavy and decode-heavy work beside ``mlx_lm.server``, by clients.

    python -m benchmarks.throughput

Both are on the same BLAS and attention. Each client sends one request and reads it to its end; what counts is the
tokens of all requests, prompt and answer, over the time until the last has ended. The two servers alternate, as does
which is first, and a row is the median of the paired ratios with their range. No answer may end by itself, on either; a
run in which one did all the same ends. Each server answers a short request first, which is not counted: what only
happens once is not what is asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import sys
import time
from pathlib import Path

from benchmarks import processes
from benchmarks.arguments import parser as arguments_parser
from benchmarks.openai_stream import stream_chat
from benchmarks.prompts import chat, long_prompt
from benchmarks.trust import refuse_when_busy, spread

#: Prompt and answer tokens of a request.
_WORK = {"prompt-heavy": (2000, 32), "decode-heavy": (100, 400)}
_WARM_UP = (100, 8)


def main() -> None:
    parser = arguments_parser(__doc__)
    parser.add_argument("--work", nargs="+", choices=_WORK, default=list(_WORK))
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="of all token counts, for slow machines")
    arguments = parser.parse_args()
    refuse_when_busy()
    directory = arguments.state / "models" / arguments.model
    no_end = _never(directory)
    seeds = itertools.count()
    with contextlib.ExitStack() as stack:
        platform = stack.enter_context(processes.platform(arguments.state, arguments.model))
        platform.schedule(arguments.model, slots=max(arguments.clients))
        server = stack.enter_context(processes.mlx_server(directory, arguments.state / "blas"))
        arms = {
            "Signalbox": (platform.port, arguments.model, platform.key()),
            "mlx_lm.server": (server, str(directory), "none"),
        }
        for server_asked in arms.values():
            _run(*server_asked, [chat(long_prompt(_WARM_UP[0], next(seeds)))], _WARM_UP, no_end)
        print("| work | clients | Signalbox, tokens/s | mlx_lm.server, tokens/s | ratio (median, range) |")
        print("| --- | --- | --- | --- | --- |")
        for work in arguments.work:
            size = tuple(max(1, round(count * arguments.scale)) for count in _WORK[work])
            for clients in arguments.clients:
                ours: list[float] = []
                theirs: list[float] = []
                for repeat in range(arguments.repeats):
                    prompts = [chat(long_prompt(size[0], next(seeds))) for _ in range(clients)]
                    seconds = {
                        name: _run(*arms[name], prompts, size, no_end)
                        for name in sorted(arms, reverse=repeat % 2 == 1)
                    }
                    tokens = clients * sum(size)
                    ours.append(tokens / seconds["Signalbox"])
                    theirs.append(tokens / seconds["mlx_lm.server"])
                ratios = [own / peer for own, peer in zip(ours, theirs, strict=True)]
                row = (work, str(clients), spread(ours, 1), spread(theirs, 1), spread(ratios, 3))
                print(f"| {' | '.join(row)} |", flush=True)


def _never(directory: Path) -> dict[str, float]:
    """The ``logit_bias`` with which the model in ``directory`` does not end an answer."""
    ends = json.loads((directory / "config.json").read_text())["eos_token_id"]
    return {str(token): -100.0 for token in (ends if isinstance(ends, list) else [ends])}


def _run(
    port: int,
    model: str,
    key: str,
    prompts: list[list[dict[str, str]]],
    size: tuple[int, ...],
    logit_bias: dict[str, float],
) -> float:
    """Seconds until the last of all requests had ended. Exits where an answer is not as long as it was asked to be."""
    max_tokens = size[1]

    async def all_of_them() -> list[int]:
        streams = [stream_chat(port, model, prompt, max_tokens, key, logit_bias) for prompt in prompts]
        return [timing.completion_tokens for timing in await asyncio.gather(*streams)]

    started = time.perf_counter()
    answered = asyncio.run(all_of_them())
    if set(answered) != {max_tokens}:
        sys.exit(
            f"refused: the servers did not do the same work: port {port} answered {answered} tokens, not {max_tokens}"
        )
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
