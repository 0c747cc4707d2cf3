"""What the chain tells about entitlements: who granted and approved them, and whether they gave their rights at a time.

What was in force at a time is read from the events up to then, which say all of an entitlement's terms. Where they are
archived it is the row that is read, as it is now.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Self
from uuid import UUID

from django.utils.dateparse import parse_datetime

from accounts import entitlements
from accounts.audit.history import History, histories
from accounts.audit.values import masked
from accounts.entitlement_terms import Terms
from accounts.limits import LimitName, Limits
from accounts.models import Approval, AuditEvent, Entitlement, OnExhausted
from accounts.models.entitlement import GIVING

#: The actions of the events that make an entitlement.
MADE: Final = ("entitlement.grant", "entitlement.request")
_CHANGED: Final = ("entitlement.change",)
_DECIDED: Final = ("entitlement.approve", "entitlement.refuse")
_ENDED: Final = ("entitlement.end", "entitlement.withdraw")


@dataclass(frozen=True, slots=True, kw_only=True)
class EntitlementThen:
    """What an entitlement was like at a time. ``recorded``: by its events; else by its row as it is now."""

    terms: Terms
    approval: str
    ended_at: datetime | None
    recorded: bool

    @classmethod
    def of(cls, fields: Mapping[str, Any], row: Entitlement) -> Self:
        """As ``fields``, which its events say; what they do not say is the row's."""
        said = {**entitlements.audited(row), **fields}
        return cls(
            terms=Terms(
                limits=Limits(**{name.value: said[name.value] for name in LimitName}),
                starts_at=_time(said["starts_at"]),
                ends_at=_time(said["ends_at"]),
                weight=said["weight"],
                speculation=said["speculation"],
                longest_queue_wait_s=said["longest_queue_wait_s"],
                on_exhausted=OnExhausted(said["on_exhausted"]),
                step_down_to=said["step_down_to_id"],
                reason=said["reason"],
            ),
            approval=said["approval"],
            ended_at=_time(said["ended_at"]),
            recorded=bool(fields),
        )

    def gave_at(self, at: datetime, granted_at: datetime | None) -> bool:
        """Whether it gave its rights at ``at``: it was there, granted, and neither to come nor over."""
        return _gives(at, granted_at, self.approval, self.terms.starts_at, self.terms.ends_at, self.ended_at)


def _gives(
    at: datetime,
    granted_at: datetime | None,
    approval: str,
    starts_at: datetime | None,
    ends_at: datetime | None,
    ended_at: datetime | None,
) -> bool:
    return (
        approval in GIVING
        and granted_at is not None
        and granted_at <= at
        and (ended_at is None or at < ended_at)
        and (starts_at is None or starts_at <= at)
        and (ends_at is None or at < ends_at)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EntitlementRecord:
    """An entitlement at a time, and the events that made it what it was."""

    row: Entitlement
    history: History
    then: EntitlementThen
    #: Fields of its row that are not what its last event says: somebody wrote past the verbs. Only of the present.
    differs: Sequence[str] = ()

    @property
    def terms(self) -> Terms:
        """What it gave."""
        return self.then.terms

    def gave_at(self, at: datetime) -> bool:
        """Whether it gave its rights at ``at``."""
        by_row = self.then.approval == Approval.APPROVED and not self.then.recorded
        granted_at = self.row.decided_at if by_row else self.row.created_at
        return self.then.gave_at(at, self.granted.at if self.granted else granted_at)

    @property
    def granted(self) -> AuditEvent | None:
        """The event that granted or requested it."""
        return self.history.first(*MADE)

    @property
    def decided(self) -> AuditEvent | None:
        """The event in which a second operator approved or refused it."""
        return self.history.first(*_DECIDED)

    @property
    def changes(self) -> list[AuditEvent]:
        """The events that changed its terms."""
        return self.history.every(*_CHANGED)

    @property
    def ended(self) -> AuditEvent | None:
        """The event that ended it."""
        return self.history.first(*_ENDED)


def records_of(rows: Iterable[Entitlement], at: datetime | None = None) -> dict[UUID, EntitlementRecord]:
    """The records of ``rows``, which have their allowances with them, at ``at`` (None: now). Two queries."""
    by_id = {row.id: row for row in rows}
    found = histories("entitlement", by_id.keys(), at)
    records = {}
    for entitlement_id, row in by_id.items():
        history = found[str(entitlement_id)]
        records[entitlement_id] = EntitlementRecord(
            row=row,
            history=history,
            then=EntitlementThen.of(history.fields if at is not None else {}, row),
            differs=_differences(row, history) if at is None else (),
        )
    return records


def gave_by_events(history: History, at: datetime) -> bool:
    """As ``EntitlementRecord.gave_at``, of one whose row is gone: by its events up to then."""
    said, made = history.fields, history.first(*MADE)
    return _gives(
        at,
        made.at if made else None,
        said.get("approval", ""),
        _time(said.get("starts_at")),
        _time(said.get("ends_at")),
        _time(said.get("ended_at")),
    )


def _differences(row: Entitlement, history: History) -> list[str]:
    # As a record would have it, by the rules of now: older ones may have masked less.
    now, recorded = masked(entitlements.audited(row)) or {}, masked(history.fields) or {}
    return [name for name, said in recorded.items() if name in now and now[name] != said]


def _time(value: Any) -> datetime | None:
    return parse_datetime(value) if isinstance(value, str) else value
