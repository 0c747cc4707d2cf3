"""Who gets the speculative slot's rounds when several long streams want them, with and without rotation.

    python -m benchmarks.speculation_turns

Two, then three clients ask at once for long greedy answers with the slot forced on. Each event of a stream is one of
its rounds, or a token of the batch, so events over time are counted where they matter: at the client. Jain's index of
them (1: equal, 1/n: one has them all) says how fair the slot was, times to the first token what waiting for it cost.
With ``grant_rounds`` 0 the first keeps the slot to its end and the others decode in the batch: what was drafted for
each, by its own usage, shows who had the drafter.

Then one stream speculates beside four of a lane whose entitlement forbids it, and their inter-token latency is read
beside what the worker's own ticks took, publishing included: a row waits for one slice at most between two decode
ticks, so its mean stays within both together.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import sys
from collections.abc import Sequence

from benchmarks import counters, processes
from benchmarks.arguments import parser as arguments_parser
from benchmarks.openai_stream import OpenStream
from benchmarks.prompts import PROMPTS, chat
from benchmarks.trust import percentile, refuse_when_busy, spread

#: Parts of the contended time for which rounds are told one by one.
_PARTS = 4


def main() -> None:
    parser = arguments_parser(__doc__)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--grant-rounds", type=int, nargs="+", default=[4, 0], help="0: no rotation")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    refuse_when_busy()
    with processes.platform(arguments.state, arguments.model) as platform:
        key = platform.key()
        _turns(platform, key, arguments)
        _beside(platform, key, arguments)


def _turns(platform: processes.Platform, key: str, arguments: argparse.Namespace) -> None:
    print(
        "| streams | rounds a grant | events of each, by quarter of the time | Jain's index of events | "
        "drafted for each | Jain's index of drafted | TTFT of each, s |"
    )
    print(f"|{' --- |' * 7}")
    for clients in (2, 3):
        runs: dict[int, list[list[OpenStream]]] = {grant: [] for grant in arguments.grant_rounds}
        for _ in range(arguments.repeats):
            for grant in arguments.grant_rounds:
                counters.speculates(platform, arguments.model, "on", grant_rounds=grant)
                before = counters.read(platform)
                streams = asyncio.run(_streams(platform.port, arguments, key, [None] * clients))
                ran = counters.read(platform).since(before)
                if not ran.speculative_rounds or (ran.rotations > 0) != (grant > 0):
                    sys.exit(
                        f"refused: {ran.speculative_rounds:.0f} rounds and {ran.rotations:.0f} rotations were counted "
                        f"at {grant} rounds a grant"
                    )
                runs[grant].append(streams)
        for grant, measured in runs.items():
            shares = [_rounds(streams) for streams in measured]
            jain = [_jain([sum(parts) for parts in share]) for share in shares]
            drafted = [
                [stream.accepted_tokens + stream.rejected_tokens for stream in run] for run in measured
            ]
            first = [
                statistics.median(run[i].arrivals[0] - run[i].sent for run in measured)
                for i in range(clients)
            ]
            print(
                f"| {clients} | {grant or 'no rotation'} | {'; '.join('/'.join(map(str, p)) for p in shares[0])} | "
                f"{spread(jain, 3)} | {'/'.join(map(str, drafted[0]))} | {spread([_jain(d) for d in drafted], 3)} | "
                f"{', '.join(f'{at:.1f}' for at in first)} |",
                flush=True,
            )


def _beside(platform: processes.Platform, key: str, arguments: argparse.Namespace) -> None:
    platform.forbid_speculation("low")
    print("\n| four streams, beside | ITL mean ms | p95 | decode tick, ms | slice, ms | both, ms |")
    print("| --- | --- | --- | --- | --- | --- |")
    for mode in ("off", "on"):
        counters.speculates(platform, arguments.model, mode, grant_rounds=8)
        gaps: list[float] = []
        decode: list[float] = []
        rounds: list[float] = []
        for _ in range(arguments.repeats):
            before = counters.read(platform)
            streams = asyncio.run(_streams(platform.port, arguments, key, [None, *["flex"] * 4]))
            ran = counters.read(platform).since(before)
            if bool(ran.speculative_rounds) != (mode == "on"):
                sys.exit(f"refused: {ran.speculative_rounds:.0f} rounds were counted with speculation {mode}")
            end = min(stream.arrivals[-1] for stream in streams)
            start = max(stream.arrivals[0] for stream in streams)
            for stream in streams[1:]:
                within = [at for at in stream.arrivals if start <= at <= end]
                gaps += [1000 * (b - a) for a, b in itertools.pairwise(within)]
            slices = ran.speculative_ticks
            publish = ran.publish_seconds / (ran.decode_ticks + slices)
            decode.append(1000 * (ran.decode_seconds / ran.decode_ticks + publish))
            rounds.append(1000 * (ran.speculative_seconds / slices + publish) if slices else 0.0)
        tick, slice_ms = statistics.median(decode), statistics.median(rounds)
        print(
            f"| {'one that speculates' if mode == 'on' else 'one that does not'} | {statistics.mean(gaps):.0f} | "
            f"{percentile(gaps, 0.95):.0f} | {tick:.0f} | {slice_ms:.0f} | {tick + slice_ms:.0f} |"
        )


async def _streams(
    port: int, arguments: argparse.Namespace, key: str, tiers: Sequence[str | None]
) -> list[OpenStream]:
    streams = [
        await OpenStream.start(port, arguments.model, chat(prompt), arguments.max_tokens, key, tier=tier)
        for prompt, tier in zip(PROMPTS, tiers, strict=False)
    ]
    await asyncio.gather(*(stream.read() for stream in streams))
    return streams


def _rounds(streams: Sequence[OpenStream]) -> list[list[int]]:
    """Events of each stream while none had ended, in ``_PARTS`` equal parts of that time from the first request on."""
    start, end = min(stream.sent for stream in streams), min(stream.arrivals[-1] for stream in streams)
    width = (end - start) / _PARTS
    return [
        [
            sum(start + part * width < at <= start + (part + 1) * width for at in stream.arrivals)
            for part in range(_PARTS)
        ]
        for stream in streams
    ]


def _jain(shares: Sequence[int]) -> float:
    """(Σx)² / (n·Σx²): R. Jain, D. Chiu and W. Hawe, 1984."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 0.0


if __name__ == "__main__":
    main()
