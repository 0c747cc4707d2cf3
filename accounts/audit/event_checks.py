"""Is an event what was recorded at its place in the chain? And where it is not, what has been done to it?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from accounts.audit.canonical import commitment
from accounts.audit.chain_rows import PersonalRow
from accounts.audit.contents import EVENT_FORMAT, EventRow, event_hash
from accounts.audit.faults import Broken, FaultKind, FaultReason
from accounts.audit.row_pages import require_database
from accounts.audit.written_forms import UNREADABLE, UNREADABLE_PAGE
from accounts.models import AuditEvent

_FORMATS: Final = range(1, EVENT_FORMAT + 1)


def check_event(event: EventRow, beside: Iterable[PersonalRow], expected: int, previous: str | None) -> None:
    """Raise ``Broken`` unless ``event`` is number ``expected``, whole, and follows the hash ``previous``.

    ``previous`` of None: any. ``beside`` are the personal values that are still kept of it.
    """
    if event.sequence != expected:
        raise missing(expected, previous)
    if not holds(event):
        raise _changed(event, previous)
    if previous is not None and event.previous_hash != previous:
        raise Broken(
            event.sequence,
            FaultKind.EVENT,
            FaultReason.UNLINKED,
            f"Event {event.sequence} is whole, and does not follow event {event.sequence - 1} as that is now: that one "
            "was made anew, with a hash of its own.",
        )
    check_beside(event.sequence, event.personal, beside)


def check_beside(sequence: int, commitments: Mapping[str, str], beside: Iterable[PersonalRow]) -> None:
    """Raise ``Broken`` unless all that stands beside event ``sequence`` is what it has among its ``commitments``."""
    for value in beside:
        if value.unreadable:
            raise Broken(
                sequence,
                FaultKind.EVENT,
                FaultReason.ALTERED,
                f"The personal value {value.path!r} that is kept of event {sequence} was changed: it cannot be read "
                f"({value.unreadable}).",
            )
        check_personal(sequence, commitments, value)


def missing(sequence: int, previous: str | None) -> Broken:
    """What there is to say where event ``sequence`` is not, behind the hash ``previous``."""
    if place := _stands_at(sequence, previous):
        return _reordered(sequence, place)
    return Broken(sequence, FaultKind.EVENT, FaultReason.MISSING, f"Event {sequence} is gone.")


def holds(event: EventRow) -> bool:
    """Whether the event's own hash is right, and nothing stands in columns that it does not cover."""
    if event.format not in _FORMATS or (event.format == 1 and (event.session or event.personal)):
        return False
    try:
        return event_hash(event) == event.hash
    except UNREADABLE:
        return False


def _changed(event: EventRow, previous: str | None) -> Broken:
    """An event whose hash is wrong: was it changed, or was it, or one before it, moved?"""
    sequence = event.sequence
    if place := _stands_at(sequence, previous):
        return _reordered(sequence, place)
    if holds(event._replace(sequence=sequence - 1)):
        return Broken(
            sequence - 1,
            FaultKind.EVENT,
            FaultReason.INSERTED,
            f"Event {sequence - 1} was put into the chain: what was recorded there has become event {sequence}.",
        )
    if holds(event._replace(sequence=sequence + 1)):
        return Broken(
            sequence,
            FaultKind.EVENT,
            FaultReason.MISSING,
            f"Event {sequence} is gone: what was recorded as event {sequence + 1} was moved to its place.",
        )
    return Broken(
        sequence,
        FaultKind.EVENT,
        FaultReason.ALTERED,
        f"Event {sequence} is not what was recorded: it was changed.",
    )


def _reordered(sequence: int, place: int) -> Broken:
    return Broken(
        sequence,
        FaultKind.EVENT,
        FaultReason.REORDERED,
        f"What was recorded as event {sequence} stands at {place} now: events were exchanged.",
    )


def _stands_at(sequence: int, previous: str | None) -> int:
    """Where else the event is that was recorded as ``sequence``; 0: nowhere. Reads all of the chain."""
    if previous is None:
        return 0
    rows: Any = AuditEvent.objects.filter(previous_hash=previous).exclude(sequence=sequence)
    try:
        found = [EventRow._make(row) for row in rows.order_by("sequence").values_list(*EventRow._fields)[:2]]
    except UNREADABLE_PAGE:
        require_database()
        return 0
    return next((one.sequence for one in found if holds(one._replace(sequence=sequence))), 0)


def check_personal(sequence: int, commitments: Mapping[str, str], row: PersonalRow) -> None:
    """Raise ``Broken`` unless ``row`` is what event ``sequence`` has among its ``commitments``."""
    try:
        fits = commitments.get(row.path) == commitment(row.salt, row.person_id, row.value)
    except UNREADABLE:
        fits = False
    if not fits:
        raise Broken(
            sequence,
            FaultKind.EVENT,
            FaultReason.ALTERED,
            f"The personal value {row.path!r} that is kept of event {sequence} is not the one that was recorded.",
        )
