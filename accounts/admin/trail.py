"""The audit's events about one row, as the admin shows them: each changed field beside what it was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models import Model

from accounts.audit import reference_of
from accounts.models import AuditEvent

#: Events that a row's trail shows at most, newest first; the audit itself has them all.
LONGEST_TRAIL = 200


@dataclass(frozen=True, slots=True)
class FieldChange:
    """One field of an event. ``changed`` is false where it is shown for context only."""

    name: str
    before: str
    after: str
    changed: bool


@dataclass(frozen=True, slots=True)
class TrailEntry:
    """One event and its fields."""

    event: AuditEvent
    fields: list[FieldChange]


def trail_of(obj: Model) -> list[TrailEntry]:
    """What the audit says about ``obj``, newest first."""
    reference = reference_of(obj)
    events = AuditEvent.objects.filter(object_kind=reference.kind, object_id=reference.id)
    return [TrailEntry(event, list(changes_of(event))) for event in events[:LONGEST_TRAIL]]


def changes_of(event: AuditEvent) -> Iterator[FieldChange]:
    """The fields of an event that say something: those that changed, or, where a row was made, those that were set."""
    before, after = event.before or {}, event.after or {}
    for name in [*after, *(name for name in before if name not in after)]:
        old, new = _text(before, name), _text(after, name)
        if old != new:
            yield FieldChange(name.removesuffix("_id").replace("_", " "), old, new, event.before is not None)


def _text(values: Mapping[str, Any], name: str) -> str:
    match values.get(name):
        case None | "" | []:
            return ""
        case bool(flag):
            return "yes" if flag else "no"
        case [*items]:
            return ", ".join(str(item) for item in items)
        case value:
            return str(value)
