"""Numbers that a worker counts, under the names and rules of Prometheus, without a prefix.

They leave the worker in its heartbeat as ``name{label="value"} -> number``; whoever shows them adds the prefix, the
model and the worker.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Sequence


class Counter:
    """A number that only grows (or, set, a gauge). For any thread."""

    __slots__ = ("_lock", "value")

    def __init__(self) -> None:
        self.value = 0.0
        self._lock = threading.Lock()

    def add(self, amount: float = 1.0) -> None:
        with self._lock:
            self.value += amount

    def set(self, value: float) -> None:
        self.value = value


class Histogram:
    """How many observations were at most so large. For one observing thread."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def series(self, name: str, labels: dict[str, str]) -> dict[str, float]:
        """Its cumulative buckets, sum and count."""
        series: dict[str, float] = {}
        total = 0
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            series[_series_name(f"{name}_bucket", {**labels, "le": bound})] = total
        series[_series_name(f"{name}_sum", labels)] = self._sum
        series[_series_name(f"{name}_count", labels)] = total
        return series


class Counters:
    """All of one worker's numbers. A series begins when it is first asked for."""

    def __init__(self) -> None:
        self._counters: dict[tuple[str, tuple[tuple[str, str], ...]], Counter] = {}
        self._histograms: dict[tuple[str, tuple[tuple[str, str], ...]], Histogram] = {}

    def counter(self, name: str, /, **labels: str) -> Counter:
        return self._counters.setdefault((name, tuple(labels.items())), Counter())

    def histogram(self, name: str, bounds: Sequence[float], /, **labels: str) -> Histogram:
        key = (name, tuple(labels.items()))
        found = self._histograms.get(key)
        return found if found is not None else self._histograms.setdefault(key, Histogram(bounds))

    def snapshot(self) -> dict[str, float]:
        """Every series now."""
        series = {
            _series_name(name, dict(labels)): counter.value
            for (name, labels), counter in list(self._counters.items())
        }
        for (name, labels), histogram in list(self._histograms.items()):
            series |= histogram.series(name, dict(labels))
        return series


def _series_name(name: str, labels: dict[str, str]) -> str:
    if not labels:
        return name
    inside = ",".join(f'{label}="{_escaped(value)}"' for label, value in labels.items())
    return f"{name}{{{inside}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
