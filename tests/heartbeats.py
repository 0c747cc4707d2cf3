"""A worker's heartbeat, for tests of who hears it."""

from __future__ import annotations

from typing import Any

import pytest

from inference.dispatch import heartbeats
from inference.messages import Heartbeat, SchedulerSnapshot


@pytest.fixture(autouse=True)
def heartbeats_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that a test makes up beats once: however slow the machine is, it lives until the page is asked for.

    For all tests of a directory whose ``conftest.py`` imports it.
    """
    monkeypatch.setattr(heartbeats, "HEARTBEAT_TTL_S", 600.0)


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
