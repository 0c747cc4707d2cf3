"""Does the chain go through the checkpoints that were made of it? Asked on a walk, in the order of the chain."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import merge
from typing import Final

from accounts.audit import chain_rows, checkpoints, signing_keys
from accounts.audit.checkpoints import Checkpoint, CheckpointReason
from accounts.audit.faults import Broken, FaultKind, FaultReason

_END: Final = 2**63


class CheckpointTrail:
    """The checkpoints that a walk has ahead of it: the database's, and those that were kept outside of it."""

    def __init__(self, first: int, archived: int, outside: Iterable[Checkpoint]) -> None:
        """``first``: the first event that is walked; of what was kept outside, all is looked at. ``archived``: the last
        event that is.
        """
        self._archived = archived
        kept = sorted(outside, key=_order)
        self._ahead: Iterator[Checkpoint] = merge(kept, chain_rows.checkpoints(first), key=_order)
        self._next: Checkpoint | None = None
        self._broken: Broken | None = None
        self._advance()
        #: How many were looked at, and how many of them could not be compared: what they signed is in an archive.
        self.looked_at = 0
        self.not_compared = 0

    def pass_by(self, sequence: int, chain_hash: str) -> None:
        """Look at all up to the event ``sequence``, at which the chain has ``chain_hash``. Raises ``Broken``."""
        while self._next is not None and self._next.sequence <= sequence:
            self._check(self._next, chain_hash if self._next.sequence == sequence else None)
            self._advance()
        if self._broken is not None and self._broken.fault.sequence <= sequence:
            raise self._broken

    def finish(self) -> None:
        """Look at those that are left: they are of what was recorded since the walk began, or was cut off."""
        self.pass_by(_END, "")

    def _advance(self) -> None:
        try:
            self._next = next(self._ahead, None)
        except Broken as broken:
            # One that cannot be read: it is for the walk to come there.
            self._next, self._broken = None, broken

    def _check(self, checkpoint: Checkpoint, chain_hash: str | None) -> None:
        self.looked_at += 1
        if chain_hash is not None or checkpoint.sequence <= self._archived:
            # Of what is archived the walk has read the hash, or nobody does: each would mean to read a file.
            fault = checkpoints.fault_of(checkpoint, hash_at=lambda sequence: chain_hash)
        else:
            fault = checkpoints.fault_of(checkpoint)
        if fault is None:
            return
        if fault.reason is CheckpointReason.ARCHIVE_MISSING:
            self.not_compared += 1
            return
        raise Broken(
            checkpoint.sequence, FaultKind.CHECKPOINT, FaultReason(fault.reason.value), fault.message
        )


def check_keys() -> None:
    """Raise ``Broken`` unless every key that checkpoints are signed with was introduced as keys are."""
    for fault in signing_keys.faults():
        raise Broken(0, FaultKind.KEY, FaultReason.UNVOUCHED, fault.message, record_id=fault.key_id)


def _order(checkpoint: Checkpoint) -> tuple[int, float]:
    return checkpoint.sequence, checkpoint.at.timestamp()
