"""Does the chain go through the checkpoints that were made of it? Asked on a walk, in the order of the chain."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from heapq import merge
from typing import Any, Final

from accounts.audit import chain_rows, checkpoints, signing_keys
from accounts.audit.checkpoint_lines import NO_EVENT, Checkpoint
from accounts.audit.checkpoints import CheckpointFault, CheckpointReason
from accounts.audit.faults import Broken, FaultKind, FaultReason
from accounts.audit.row_pages import NOT_READ, columns_of, page, require_database
from accounts.audit.written_forms import UNREADABLE_PAGE, WrittenForm
from accounts.models import AuditSigningKey

_KEY: Final = WrittenForm(AuditSigningKey, ("id", "public_key", "signed_by", "signature", "created_at"))
#: More keys than anybody ever makes.
_KEYS: Final = 10_000


class CheckpointTrail:
    """The checkpoints that a walk has ahead of it: the database's, and those that were kept outside of it."""

    def __init__(self, first: int | None, archived: int, outside: Iterable[Checkpoint]) -> None:
        """``first``: the first event that is walked (None: all are); of what was kept outside, all is looked at.
        ``archived``: the last event that is.
        """
        self._archived = archived
        kept = sorted(outside, key=_order)
        self._compared = checkpoints.Compared()
        #: The hashes at events that are not walked.
        before = {one.sequence for one in kept if archived < one.sequence < (first or 0)}
        self._hashes = checkpoints.hashes_at(before)
        self._ahead: Iterator[Checkpoint] = merge(kept, chain_rows.checkpoints(first), key=_order)
        self._next: Checkpoint | None = None
        self._broken: Broken | None = None
        self._advance()
        #: How many were looked at, and how many of them could not be compared: what they signed is in an archive.
        self.looked_at = 0
        self.not_compared = 0

    def pass_by(self, sequence: int, chain_hash: str | None) -> None:
        """Look at all up to the event ``sequence``, at which the chain has ``chain_hash`` (None: its row says that).

        Raises ``Broken``.
        """
        while self._next is not None and self._next.sequence <= sequence:
            self._check(self._next, chain_hash if self._next.sequence == sequence else None)
            self._advance()
        if self._broken is not None and self._broken.fault.sequence <= sequence:
            raise self._broken

    def finish(self) -> None:
        """Look at those that are left: they are of what was recorded since the walk began, or was cut off."""
        self.pass_by(NO_EVENT, None)

    def _advance(self) -> None:
        try:
            self._next = next(self._ahead, None)
        except Broken as broken:
            # One that cannot be read: it is for the walk to come there.
            self._next, self._broken = None, broken

    def _check(self, checkpoint: Checkpoint, chain_hash: str | None) -> None:
        self.looked_at += 1
        fault = self._fault_of(checkpoint, chain_hash)
        if fault is not None and fault.reason is not CheckpointReason.ARCHIVE_MISSING:
            # What it was compared with is older than the walk is long: keys are replaced, and the chain goes on.
            self._compared = checkpoints.Compared()
            fault = self._fault_of(checkpoint, chain_hash)
        if fault is None:
            return
        if fault.reason is CheckpointReason.ARCHIVE_MISSING:
            self.not_compared += 1
            return
        raise Broken(
            checkpoint.sequence, FaultKind.CHECKPOINT, FaultReason(fault.reason.value), fault.message
        )

    def _fault_of(self, checkpoint: Checkpoint, chain_hash: str | None) -> CheckpointFault | None:
        def hash_at(sequence: int) -> str | None:
            if chain_hash is not None or sequence <= self._archived:
                # Of what is archived the walk has read the hash, or nobody does: each would mean to read a file.
                return chain_hash
            return self._hashes.get(sequence) or checkpoints.hash_at(sequence)

        return checkpoints.fault_of(checkpoint, hash_at=hash_at, compared=self._compared)


def check_keys_written() -> None:
    """Raise ``Broken`` unless every key's row can be read, and is written as Signalbox writes it."""
    keys = AuditSigningKey.objects.order_by("created_at")
    rows, error = page(_KEY, keys, _KEYS)
    if error is not None:
        [key_id] = columns_of(keys, len(rows), "id")
        raise Broken(
            0,
            FaultKind.KEY,
            FaultReason.ALTERED,
            f"The row of the signing key {key_id} was changed: it cannot be read ({error}).",
            record_id="" if key_id == NOT_READ else str(key_id),
        ) from error


def check_keys(archived: Mapping[str, Mapping[str, Any]], *, complete: bool) -> None:
    """Raise ``Broken`` unless every key that checkpoints are signed with is there as it was introduced.

    ``archived`` and ``complete`` as ``signing_keys.faults`` takes them.
    """
    try:
        faults = signing_keys.faults(archived, complete=complete)
    except UNREADABLE_PAGE as error:
        require_database()
        raise Broken(
            0,
            FaultKind.KEY,
            FaultReason.ALTERED,
            f"A signing key, or an event that introduces one, was changed: it cannot be read ({error}).",
        ) from error
    for fault in faults:
        raise Broken(0, FaultKind.KEY, FaultReason.UNVOUCHED, fault.message, record_id=fault.key_id)


def _order(checkpoint: Checkpoint) -> tuple[int, float]:
    return checkpoint.sequence, checkpoint.at.timestamp()
