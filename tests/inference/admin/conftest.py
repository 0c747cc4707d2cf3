from __future__ import annotations

from tests.heartbeats import heartbeats_last

__all__ = ["heartbeats_last"]
