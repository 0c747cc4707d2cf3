"""Does a long prompt advance while streams run? Four long streams, then one prompt of 14 chunks or more.

    python -m benchmarks.starvation_probe

Through the API, twice: with the model's settings as they are, and with ``prefill_interval`` 0, the policy that starves
prompts. The worker's counters are sampled while the prompt waits: with grants on, chunks advance while decode
ticks advance, and the first token comes long before the streams are over; with grants off no chunk runs until they
are. The script fails when either does not show.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from benchmarks import counters, processes
from benchmarks.arguments import parser as arguments_parser
from benchmarks.counters import Counters
from benchmarks.openai_stream import OpenStream
from benchmarks.prompts import PROMPTS, chat, long_prompt
from benchmarks.trust import refuse_when_busy

_STREAMS = 4
_SAMPLE_S = 1.0


@dataclass(frozen=True)
class Probe:
    """One arm: the counters at every sample, and when the prompt had its first token and the last stream ended."""

    samples: list[Counters]
    first_token_s: float
    drained_s: float

    @property
    def chunks_while_decoding(self) -> int:
        """Prefill ticks that ran before the last stream had ended."""
        return int(max(one.prefill_ticks for one in self.samples if one.at < self.drained_s))


def main() -> None:
    parser = arguments_parser(__doc__)
    parser.add_argument("--chunk", type=int, default=64, help="prefill_chunk_tokens of both arms")
    parser.add_argument("--interval", type=int, default=4, help="prefill_interval of the fair arm")
    parser.add_argument("--stream-tokens", type=int, default=300)
    arguments = parser.parse_args()
    refuse_when_busy()
    with processes.platform(arguments.state, arguments.model) as platform:
        key = platform.key()
        for interval in (arguments.interval, 0):
            counters.scheduled(platform, arguments.model, chunk=arguments.chunk, interval=arguments.interval)
            policy = partial(
                counters.scheduled, platform, arguments.model, chunk=arguments.chunk, interval=interval
            )
            probe = asyncio.run(_probe(platform, key, arguments, policy))
            _print(f"interval {interval}, chunk {arguments.chunk}", probe)
            starved = probe.first_token_s > probe.drained_s
            if starved == bool(interval):
                sys.exit(
                    f"refused: with interval {interval} the prompt was {'' if starved else 'not '}starved, so this "
                    "run does not show what the policy does"
                )


async def _probe(
    platform: processes.Platform, key: str, arguments: argparse.Namespace, policy: Callable[[], None]
) -> Probe:
    """``policy`` is set once all streams run: one that starves prompts would starve theirs."""
    model = arguments.model
    streams = [
        await OpenStream.start(platform.port, model, chat(prompt), arguments.stream_tokens, key)
        for prompt in PROMPTS[:_STREAMS]
    ]
    readers = [asyncio.create_task(stream.read()) for stream in streams]
    while not all(len(stream.arrivals) > 2 for stream in streams):
        await asyncio.sleep(0.05)
    await asyncio.to_thread(policy)
    before = await asyncio.to_thread(counters.read, platform)
    asked = await OpenStream.start(platform.port, model, chat(long_prompt(arguments.chunk * 14)), 1, key)
    reader = asyncio.create_task(asked.read())
    samples: list[Counters] = []
    while not (reader.done() and all(one.done() for one in readers)):
        await asyncio.sleep(_SAMPLE_S)
        now = (await asyncio.to_thread(counters.read, platform)).since(before)
        samples.append(now)
    await asyncio.gather(reader, *readers)
    return Probe(samples, asked.arrivals[0] - before.at, max(one.arrivals[-1] for one in streams) - before.at)


def _print(name: str, probe: Probe) -> None:
    print(f"\n### {name}\n")
    print("| s | decode ticks | prompt chunks | open debt |")
    print("| --- | --- | --- | --- |")
    shown = probe.samples[:: max(1, len(probe.samples) // 12)]
    for sample in shown:
        print(
            f"| {sample.at:.0f} | {sample.decode_ticks:.0f} | {sample.prefill_ticks:.0f} | {sample.debt:.0f} |"
        )
    print(
        f"\nFirst token of the prompt after {probe.first_token_s:.1f} s; the last stream ended after "
        f"{probe.drained_s:.1f} s; {probe.chunks_while_decoding} chunks ran before that.",
        flush=True,
    )


if __name__ == "__main__":
    main()
