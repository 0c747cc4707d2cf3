"""When a run may be believed, and how its figures are written."""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Sequence

#: Load average a core above which somebody else uses the machine.
_BUSY_LOAD_PER_CORE = 0.6


def refuse_when_busy() -> None:
    """End the script when the machine is busy before anything was measured."""
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    if load > _BUSY_LOAD_PER_CORE:
        sys.exit(
            f"refused: the machine is busy (load {load:.2f} a core); a benchmark beside other work says nothing"
        )


def spread(values: Sequence[float], digits: int) -> str:
    """Median and range."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of all do not exceed."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))]
