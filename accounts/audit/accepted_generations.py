"""Does each generation that was accepted have its lane assignment? Asked of whoever accepts them.

Both are written in one transaction. Until an assignment is sealed, a second later, nothing chained knows of it; what
tells then that somebody took it away is the generation. (So a generation that somebody has made up is told too.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from django.utils import timezone

from accounts.audit.archived_generations import ArchivedGenerations
from accounts.audit.chain_rows import number_of
from accounts.audit.faults import Broken, FaultKind, FaultReason
from accounts.audit.row_pages import columns_of, require_database
from accounts.audit.written_forms import UNREADABLE_PAGE
from accounts.models import AuditArchive, AuditEvent, AuditVerification

#: How late a transaction may commit, against the time that it has written.
_LATE: Final = timedelta(minutes=10)
#: How far the clock of who accepts may be ahead of that of who seals.
_CLOCKS_APART: Final = timedelta(days=1)

#: The generations, accepted at a time or later (None: all), without a row of a lane assignment.
Source = Callable[[datetime | None], Iterable[UUID]]


def _nothing(since: datetime | None) -> Iterable[UUID]:
    return ()


_source: Source = _nothing


def asked_of(source: Source) -> None:
    """Have ``source`` say which generations have no assignment; called once, when the application starts."""
    global _source
    _source = source


def check(archived: ArchivedGenerations, *, walked: AuditVerification | None, all_read: bool) -> None:
    """Raise ``Broken`` at a generation whose assignment is neither in the database nor archived.

    ``walked``: a walk that has looked at those before it (None: all are looked at). ``all_read``: so were all archives;
    else nothing is asked of the time that they are of.
    """
    # A walk of a clock that ran ahead says nothing of what was accepted since.
    since = _moved(walked.started_at, -_LATE) if walked and walked.started_at <= timezone.now() else None
    behind = None if all_read else _archived_until()
    if behind is not None:
        since = max(behind, since or behind)
    try:
        for generation_id in _source(since):
            if not archived.batch_of(generation_id):
                raise Broken(
                    0,
                    FaultKind.ASSIGNMENT,
                    FaultReason.MISSING,
                    f"Generation {generation_id} was accepted and has no lane assignment: that was taken away before "
                    "it was sealed, or the generation was put there.",
                    record_id=str(generation_id),
                )
    except UNREADABLE_PAGE as error:
        require_database()
        raise Broken(
            0,
            FaultKind.ASSIGNMENT,
            FaultReason.ALTERED,
            f"The row of a generation without a lane assignment was changed or put there: it cannot be read ({error}).",
        ) from error


def _archived_until() -> datetime | None:
    """The time behind which no assignment is archived; None: none is. Raises ``Broken``."""
    archive = AuditArchive.objects.order_by("-last_sequence").first()
    if archive is None:
        return None
    following = AuditEvent.objects.filter(sequence__gt=archive.last_sequence).order_by("sequence")
    sequence, at = columns_of(following, 0, "sequence", "at")
    # Of what is no time at all Django makes None.
    if sequence is not None and not isinstance(at, datetime):
        raise Broken(
            number_of(sequence),
            FaultKind.EVENT,
            FaultReason.ALTERED,
            f"Event {sequence} was changed: its time cannot be read.",
        )
    return _moved(at or archive.created_at, _CLOCKS_APART)


def _moved(at: datetime, by: timedelta) -> datetime:
    try:
        return at + by
    except OverflowError:
        # Somebody has put the first moment there, or the last.
        return at
