"""How long to wait before trying again."""

from __future__ import annotations


class Backoff:
    """Doubling delays, in seconds, from ``first`` up to ``longest``."""

    def __init__(self, first: float, longest: float) -> None:
        self._first = first
        self._longest = longest
        self._next = first

    def delay(self) -> float:
        """The delay before the next attempt."""
        delay = self._next
        self._next = min(self._longest, delay * 2)
        return delay

    def reset(self) -> None:
        """The last attempt succeeded."""
        self._next = self._first
