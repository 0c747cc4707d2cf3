"""What the database still has of an archived segment, against the segment's file.

Personal values stay there. Rows are deleted piece by piece behind the archive, so that some may be left for a while;
who lists the audit sees them, and so they have to be what the file says.
"""

from __future__ import annotations

from accounts.audit import chain_rows
from accounts.audit.archive_checks import ArchivedEvent
from accounts.audit.chain_rows import LeafRow, Leaves, PersonalRow
from accounts.audit.contents import EventRow, assignment_leaf
from accounts.audit.event_checks import check_beside, holds
from accounts.audit.faults import Broken, FaultKind, FaultReason
from accounts.audit.written_forms import UNREADABLE
from accounts.models import AuditArchive, AuditEvent, SealedAssignment


class Leftovers:
    """The rows of one archive's segment, in the order of the chain."""

    def __init__(self, archive: AuditArchive) -> None:
        self._archive = archive
        self._events = chain_rows.events(archive.first_sequence, archive.last_sequence)
        self._next = next(self._events, None)
        self._leaves = Leaves(chain_rows.leaves(archive.first_sequence, archive.last_sequence))
        self._beside: dict[int, list[PersonalRow]] = {}
        self._beside_until = archive.first_sequence - 1

    def compare(self, event: ArchivedEvent) -> None:
        """Raise ``Broken`` where what is left of ``event``, which is the next one of the file, is not as there."""
        if event.sequence > self._beside_until:
            self._beside_until = min(event.sequence + chain_rows.EVENTS - 1, self._archive.last_sequence)
            self._beside = chain_rows.personal_values(event.sequence, self._beside_until)
        check_beside(event.sequence, event.personal, self._beside.get(event.sequence, []))
        if self._next is not None and self._next[0].sequence == event.sequence:
            self._compare_row(self._next[0], event)
            self._next = next(self._events, None)
        for leaf in self._leaves.of(event.sequence):
            self._compare_leaf(leaf, event)

    def _compare_row(self, row: EventRow, event: ArchivedEvent) -> None:
        if row.hash != event.hash or not holds(row):
            raise Broken(
                event.sequence,
                FaultKind.EVENT,
                FaultReason.ALTERED,
                f"Event {event.sequence} is archived, and its row, which is not deleted yet, says something else than "
                f"{self._archive.file_name}.",
            )

    def _compare_leaf(self, leaf: LeafRow, event: ArchivedEvent) -> None:
        try:
            fits = not leaf.unreadable and leaf.index >= 0 and event.leaves[leaf.index] == leaf.hash
            fits = fits and (leaf.assignment is None or assignment_leaf(leaf.assignment) == leaf.hash)
        except (*UNREADABLE, IndexError):
            fits = False
        if not fits:
            raise Broken(
                event.sequence,
                FaultKind.ASSIGNMENT,
                FaultReason.ALTERED,
                f"The assignment of generation {leaf.generation_id} stands as sealed in the archived batch "
                f"{event.sequence}, and is not what {self._archive.file_name} has there.",
                record_id=str(leaf.generation_id or ""),
            )


def count(archive: AuditArchive) -> int:
    """How many events and leaves the database still has of the archive's segment, whose file is not read."""
    span = (archive.first_sequence, archive.last_sequence)
    return (
        AuditEvent.objects.filter(sequence__range=span).count()
        + SealedAssignment.objects.filter(batch__range=span).count()
    )
