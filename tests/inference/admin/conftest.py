from __future__ import annotations

import pytest

from inference.dispatch import heartbeats


@pytest.fixture(autouse=True)
def _heartbeats_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that a test makes up beats once: however slow the machine is, it lives until the page is asked for."""
    monkeypatch.setattr(heartbeats, "HEARTBEAT_TTL_S", 600.0)
