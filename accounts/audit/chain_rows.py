"""The chain's rows in order, read in pages: so many of them that no model is built around one.

A row that cannot be read, or is written otherwise than Signalbox writes it, ends what is read; what comes before it is
given first. Numbers are taken for what they are on SQLite, where a column of whole numbers may hold any: a row between
two numbers is read with those of the higher one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from uuid import UUID

from django.db.models import Q

from accounts.audit.checkpoint_lines import SignedCheckpoint
from accounts.audit.contents import AssignmentRow, EventRow
from accounts.audit.faults import Broken, FaultKind, FaultReason
from accounts.audit.row_pages import columns_of, page, require_database
from accounts.audit.written_forms import UNREADABLE_PAGE, WrittenForm, WrittenOtherwise
from accounts.models import (
    AuditCheckpoint,
    AuditEvent,
    AuditPersonalValue,
    LaneAssignment,
    SealedAssignment,
)

#: Rows that are read at once.
EVENTS: Final = 1000
_LEAVES: Final = 2000
_CHECKPOINTS: Final = 500
_VALUES: Final = 5000

EVENT_FORM: Final = WrittenForm(AuditEvent, EventRow._fields)
_VALUE: Final = WrittenForm(AuditPersonalValue, ("event_id", "path", "salt", "value", "person_id"))
_LEAF: Final = WrittenForm(SealedAssignment, ("batch", "index", "generation_id", "hash"))
_ASSIGNMENT: Final = WrittenForm(LaneAssignment, AssignmentRow._fields)
_CHECKPOINT: Final = WrittenForm(AuditCheckpoint, ("at", "sequence", "hash", "key_id", "signature"))


class PersonalRow(NamedTuple):
    """A value that stands beside an event: where in it, what its commitment there was made from, and whom it is about.

    ``unreadable``: why nothing more can be said of it.
    """

    path: str
    salt: str = ""
    value: str = ""
    person_id: UUID | None = None
    unreadable: str = ""


@dataclass(frozen=True, slots=True)
class LeafRow:
    """A leaf, with its assignment where that is there. ``unreadable``: why nothing more can be said of it.

    Of such a one ``batch`` and ``index`` may be anything.
    """

    batch: Any
    index: Any
    generation_id: UUID | None = None
    hash: str = ""
    assignment: AssignmentRow | None = None
    unreadable: str = ""


class Leaves:
    """Leaves in their order, for who takes those of one batch at a time."""

    def __init__(self, rows: Iterator[LeafRow]) -> None:
        self._rows = rows
        self._next = next(rows, None)

    def of(self, batch: int) -> Iterator[LeafRow]:
        """The leaves of ``batch``, which is behind all that were asked for.

        Raises ``Broken`` at one that is before it and was not taken: of no batch.
        """
        if self._next is not None and _is_before(self._next.batch, batch):
            raise misplaced(self._next)
        while self._next is not None and self._next.batch == batch:
            leaf = self._next
            self._next = next(self._rows, None)
            yield leaf


def events(first: int, last: int) -> Iterator[tuple[EventRow, list[PersonalRow]]]:
    """The events that are there from ``first`` to ``last``, with what stands beside them.

    Raises ``Broken`` at one that cannot be read.
    """
    behind = first - 1
    while behind < last:
        in_order = AuditEvent.objects.filter(sequence__gt=behind, sequence__lte=last).order_by("sequence")
        rows, error = page(EVENT_FORM, in_order, EVENTS)
        found = [EventRow._make(row) for row in rows]
        beside = personal_values(behind + 1, found[-1].sequence) if found else {}
        for event in found:
            yield event, beside.get(event.sequence, [])
        if error is not None:
            [sequence] = columns_of(in_order, len(found), "sequence")
            raise _unreadable(number_of(sequence), FaultKind.EVENT, f"Event {sequence}", error) from error
        if len(found) < EVENTS:
            return
        behind = found[-1].sequence


def personal_values(first: int, last: int) -> dict[int, list[PersonalRow]]:
    """What stands beside the events ``first`` to ``last``, by event."""
    values = AuditPersonalValue.objects.filter(event_id__gt=first - 1, event_id__lte=last).order_by(
        "event_id", "path"
    )
    beside: dict[int, list[PersonalRow]] = defaultdict(list)
    start = 0
    while True:
        rows, error = page(_VALUE, values, _VALUES, start)
        for sequence, *row in rows:
            beside[sequence].append(PersonalRow(*row))
        start += len(rows)
        if error is None and len(rows) < _VALUES:
            return beside
        if error is not None:
            sequence, path = columns_of(values, start, "event_id", "path")
            beside[number_of(sequence)].append(PersonalRow(str(path), unreadable=str(error)))
            start += 1


def leaves(first: int, last: int | None = None) -> Iterator[LeafRow]:
    """The leaves of the batches from ``first`` on, or to ``last``, in the order of their places.

    One that cannot be read is the last: nobody goes on behind it.
    """
    within = SealedAssignment.objects.order_by("batch", "index")
    if last is not None:
        within = within.filter(batch__lte=last)
    behind = Q(batch__gt=first - 1)
    while True:
        in_order = within.filter(behind)
        rows, error = page(_LEAF, in_order, _LEAVES)
        assignments = _assignments([generation_id for _, _, generation_id, _ in rows])
        for batch, index, generation_id, leaf in rows:
            found = assignments.get(generation_id)
            if isinstance(found, str):
                yield LeafRow(batch, index, generation_id, unreadable=found)
            else:
                yield LeafRow(batch, index, generation_id, leaf, found)
        if error is not None:
            batch, index, generation_id = columns_of(in_order, len(rows), "batch", "index", "generation_id")
            known = generation_id if isinstance(generation_id, UUID) else None
            yield LeafRow(batch, index, known, unreadable=f"its leaf cannot be read ({error})")
            return
        if len(rows) < _LEAVES:
            return
        batch, index, *_ = rows[-1]
        # Said twice: by the first condition the index of the places is entered.
        behind = Q(batch__gte=batch) & (Q(batch__gt=batch) | Q(index__gt=index))


def checkpoints(first: int | None) -> Iterator[SignedCheckpoint]:
    """The checkpoints of the database that were made at ``first`` or behind it (None: all), in the order of the chain.

    Raises ``Broken`` at one that cannot be read.
    """
    behind = Q() if first is None else Q(sequence__gte=first)
    while True:
        in_order = AuditCheckpoint.objects.filter(behind).order_by("sequence", "at")
        rows, error = page(_CHECKPOINT, in_order, _CHECKPOINTS)
        for row in rows:
            yield SignedCheckpoint(*row)
        if error is not None:
            [sequence] = columns_of(in_order, len(rows), "sequence")
            what = f"The checkpoint of event {sequence}"
            raise _unreadable(number_of(sequence), FaultKind.CHECKPOINT, what, error) from error
        if len(rows) < _CHECKPOINTS:
            return
        at, sequence, *_ = rows[-1]
        behind = Q(sequence__gte=sequence) & (Q(sequence__gt=sequence) | Q(at__gt=at))


def number_of(found: Any) -> int:
    """The event that what has the number ``found`` stands at: of what is between two, the higher; 0: nobody knows."""
    if isinstance(found, (int, float)) and math.isfinite(found):
        return math.ceil(found)
    return 0


def misplaced(leaf: LeafRow) -> Broken:
    """What there is to say of a leaf of a batch that there is not."""
    whose = f"generation {leaf.generation_id}" if leaf.generation_id else "an unknown generation"
    return Broken(
        number_of(leaf.batch),
        FaultKind.ASSIGNMENT,
        FaultReason.MISPLACED,
        f"The assignment of {whose} is said to be sealed in batch {leaf.batch}, and there is no such batch.",
        record_id=str(leaf.generation_id or ""),
    )


def _is_before(found: Any, batch: int) -> bool:
    return isinstance(found, (int, float)) and found < batch


def _assignments(ids: Sequence[UUID]) -> dict[UUID, AssignmentRow | str]:
    """The assignments of these generations that are there; of one that cannot be read, why."""
    if not ids:
        return {}
    rows: Any = LaneAssignment.objects.filter(generation_id__in=ids).order_by()
    try:
        return {row[0]: _assignment(row) for row in _ASSIGNMENT.of(rows)}
    except UNREADABLE_PAGE as error:
        if len(ids) == 1:
            require_database()
            return {ids[0]: f"it cannot be read ({error})"}
        middle = len(ids) // 2
        return _assignments(ids[:middle]) | _assignments(ids[middle:])


def _assignment(row: tuple[Any, ...]) -> AssignmentRow | str:
    try:
        return AssignmentRow._make(_ASSIGNMENT.checked(row))
    except WrittenOtherwise as otherwise:
        return str(otherwise)


def _unreadable(sequence: int, kind: FaultKind, what: str, error: Exception) -> Broken:
    how = str(error) if isinstance(error, WrittenOtherwise) else f"it cannot be read ({error})"
    return Broken(sequence, kind, FaultReason.ALTERED, f"{what} was changed: {how}.")
