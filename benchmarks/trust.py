"""When a run may be believed, and how its figures are written."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any

import psutil

#: How long others are watched, in seconds: long enough that one short task of theirs is not taken for work.
_WATCH_S = 2.0
#: Share of all processors' time above which somebody else uses the machine.
_BUSY_SHARE = 0.1


def refuse_when_busy(cpu_times_percent: Callable[[float], Any] = psutil.cpu_times_percent) -> None:
    """End the script when others use the machine before anything was measured.

    What counts is processor time in the seconds that follow, of all but this script, which waits meanwhile. A load
    average still tells of work that has ended a minute ago, and counts what waits for a disk. Niced work yields to a
    benchmark, so it does not count; what a hypervisor took for its other guests does.
    """
    times = cpu_times_percent(_WATCH_S)
    yielding = times.idle + times.nice + getattr(times, "iowait", 0.0) + getattr(times, "guest_nice", 0.0)
    busy = max(0.0, 1.0 - yielding / 100.0)
    if busy > _BUSY_SHARE:
        sys.exit(
            f"refused: others use {busy:.0%} of the processors; a benchmark beside other work says nothing. "
            f"At most {_BUSY_SHARE:.0%} may be in use."
        )


def spread(values: Sequence[float], digits: int) -> str:
    """Median and range."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of all do not exceed."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))]
