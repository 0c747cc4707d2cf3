"""What admitting a long prompt costs the streams, and what the streams cost the prompt, by interval.

    python -m benchmarks.admission_bench

The admission scenario (``benchmarks.admission``) through the API, with the intervals one after another in every repeat.
A row is the median of the repeats with their range. The table is refused when the worker's counters do not confirm
which policy ran, when a window held too few tokens, or when the machine was busy before the start.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys

from benchmarks import counters, processes
from benchmarks.admission import Admission, admission
from benchmarks.arguments import parser as arguments_parser
from benchmarks.trust import percentile, refuse_when_busy, spread

#: The interval under which the streams come to run that a starving policy is then set for.
_FAIR = 4


def main() -> None:
    parser = arguments_parser(__doc__)
    parser.add_argument("--chunk", type=int, default=64)
    parser.add_argument("--intervals", type=int, nargs="+", default=[0, 4, 8, 16, 32])
    parser.add_argument(
        "--target", type=float, default=2.0, help="itl_target of the arm that measures itself"
    )
    parser.add_argument("--prompt-tokens", type=int, default=900)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--longest-s", type=float, default=90.0, help="longest admission window")
    arguments = parser.parse_args()
    refuse_when_busy()
    arms = [*map(str, arguments.intervals), f"target {arguments.target}"]
    runs: dict[str, list[Admission]] = {arm: [] for arm in arms}
    with processes.platform(arguments.state, arguments.model) as platform:
        key = platform.key()
        for repeat in range(arguments.repeats + 1):
            for arm in arms if repeat else arms[1:2]:  # the first is a warm-up
                run = _run(platform, key, arm, arguments)
                print(f"{arm}: first token {run.first_token_s[0]:.1f} s", file=sys.stderr, flush=True)
                if repeat:
                    runs[arm].append(run)
    print(f"chunk {arguments.chunk}, prompt {arguments.prompt_tokens} tokens, {arguments.repeats} repeats\n")
    print("| interval | ITL quiet, mean ms | ITL admitting, mean ms | p50 | p95 | longest gap, s | TTFT, s |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for arm, measured in runs.items():
        print(f"| {arm} | {_cells(measured)} |")


def _cells(runs: list[Admission]) -> str:
    during = [[gap * 1000 for gap in run.admission_gaps] for run in runs]
    return " | ".join(
        (
            spread([1000 * statistics.mean(run.quiet_gaps) for run in runs], 0),
            spread([statistics.mean(gaps) for gaps in during], 0),
            spread([percentile(gaps, 0.5) for gaps in during], 0),
            spread([percentile(gaps, 0.95) for gaps in during], 0),
            spread([run.longest_gap_s for run in runs], 2),
            spread([run.first_token_s[0] for run in runs], 1),
        )
    )


def _run(platform: processes.Platform, key: str, arm: str, arguments: argparse.Namespace) -> Admission:
    def policy(interval: int) -> None:
        counters.scheduled(platform, arguments.model, chunk=arguments.chunk, interval=interval)

    interval = None if arm.startswith("target") else int(arm)
    if interval is None:
        platform.schedule(arguments.model, itl_target=arguments.target)
    else:
        policy(interval or _FAIR)
    before = counters.read(platform)
    run = asyncio.run(
        admission(
            platform.port,
            arguments.model,
            key,
            prompt_tokens=[arguments.prompt_tokens],
            longest_s=arguments.longest_s,
            settled=(lambda: policy(0)) if interval == 0 else None,
        )
    )
    ran = counters.read(platform).since(before)
    chunks = -(-arguments.prompt_tokens // arguments.chunk)
    # Ticks would not tell: with interval 0 the streams end first, and what runs alone runs in larger ones.
    if ran.prefill_tokens < 0.9 * arguments.prompt_tokens and run.finished:
        sys.exit(
            f"refused: the worker counted {ran.prefill_tokens:.0f} prompt tokens of {arguments.prompt_tokens}"
        )
    if interval and ran.decode_ticks < interval * (chunks - 1):
        sys.exit(
            f"refused: interval {interval} asks for {interval * (chunks - 1)} decode ticks, {ran.decode_ticks:.0f} ran"
        )
    return run


if __name__ == "__main__":
    main()
