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
from collections.abc import Sequence

from benchmarks import counters, processes
from benchmarks.admission import FEWEST_GAPS, Admission, admission
from benchmarks.admission_policies import Policy
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
    arms = [Policy(arguments.chunk, interval) for interval in arguments.intervals]
    arms.append(Policy(arguments.chunk, target=arguments.target))
    runs: dict[str, list[Admission]] = {arm.name: [] for arm in arms}
    with processes.platform(arguments.state, arguments.model) as platform:
        key = platform.key()
        for repeat in range(arguments.repeats + 1):
            for arm in arms if repeat else arms[1:2]:  # the first is a warm-up
                run = _run(platform, key, arm, arguments)
                print(f"{arm.name}: first token {run.first_token_s[0]:.1f} s", file=sys.stderr, flush=True)
                if repeat:
                    runs[arm.name].append(run)
    print(f"chunk {arguments.chunk}, prompt {arguments.prompt_tokens} tokens, {arguments.repeats} repeats\n")
    print(
        "| interval | ITL quiet, ms: mean | p50 | p95 | admitting: mean | p50 | p95 | longest gap, s | TTFT, s |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, measured in runs.items():
        print(f"| {name} | {_cells(measured)} |")


def _cells(runs: list[Admission]) -> str:
    return " | ".join(
        (
            *_distribution([run.quiet_gaps for run in runs]),
            *_distribution([run.admission_gaps for run in runs]),
            spread([run.longest_gap_s for run in runs], 2),
            ("" if all(run.finished for run in runs) else "> ")
            + spread([run.first_token_s[0] for run in runs], 1),
        )
    )


def _distribution(runs: list[Sequence[float]]) -> tuple[str, str, str]:
    """Mean, p50 and p95 of gaps in seconds, each over the runs, in milliseconds."""
    gaps = [[gap * 1000 for gap in run] for run in runs]
    return (
        spread([statistics.mean(run) for run in gaps], 0),
        spread([percentile(run, 0.5) for run in gaps], 0),
        spread([percentile(run, 0.95) for run in gaps], 0),
    )


def _run(platform: processes.Platform, key: str, arm: Policy, arguments: argparse.Namespace) -> Admission:
    def follow(interval: int) -> None:
        counters.scheduled(platform, arguments.model, chunk=arm.chunk, interval=interval)

    if arm.target is not None:
        counters.follows_target(platform, arguments.model, chunk=arm.chunk, target=arm.target)
    else:
        follow(arm.interval or _FAIR)
    run = asyncio.run(
        admission(
            platform.port,
            arguments.model,
            key,
            prompt_tokens=[arguments.prompt_tokens],
            longest_s=arguments.longest_s,
            settled=(lambda: follow(0)) if arm.interval == 0 else None,
            count=lambda: counters.read(platform),
        )
    )
    assert run.counted is not None
    contradiction = arm.contradiction(run.counted, arguments.prompt_tokens)
    if contradiction is not None:
        sys.exit(f"refused: {contradiction}")
    if run.fewest_gaps < FEWEST_GAPS:
        sys.exit(f"refused: a stream has {run.fewest_gaps} tokens in the admission window of {arm.name}")
    return run


if __name__ == "__main__":
    main()
