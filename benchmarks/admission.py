"""The admission scenario: streams run, then a long prompt comes. What do they see of each other?

Four clients stream long answers. Once each has had a few tokens, a quiet while is watched; then one client sends a
long prompt, and what the streams see until its first token arrives is the admission window.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.counters import BEAT_S, Counters
from benchmarks.openai_stream import OpenStream
from benchmarks.prompts import PROMPTS, chat, long_prompt

#: Tokens that every stream has had before the quiet window begins: batches are formed by then.
_SETTLED_TOKENS = 6
#: No prompt is sent twice in a run: a server that keeps prefixes would not run it again.
_seeds = itertools.count()
#: Gaps of one stream in a window below which nothing can be said.
FEWEST_GAPS = 4


@dataclass(frozen=True)
class Admission:
    """What one run of the scenario saw. Gaps are inter-token latencies of the streams, in seconds."""

    quiet_gaps: tuple[float, ...]
    admission_gaps: tuple[float, ...]
    #: Time to first token of the long prompts, in the order in which they were sent, and how long each one's was.
    first_token_s: tuple[float, ...]
    #: Tokens that the streams produced during the admission window, and its length.
    admission_tokens: int
    admission_s: float
    #: Whether the prompts had their first tokens; else the window was closed before, and times are at least so long.
    finished: bool
    #: What the worker counted from the sending on, until all prompts had their first tokens; None: nobody asked it.
    counted: Counters | None
    #: Fewest gaps of a stream in the admission window.
    fewest_gaps: int

    @property
    def longest_gap_s(self) -> float:
        return max(self.admission_gaps)


async def admission(
    port: int,
    model: str,
    api_key: str,
    *,
    prompt_tokens: Sequence[int],
    streams: int = 4,
    quiet_s: float = 8.0,
    longest_s: float = 120.0,
    settled: Callable[[], None] | None = None,
    count: Callable[[], Counters] | None = None,
) -> Admission:
    """Run the scenario: one long prompt for each of ``prompt_tokens``, all sent at once.

    ``settled`` is called once all streams run: a policy that starves prompts, set before, would starve theirs. A
    prompt that starves is given up after ``longest_s``. ``count`` reads the worker's counters. Raises ``RuntimeError``
    when a stream ends too early, or the quiet window holds fewer than ``FEWEST_GAPS`` gaps a stream: then the run says
    nothing.
    """
    running = [
        await OpenStream.start(port, model, chat(prompt), 4000, api_key) for prompt in PROMPTS[:streams]
    ]
    asked: list[OpenStream] = []
    try:
        readers = [asyncio.create_task(stream.read()) for stream in running]
        await _until(lambda: all(len(stream.arrivals) >= _SETTLED_TOKENS for stream in running), readers)
        if settled is not None:
            await asyncio.to_thread(settled)
        quiet_from = time.perf_counter()
        await asyncio.sleep(quiet_s)
        before = await asyncio.to_thread(count) if count else None
        sent = time.perf_counter()
        asked = [
            await OpenStream.start(port, model, chat(long_prompt(tokens, seed)), 1, api_key)
            for seed, tokens in zip(_seeds, prompt_tokens, strict=False)
        ]
        answers = [asyncio.create_task(stream.read()) for stream in asked]
        _, starved = await asyncio.wait(answers, timeout=longest_s)
        # A gap that was open when the last first token came belongs to the window too.
        had = [len(stream.arrivals) for stream in running]
        await _until(lambda: all(len(s.arrivals) > n for s, n in zip(running, had, strict=True)), readers)
        first = [stream.arrivals[0] if stream.arrivals else time.perf_counter() for stream in asked]
        counted = None
        if count and before:
            await asyncio.sleep(BEAT_S)
            counted = (await asyncio.to_thread(count)).since(before)
    finally:
        for stream in (*running, *asked):
            stream.close()
    await asyncio.gather(*readers, *answers, return_exceptions=True)
    quiet = [_gaps(stream.arrivals, quiet_from, sent) for stream in running]
    during = [_gaps(stream.arrivals, sent, max(first)) for stream in running]
    if min(len(gaps) for gaps in quiet) < FEWEST_GAPS:
        raise RuntimeError(f"the quiet window of {quiet_s} s holds too few tokens: {[len(g) for g in quiet]}")
    return Admission(
        tuple(gap for gaps in quiet for gap in gaps),
        tuple(gap for gaps in during for gap in gaps),
        tuple(at - stream.sent for at, stream in zip(first, asked, strict=True)),
        sum(sent < at <= max(first) for stream in running for at in stream.arrivals),
        max(first) - sent,
        finished=not starved,
        counted=counted,
        fewest_gaps=min(len(gaps) for gaps in during),
    )


def _gaps(arrivals: Sequence[float], start: float, end: float) -> list[float]:
    """The gaps that overlap the window."""
    return [b - a for a, b in itertools.pairwise(arrivals) if b > start and a < end]


async def _until(met: Callable[[], bool], readers: Sequence[asyncio.Task[None]]) -> None:
    while not met():
        for reader in readers:
            if reader.done():
                reader.result()
                raise RuntimeError("a stream ended before the scenario did: its answer was too short")
        await asyncio.sleep(0.01)
