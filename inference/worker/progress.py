"""Whether the tick thread gets on."""

from __future__ import annotations

import time


class Progress:
    """When a tick, or the decision that nothing is to be done, last finished.

    Written by the tick thread, read by the others.
    """

    def __init__(self) -> None:
        self.mark()

    def mark(self) -> None:
        self._monotonic = time.monotonic()
        self.at = time.time()

    @property
    def age_s(self) -> float:
        """Seconds since then, by a clock that nobody sets."""
        return time.monotonic() - self._monotonic
