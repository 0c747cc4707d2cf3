"""Who granted, approved and changed an entitlement, as the audit's pages tell it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from accounts.audit.entitlement_records import EntitlementRecord
from accounts.audit.reading import disclose
from accounts.formatting import exactly
from accounts.models import Approval, AuditArchive, AuditEvent

#: A row and its event are written in one transaction.
_SAME_TIME: Final = timedelta(minutes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class By:
    """Who did something, when, and the event that says so; 0: only the row does."""

    who: str
    at: datetime | None
    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """How an entitlement came about. ``warnings``: what of it does not fit its events."""

    granted: By
    approved: By | None
    changed: Sequence[By]
    warnings: Sequence[str]


def grants_of(records: Iterable[EntitlementRecord]) -> list[Grant]:
    """How each of ``records`` came about: by its events, and where they are archived by its row."""
    archived = AuditArchive.objects.exists()
    return [_grant(record, archived=archived) for record in records]


def _grant(record: EntitlementRecord, *, archived: bool) -> Grant:
    return Grant(
        granted=by_of(record.granted)
        or By(who=str(record.row.granted_by or ""), at=record.row.created_at, sequence=0),
        approved=_approved(record),
        changed=[by for event in record.changes if (by := by_of(event)) is not None],
        warnings=_warnings(record, archived=archived),
    )


def by_of(event: AuditEvent | None) -> By | None:
    """Who did what ``event`` tells."""
    if event is None:
        return None
    return By(who=disclose(event).actor_name, at=event.at, sequence=event.sequence)


def _approved(record: EntitlementRecord) -> By | None:
    if record.then.approval != Approval.APPROVED:
        return None
    row = record.row
    return by_of(record.decided) or By(who=str(row.decided_by or ""), at=row.decided_at, sequence=0)


def _warnings(record: EntitlementRecord, *, archived: bool) -> list[str]:
    """What does not fit: the row was written past the verbs, which record what they do."""
    found = []
    if record.granted is None and not archived:
        found.append("No event grants it: it was not made by an operator or a command, or the event is gone.")
    if record.granted and abs(record.row.created_at - record.granted.at) > _SAME_TIME:
        found.append(
            f"Its row says that it was made {exactly(record.row.created_at)}, its event "
            f"{exactly(record.granted.at)}. Somebody wrote into the database."
        )
    if record.differs:
        names = ", ".join(name.removesuffix("_id").replace("_", " ") for name in record.differs)
        found.append(f"Its row is not what its last event says: {names}. Somebody wrote into the database.")
    return found
