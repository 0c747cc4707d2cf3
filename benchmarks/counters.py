"""What the platform's workers counted, read as a Prometheus server would: the proof of which policy ran."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.processes import Platform

#: A worker tells its counters about once a second.
BEAT_S = 1.2
#: Longest wait for a worker to go by what was set.
_FOLLOWS_S = 30.0
#: A fixed interval that no target leads to: it tells whether the worker goes by it.
_UNLIKELY = 4096
#: What is as it is, and does not grow.
_GAUGES = frozenset({"debt", "speculation_gain", "speculation_on", "grant_rounds", "chunk", "interval"})


@dataclass(frozen=True)
class Counters:
    """The scheduler's counters at one moment. Ticks and chunks grow, the debt is what is open now."""

    at: float
    prefill_ticks: float
    decode_ticks: float
    prefill_chunks: float
    prefill_tokens: float
    debt: float
    decode_seconds: float
    prefill_seconds: float
    publish_seconds: float
    speculative_ticks: float
    speculative_seconds: float
    speculative_rounds: float
    rotations: float
    #: Tokens a second with speculation over those without, as measured; 0: not yet.
    speculation_gain: float
    #: Whether the slot admits anybody.
    speculation_on: float
    grant_rounds: float
    #: What the worker schedules by at the moment.
    chunk: float
    interval: float

    def since(self, earlier: Counters) -> Counters:
        """What was counted in between, and what holds now."""
        counted = {
            field.name: getattr(self, field.name) - getattr(earlier, field.name)
            for field in fields(self)
            if field.name not in _GAUGES
        }
        return replace(self, **counted)


def read(platform: Platform) -> Counters:
    """The newest counters of the platform's one worker; at most about a second old."""
    token = (platform.state_dir / "secrets" / "metrics_token").read_text().strip()
    request = urllib.request.Request(
        f"http://127.0.0.1:{platform.port}/metrics", headers={"Authorization": f"Bearer {token}"}
    )
    with urllib.request.urlopen(request, timeout=10) as response:  # noqa: S310 (http, as written above)
        families = list(text_string_to_metric_families(response.read().decode()))
    samples = [sample for family in families for sample in family.samples]

    def value(name: str, **labels: str) -> float:
        return sum(
            sample.value
            for sample in samples
            if sample.name == f"signalbox_worker_{name}" and labels.items() <= sample.labels.items()
        )

    return Counters(
        at=time.perf_counter(),
        prefill_ticks=value("ticks_total", action="prefill"),
        decode_ticks=value("ticks_total", action="decode"),
        prefill_chunks=value("prefill_chunks_total"),
        prefill_tokens=value("prefill_padded_tokens_total"),
        debt=value("prefill_debt_tokens"),
        decode_seconds=value("tick_seconds_total", action="decode"),
        prefill_seconds=value("tick_seconds_total", action="prefill"),
        publish_seconds=value("publish_seconds_total"),
        speculative_ticks=value("ticks_total", action="speculate"),
        speculative_seconds=value("tick_seconds_total", action="speculate"),
        speculative_rounds=value("speculative_rounds_total"),
        rotations=value("slot_rotations_total"),
        speculation_gain=value("speculation_gain_ratio"),
        speculation_on=value("speculation_on"),
        grant_rounds=value("slot_grant_rounds"),
        chunk=value("prefill_chunk_limit_tokens"),
        interval=value("prefill_interval_ticks"),
    )


def scheduled(platform: Platform, model: str, *, chunk: int, interval: int) -> None:
    """Have the worker schedule by this chunk and interval. Raises ``RuntimeError`` if it does not within 30 s."""
    platform.schedule(
        model,
        prefill_chunk_tokens=chunk,
        prefill_interval=interval,
        longest_stall_ms=None,
        itl_target=None,
        prefix_cache_mib=0,
    )
    _wait(
        platform,
        lambda now: (now.chunk, now.interval) == (chunk, interval),
        f"schedule by chunk {chunk}, interval {interval}",
    )


def follows_target(platform: Platform, model: str, *, chunk: int, target: float) -> None:
    """Have the worker choose the interval by a slow-down target. Raises ``RuntimeError`` if it does not within 30 s."""
    platform.schedule(
        model,
        prefill_chunk_tokens=chunk,
        prefill_interval=_UNLIKELY,
        longest_stall_ms=None,
        itl_target=target,
        prefix_cache_mib=0,
    )
    _wait(
        platform,
        lambda now: now.chunk == chunk and now.interval < _UNLIKELY,
        f"choose an interval by target {target}, chunk {chunk}",
    )


def speculates(platform: Platform, model: str, mode: str, grant_rounds: int = 8) -> None:
    """Have the worker speculate by ``mode``. Raises ``RuntimeError`` if it does not within 30 s."""
    platform.schedule(model, speculation=mode, grant_rounds=grant_rounds)
    _wait(
        platform,
        lambda now: (now.speculation_on > 0, now.grant_rounds) == (mode != "off", grant_rounds),
        f"speculate by {mode!r} with {grant_rounds} rounds a grant",
    )


def _wait(platform: Platform, follows: Callable[[Counters], bool], what: str) -> None:
    deadline = time.monotonic() + _FOLLOWS_S
    while not follows(now := read(platform)):
        if time.monotonic() > deadline:
            raise RuntimeError(f"the worker does not {what}: it tells {now}")
        time.sleep(BEAT_S / 4)
