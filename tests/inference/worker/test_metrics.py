"""Every series that a worker may tell is explained to whoever operates it."""

from __future__ import annotations

import re

from inference.messages import CancelReason, EndState
from inference.scheduling.speculation import DeclineReason
from inference.worker.metrics import ClaimKind, Fault, Stage, WorkerMetrics
from signalbox.configuration import ROOT


def test_every_series_is_in_the_operators_table() -> None:
    metrics = WorkerMetrics()
    metrics.lane("normal")
    metrics.claims(ClaimKind.FRESH, "normal")
    metrics.faults(Fault.BACKEND)
    metrics.cancellations(Stage.CLAIMED, CancelReason.DETACHED)
    metrics.generations(EndState.COMPLETED, "normal")
    metrics.deferrals(0)
    metrics.preemptions("low")
    metrics.slot("normal")
    metrics.declines(DeclineReason.DOES_NOT_PAY)
    told = {
        re.sub(r"_(bucket|sum|count)$", "", name.partition("{")[0]) for name in metrics.counters.snapshot()
    }
    explained = set(re.findall(r"`(\w+)(?:\{[^`]*)?`", (ROOT / "docs" / "operations.md").read_text()))
    assert told - explained == set()
