"""The chain's rows in order, read in pages: so many of them that no model is built around one.

What stands in a row may be anything, where somebody has written to the database itself: a text that is no JSON, a
number that is none. A page that cannot be read is narrowed down to the row that is to blame, and what comes before that
one is given first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple
from uuid import UUID

from django.db import DatabaseError
from django.db.models import CharField, Q, QuerySet
from django.db.models.functions import Cast

from accounts.audit.checkpoints import SignedCheckpoint
from accounts.audit.contents import AssignmentRow, EventRow
from accounts.audit.faults import Broken, FaultKind, FaultReason
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
#: SQLite has ids as texts, and of two that are written differently it knows not that they are one.
_WRITTEN: Final = Cast("generation_id", CharField())
#: What reading and hashing a row raises that holds what it cannot.
UNREADABLE: Final = (ValueError, TypeError, AttributeError, KeyError, OverflowError, RecursionError)
#: SQLite itself refuses to read a text with bytes that are none.
UNREADABLE_PAGE: Final = (*UNREADABLE, DatabaseError)


class PersonalRow(NamedTuple):
    """A value that stands beside an event: where in it, and what its commitment there was made from."""

    path: str
    salt: str
    value: str


@dataclass(frozen=True, slots=True)
class LeafRow:
    """A leaf, with its assignment where that is there. ``unreadable``: why nothing more can be said of it."""

    batch: int
    index: int
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
        """The leaves of ``batch``, which is behind all that were asked for."""
        while self._next is not None and self._next.batch == batch:
            leaf = self._next
            self._next = next(self._rows, None)
            yield leaf


def events(first: int, last: int) -> Iterator[tuple[EventRow, list[PersonalRow]]]:
    """The events that are there from ``first`` to ``last``, with what stands beside them.

    Raises ``Broken`` at one that cannot be read.
    """
    while first <= last:
        in_order = AuditEvent.objects.filter(sequence__range=(first, last)).order_by("sequence")
        rows, error = _page(in_order.values_list(*EventRow._fields), EVENTS)
        found = [EventRow._make(row) for row in rows]
        beside = personal_values(found[0].sequence, found[-1].sequence) if found else {}
        for event in found:
            yield event, beside.get(event.sequence, [])
        if error is not None:
            sequence = in_order.values_list("sequence", flat=True)[len(found)]
            raise _unreadable(sequence, FaultKind.EVENT, f"Event {sequence}", error) from error
        if len(found) < EVENTS:
            return
        first = found[-1].sequence + 1


def personal_values(first: int, last: int) -> dict[int, list[PersonalRow]]:
    """What stands beside the events ``first`` to ``last``, by event. One that cannot be read fits no commitment."""
    values = AuditPersonalValue.objects.filter(event_id__gte=first, event_id__lte=last).order_by(
        "event_id", "path"
    )
    beside: dict[int, list[PersonalRow]] = defaultdict(list)
    try:
        for sequence, *row in values.values_list("event_id", *PersonalRow._fields):
            beside[sequence].append(PersonalRow(*row))
    except UNREADABLE_PAGE:
        if first == last:
            _require_database()
            return {first: [PersonalRow("", "", "")]}
        middle = (first + last) // 2
        return personal_values(first, middle) | personal_values(middle + 1, last)
    return beside


def leaves(first: int, last: int | None = None) -> Iterator[LeafRow]:
    """The leaves of the batches from ``first`` on, or to ``last``, in the order of their places."""
    within = SealedAssignment.objects.order_by("batch", "index")
    if last is not None:
        within = within.filter(batch__lte=last)
    batch, index = first, -1
    while True:
        # Said twice: by the first condition the index of the places is entered.
        behind = Q(batch__gte=batch) & (Q(batch__gt=batch) | Q(index__gt=index))
        in_order = within.filter(behind)
        rows, error = _page(
            in_order.values_list("batch", "index", "generation_id", "hash", _WRITTEN), _LEAVES
        )
        assignments = _assignments([generation_id for _, _, generation_id, *_ in rows])
        for batch, index, generation_id, leaf, written in rows:
            found = assignments.get(generation_id)
            if written.replace("-", "") != generation_id.hex:
                found = "its id is written in another way than ours are"
            if isinstance(found, str):
                yield LeafRow(batch, index, generation_id, unreadable=found)
            else:
                yield LeafRow(batch, index, generation_id, leaf, found)
        if error is not None:
            batch, index = in_order.values_list("batch", "index")[len(rows)]
            yield LeafRow(batch, index, unreadable=f"its leaf cannot be read ({error})")
        elif len(rows) < _LEAVES:
            return


def checkpoints(first: int) -> Iterator[SignedCheckpoint]:
    """The checkpoints of the database that were made at ``first`` or behind it, in the order of the chain.

    Raises ``Broken`` at one that cannot be read.
    """
    behind = Q(sequence__gte=first)
    while True:
        in_order = AuditCheckpoint.objects.filter(behind).order_by("sequence", "at")
        rows, error = _page(
            in_order.values_list("at", "sequence", "hash", "key_id", "signature"), _CHECKPOINTS
        )
        for at, sequence, *signed in rows:
            if not isinstance(at, datetime) or not isinstance(sequence, int):
                raise _unreadable(
                    first, FaultKind.CHECKPOINT, "A checkpoint", ValueError(f"{at!r}, {sequence!r}")
                )
            yield SignedCheckpoint(at, sequence, *signed)
        if error is not None:
            sequence = in_order.values_list("sequence", flat=True)[len(rows)]
            what = f"The checkpoint of event {sequence}"
            raise _unreadable(sequence, FaultKind.CHECKPOINT, what, error) from error
        if len(rows) < _CHECKPOINTS:
            return
        at, sequence, *_ = rows[-1]
        behind = Q(sequence__gte=sequence) & (Q(sequence__gt=sequence) | Q(at__gt=at))


def _page(rows: QuerySet[Any, Any], size: int) -> tuple[list[Any], Exception | None]:
    """The first ``size`` rows; or those before the first that cannot be read, and why it cannot."""
    try:
        return list(rows[:size]), None
    except UNREADABLE_PAGE as error:
        reason: Exception = error
    readable, unreadable = 0, size
    while unreadable - readable > 1:
        middle = (readable + unreadable) // 2
        try:
            list(rows[:middle])
        except UNREADABLE_PAGE as error:
            unreadable, reason = middle, error
        else:
            readable = middle
    return list(rows[:readable]) if readable else [], reason


def _assignments(ids: Sequence[UUID]) -> dict[UUID, AssignmentRow | str]:
    """The assignments of these generations that are there; of one that cannot be read, why."""
    if not ids:
        return {}
    rows: Any = LaneAssignment.objects.filter(generation_id__in=ids).order_by()
    try:
        return {row[0]: AssignmentRow._make(row) for row in rows.values_list(*AssignmentRow._fields)}
    except UNREADABLE_PAGE as error:
        if len(ids) == 1:
            _require_database()
            return {ids[0]: f"it cannot be read ({error})"}
        middle = len(ids) // 2
        return _assignments(ids[:middle]) | _assignments(ids[middle:])


def _require_database() -> None:
    """Raise ``DatabaseError`` where the database itself cannot be reached: then no row is to blame."""
    AuditEvent.objects.filter(sequence=0).exists()


def _unreadable(sequence: int, kind: FaultKind, what: str, error: Exception) -> Broken:
    return Broken(
        sequence, kind, FaultReason.ALTERED, f"{what} cannot be read, so that it was changed ({error})."
    )
