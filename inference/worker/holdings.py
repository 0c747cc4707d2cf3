"""What this worker owns in dispatch, from the claim until it lets go."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from inference.scheduling.memory import batch_bytes

#: Epochs by generation, of none.
NOBODY: Final[Mapping[str, int]] = MappingProxyType({})


@dataclass(slots=True)
class _Holding:
    epoch: int
    lane_rank: int
    tenant: str
    occupies_slot: bool
    bytes: int
    awaits_room: bool
    leased_until: float


class Holdings:
    """Claims by generation, with their leases, as this worker believes them. Shared by all its threads.

    A claim takes one of ``slots``, and the bytes of KV memory that it was given, until its generation has ended; its
    lease is kept until it is settled. Who acts on a holding names its epoch, so that an earlier claim of the same
    generation ends without touching a later one.

    A claim into room that others are to leave *awaits* it until it does ``take_room``. It takes no memory before, and
    is counted beside them for whoever claims next: they may well stay, if it turns out that they need not leave.
    """

    def __init__(self, slots: int, lease_s: float) -> None:
        self._slots = slots
        self._lease_s = lease_s
        self._held: dict[str, _Holding] = {}
        self._requesters: set[str] = set()
        self._changed = threading.Condition()
        self._changes = 0

    @property
    def slots(self) -> int:
        return self._slots

    def resize(self, slots: int) -> None:
        """Change the number of slots. What holds more keeps them until it ends."""
        with self._changed:
            self._slots = slots
            self._note_change()

    @property
    def changes(self) -> int:
        """How often room was made so far, for ``wait_for_change``."""
        return self._changes

    def wait_for_change(self, since: int, timeout_s: float) -> bool:
        """Wait until room was made since ``changes`` was ``since``, or ``interrupt`` was called. False: neither was."""
        with self._changed:
            return self._changed.wait_for(lambda: self._changes != since, timeout_s)

    def interrupt(self) -> None:
        """End a wait for a change."""
        with self._changed:
            self._note_change()

    def given(self, leaving: Mapping[str, int] = NOBODY) -> tuple[int, ...]:
        """The bytes given to each that has a slot, once ``leaving`` (epochs by generation) have left."""
        with self._changed:
            return tuple(
                holding.bytes
                for generation, holding in self._held.items()
                if holding.occupies_slot and leaving.get(generation) != holding.epoch
            )

    def occupied(self) -> tuple[int, int]:
        """Slots taken, and bytes that those who took them can take together."""
        given = self.given()
        return len(given), batch_bytes(given)

    def reserved_since(self) -> tuple[int, frozenset[str]]:
        """Bytes that those that have their room by now can take together, and the tenants that were given some since
        this was asked last."""
        with self._changed:
            requesters, self._requesters = frozenset(self._requesters), set()
            given = [one.bytes for one in self._held.values() if one.occupies_slot and not one.awaits_room]
            return batch_bytes(given), requesters

    def bytes_of(self, generation: str) -> int:
        """What a generation was given; 0 for one that is not held."""
        with self._changed:
            holding = self._held.get(generation)
            return holding.bytes if holding else 0

    def lowest_lane(self) -> int | None:
        """The rank of the lowest lane that has a slot; None if nothing has one."""
        with self._changed:
            return max((one.lane_rank for one in self._held.values() if one.occupies_slot), default=None)

    def add(
        self,
        generation: str,
        epoch: int,
        claimed_at: float,
        *,
        lane_rank: int,
        occupies_slot: bool,
        bytes_: int = 0,
        tenant: str = "",
        awaits_room: bool = False,
    ) -> None:
        """Record a ``tenant``'s claim that was asked for at ``claimed_at`` (monotonic seconds) and given ``bytes_``."""
        with self._changed:
            if not awaits_room:
                self._requesters.add(tenant)
            self._held[generation] = _Holding(
                epoch, lane_rank, tenant, occupies_slot, bytes_, awaits_room, claimed_at + self._lease_s
            )

    def take_room(self, generation: str, epoch: int) -> None:
        """It is about to run: what it awaited is there, or becomes free at once."""
        with self._changed:
            if self._holds(generation, epoch):
                self._requesters.add(self._held[generation].tenant)
                self._held[generation].awaits_room = False

    def vacate(self, generation: str, epoch: int) -> None:
        """It has ended and frees its slot; the lease is kept for settlement."""
        with self._changed:
            if self._holds(generation, epoch):
                self._held[generation].occupies_slot = False
                self._note_change()

    def release(self, generation: str, epoch: int) -> None:
        """It is no longer this worker's."""
        with self._changed:
            if self._holds(generation, epoch):
                del self._held[generation]
                self._note_change()

    def holds(self, generation: str, epoch: int) -> bool:
        with self._changed:
            return self._holds(generation, epoch)

    def runs(self, generation: str, epoch: int) -> bool:
        """Whether it is held and has not ended."""
        with self._changed:
            return self._holds(generation, epoch) and self._held[generation].occupies_slot

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

    def _note_change(self) -> None:
        self._changes += 1
        self._changed.notify_all()
