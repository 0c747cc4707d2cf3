"""How long a waiting generation may still have to wait: its place, over how fast its model's queue has moved lately."""

from __future__ import annotations

import threading
from collections import deque
from typing import Final

#: Readings older than this tell nothing of the present, in seconds.
WINDOW_S: Final = 60.0
#: Readings nearer to each other than this are one.
_RESOLUTION_S: Final = 0.5


class ClaimRates:
    """Claims per second of each model's queue, from readings of its ever-growing counter. Thread-safe.

    Time is an argument, in seconds on any clock that does not go back.
    """

    def __init__(self) -> None:
        self._readings: dict[str, deque[tuple[float, int]]] = {}
        self._lock = threading.Lock()

    def observe(self, model: str, claims: int, now: float) -> None:
        """Note that the counter of ``model`` stands at ``claims``."""
        with self._lock:
            readings = self._readings.setdefault(model, deque())
            if readings and claims < readings[-1][1]:
                readings.clear()  # the store was emptied: counting began anew
            if not readings or now - readings[-1][0] >= _RESOLUTION_S:
                readings.append((now, claims))
            while readings[0][0] < now - WINDOW_S:
                readings.popleft()

    def wait_s(self, model: str, position: int, now: float) -> float | None:
        """Seconds until the generation in place ``position`` (1: next) is claimed; None while nothing is known."""
        with self._lock:
            readings = self._readings.get(model)
            if not readings:
                return None
            first_at, first = readings[0]
            claimed = readings[-1][1] - first
            return position * (now - first_at) / claimed if claimed and now > first_at else None
