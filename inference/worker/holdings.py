"""What this worker owns in dispatch, from the claim until it lets go."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass


@dataclass(slots=True)
class _Holding:
    epoch: int
    occupies_slot: bool
    leased_until: float


class Holdings:
    """Claims by generation, with their leases, as this worker believes them. Shared by all its threads.

    A claim takes one of ``slots`` until its generation has ended; its lease is kept until it is settled. Who acts on a
    holding names its epoch, so that an earlier claim of the same generation ends without touching a later one.
    """

    def __init__(self, slots: int, lease_s: float) -> None:
        self._slots = slots
        self._lease_s = lease_s
        self._held: dict[str, _Holding] = {}
        self._changed = threading.Condition()

    @property
    def slots(self) -> int:
        return self._slots

    def resize(self, slots: int) -> None:
        """Change the number of slots. What holds more keeps them until it ends."""
        with self._changed:
            self._slots = slots
            self._changed.notify_all()

    def wait_for_room(self, timeout_s: float) -> bool:
        """Wait until a slot is free. False: none was within ``timeout_s``, or ``interrupt`` was called."""
        with self._changed:
            if not self._has_room():
                self._changed.wait(timeout_s)
            return self._has_room()

    def interrupt(self) -> None:
        """End a wait for room."""
        with self._changed:
            self._changed.notify_all()

    def add(self, generation: str, epoch: int, claimed_at: float, *, occupies_slot: bool) -> None:
        """Record a claim that was asked for at ``claimed_at`` (monotonic seconds)."""
        with self._changed:
            self._held[generation] = _Holding(epoch, occupies_slot, claimed_at + self._lease_s)

    def vacate(self, generation: str, epoch: int) -> None:
        """It has ended and frees its slot; the lease is kept for settlement."""
        with self._changed:
            if self._holds(generation, epoch):
                self._held[generation].occupies_slot = False
                self._changed.notify_all()

    def release(self, generation: str, epoch: int) -> None:
        """It is no longer this worker's."""
        with self._changed:
            if self._holds(generation, epoch):
                del self._held[generation]
                self._changed.notify_all()

    def holds(self, generation: str, epoch: int) -> bool:
        with self._changed:
            return self._holds(generation, epoch)

    def leased(self, generation: str, epoch: int) -> bool:
        """Whether the lease cannot have lapsed yet, by this process's own clock."""
        with self._changed:
            return self._holds(generation, epoch) and time.monotonic() < self._held[generation].leased_until

    def epochs(self) -> dict[str, int]:
        """Everything held, for renewal."""
        with self._changed:
            return {generation: holding.epoch for generation, holding in self._held.items()}

    def renewed(self, epochs: dict[str, int], asked_at: float) -> None:
        """Record a renewal that was asked for at ``asked_at`` (monotonic seconds)."""
        with self._changed:
            for generation, epoch in epochs.items():
                if self._holds(generation, epoch):
                    self._held[generation].leased_until = asked_at + self._lease_s

    def _holds(self, generation: str, epoch: int) -> bool:
        holding = self._held.get(generation)
        return holding is not None and holding.epoch == epoch

    def _has_room(self) -> bool:
        return sum(holding.occupies_slot for holding in self._held.values()) < self._slots
