"""Four streams, then one prompt of 2,500 tokens: the longest gap of a stream against the prompt's time to first token.

    python -m benchmarks.admission_frontier [--plot docs/pictures/admission-frontier.svg]

Every chunk with every interval through the API, and beside them, in the same run, ``mlx_lm.server`` on the same BLAS
and attention, at its default prefill step and at 512. The arms alternate; a row is the median of the repeats with
their range.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks import counters, processes
from benchmarks.admission import Admission, admission
from benchmarks.arguments import parser as arguments_parser
from benchmarks.plot import scatter
from benchmarks.trust import refuse_when_busy, spread

_PEERS = {"mlx_lm.server, its default": None, "mlx_lm.server, step 512": 512}


def main() -> None:
    parser = arguments_parser(__doc__)
    parser.add_argument("--chunks", type=int, nargs="+", default=[64, 128, 256])
    parser.add_argument("--intervals", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--prompt-tokens", type=int, nargs="+", default=[2500], help="several: all at once")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    refuse_when_busy()
    directory = arguments.state / "models" / arguments.model
    with contextlib.ExitStack() as stack:
        platform = stack.enter_context(processes.platform(arguments.state, arguments.model))
        key = platform.key()

        def ours(chunk: int, interval: int) -> Admission:
            counters.scheduled(platform, arguments.model, chunk=chunk, interval=interval)
            return _run(platform.port, arguments.model, key)

        def _run(port: int, model: str, key: str) -> Admission:
            return asyncio.run(
                admission(port, model, key, prompt_tokens=arguments.prompt_tokens, longest_s=240)
            )

        arms: dict[str, Callable[[], Admission]] = {}
        for name, step in _PEERS.items():
            port = stack.enter_context(
                processes.mlx_server(directory, arguments.state / "blas", prefill_step=step)
            )
            arms[name] = partial(_run, port, str(directory), "none")
        for chunk in arguments.chunks:
            for interval in arguments.intervals:
                arms[f"chunk {chunk}, interval {interval}"] = partial(ours, chunk, interval)
        runs: dict[str, list[Admission]] = {arm: [] for arm in arms}
        for _ in range(arguments.repeats):
            for arm, run in arms.items():
                runs[arm].append(run())
                seen = runs[arm][-1]
                print(
                    f"{arm}: longest gap {seen.longest_gap_s:.2f} s, first token {max(seen.first_token_s):.1f} s",
                    file=sys.stderr,
                    flush=True,
                )
    ttft = "TTFT of the prompt, s" if len(arguments.prompt_tokens) == 1 else "TTFT of each prompt, s"
    print(f"| arm | longest gap, s | {ttft} | ITL quiet → admitting, mean ms |")
    print("| --- | --- | --- | --- |")
    for arm, measured in runs.items():
        quiet = statistics.median(1000 * statistics.mean(run.quiet_gaps) for run in measured)
        during = statistics.median(1000 * statistics.mean(run.admission_gaps) for run in measured)
        print(
            f"| {arm} | {spread([run.longest_gap_s for run in measured], 2)} | "
            f"{_first_tokens(measured)} | {quiet:.0f} → {during:.0f} |"
        )
    if arguments.plot:
        points = {
            arm: (
                statistics.median(run.longest_gap_s for run in measured),
                statistics.median(max(run.first_token_s) for run in measured),
            )
            for arm, measured in runs.items()
        }
        arguments.plot.write_text(
            scatter(points, across="longest gap of a stream, s", up="time to first token of the prompt, s")
        )


def _first_tokens(runs: list[Admission]) -> str:
    """The times to first token of the prompts, in the order in which they were sent; the range is the last one's."""
    *earlier, last = zip(*(run.first_token_s for run in runs), strict=True)
    return ", ".join((*(f"{statistics.median(one):.1f}" for one in earlier), spread(last, 1)))


if __name__ == "__main__":
    main()
