"""From which load on the batch is better than the speculative slot, beside what the rule says.

    python -m benchmarks.speculation_load

One stream that copies much (a text is to be repeated) beside streams of a lane that may not speculate. In turns the
slot is forced on, so that it speculates, and off, so that it is one more row of the batch. What counts is the tokens of
all streams from its first one to its last. The rule (``inference.scheduling.speculation.worth_speculating``) is given
what the same run measured: the gain alone, what a round costs and what a row adds. Where it says that the slot pays,
the ratio should be 1 or more. The slot's first rounds, before its draft length is found, are in all of it.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from dataclasses import dataclass

from benchmarks import counters, processes
from benchmarks.arguments import parser as arguments_parser
from benchmarks.openai_stream import OpenStream
from benchmarks.prompts import PROMPTS, TASKS, chat
from benchmarks.trust import refuse_when_busy, spread
from inference.scheduling.speculation import added_cost, worth_speculating

_PROMPT = TASKS["summarising"][1]
#: The lane of the streams beside it, and the service tier that asks for it.
_LANE, _TIER = "low", "flex"


@dataclass(frozen=True, kw_only=True)
class _Run:
    tokens_per_second: float
    #: From one event of the stream that copies to its next: a round, or a tick of the batch.
    step_ms: float


def main() -> None:
    parser = arguments_parser(__doc__)
    parser.add_argument("--beside", type=int, nargs="+", default=[1, 2, 4], help="streams of the batch")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    refuse_when_busy()
    loads = [0, *arguments.beside]
    runs: dict[tuple[int, str], list[_Run]] = {(load, mode): [] for load in loads for mode in ("on", "off")}
    with processes.platform(arguments.state, arguments.model) as platform:
        key = platform.key()
        platform.forbid_speculation(_LANE)
        for repeat in range(arguments.repeats + 1):
            modes = ("on", "off") if repeat % 2 else ("off", "on")
            for mode in modes:
                counters.speculates(platform, arguments.model, mode)
                for load in loads:
                    run = _run(platform, key, arguments, load, mode)
                    if repeat:  # the first is a warm-up
                        runs[load, mode].append(run)
    rows = {load + 1: statistics.median([run.step_ms for run in runs[load, "off"]]) for load in loads}
    row_cost = added_cost(rows, base=1)
    if row_cost is None:
        sys.exit(f"refused: no cost of a row follows from decode ticks of {rows} ms")
    gain = statistics.median(_ratios(runs, 0))
    round_cost = statistics.median([run.step_ms for run in runs[0, "on"]]) / rows[1]
    print(f"a round: {round_cost:.2f} steps of one row; one more row adds {row_cost:.3f}\n")
    print(
        "| streams beside | with the slot, tokens/s | in the batch, tokens/s | ratio (median, range) | the rule |"
    )
    print("| --- | --- | --- | --- | --- |")
    for load in loads:
        on, off = ([run.tokens_per_second for run in runs[load, mode]] for mode in ("on", "off"))
        pays = worth_speculating(gain, load, row_cost, round_cost=round_cost)
        told = "the slot" if pays else "the batch"
        print(f"| {load} | {spread(on, 1)} | {spread(off, 1)} | {spread(_ratios(runs, load), 3)} | {told} |")


def _run(
    platform: processes.Platform, key: str, arguments: argparse.Namespace, beside: int, mode: str
) -> _Run:
    time.sleep(counters.BEAT_S)
    before = counters.read(platform)
    run = asyncio.run(_streams(platform.port, arguments, key, beside))
    time.sleep(counters.BEAT_S)
    ran = counters.read(platform).since(before)
    if bool(ran.speculative_rounds) != (mode == "on"):
        sys.exit(f"refused: {ran.speculative_rounds:.0f} rounds were counted with speculation {mode}")
    return run


async def _streams(port: int, arguments: argparse.Namespace, key: str, beside: int) -> _Run:
    """All streams while the one that copies decodes."""

    async def start(prompt: str, tokens: int, tier: str | None = None) -> OpenStream:
        return await OpenStream.start(port, arguments.model, chat(prompt), tokens, key, tier=tier)

    # These are to outlast the one that copies.
    others = [await start(prompt, 4 * arguments.max_tokens, _TIER) for prompt in PROMPTS[:beside]]
    reading = [asyncio.create_task(other.read()) for other in others]
    while not all(other.arrivals for other in others):
        await asyncio.sleep(0.05)
    copying = await start(_PROMPT, arguments.max_tokens)
    await copying.read()
    begun, ended = copying.arrivals[0], copying.arrivals[-1]
    if any(task.done() for task in reading):
        sys.exit("refused: a stream of the batch ended first, so the load was not what the row says")
    for other in others:
        other.close()
    await asyncio.gather(*reading)
    tokens = sum(begun < at <= ended for other in others for at in other.arrivals)
    return _Run(
        tokens_per_second=(tokens + copying.completion_tokens - 1) / (ended - begun),
        step_ms=1000 * (ended - begun) / (len(copying.arrivals) - 1),
    )


def _ratios(runs: dict[tuple[int, str], list[_Run]], load: int) -> list[float]:
    return [
        on.tokens_per_second / off.tokens_per_second
        for on, off in zip(runs[load, "on"], runs[load, "off"], strict=True)
    ]


if __name__ == "__main__":
    main()
