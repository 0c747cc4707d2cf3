"""A worker's heartbeat, for tests of who hears it."""

from __future__ import annotations

from typing import Any

from inference.messages import Heartbeat, SchedulerSnapshot


def make_heartbeat(at: float, **changes: Any) -> Heartbeat:
    """What a worker that does nothing tells at ``at`` (Unix seconds): it has just ticked, and serves."""
    fields: dict[str, Any] = {
        "worker": "w",
        "model": "m",
        "hostname": "host",
        "pid": 1,
        "started_at": at - 60,
        "sent_at": at,
        "progressed_at": at,
        "ready": True,
        "draining": False,
        "blas": "OpenBLAS",
        "device": "cpu",
        "decoding": 0,
        "prefilling": 0,
        "slots": 8,
        "counters": {},
    }
    return Heartbeat(**{**fields, **changes})


def make_snapshot(at: float, **changes: Any) -> SchedulerSnapshot:
    """What the scheduler of a worker without work has before it."""
    fields: dict[str, Any] = {
        "at": at,
        "decoding": 0,
        "prefills": 0,
        "rows": [],
        "parked": [],
        "debt": 0,
        "chunk": 64,
        "interval": 4,
    }
    return SchedulerSnapshot(**{**fields, **changes})
