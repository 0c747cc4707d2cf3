"""The audit's events as the admin shows them: each changed field beside what it was, in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db.models import Model
from django.http import HttpRequest
from django.utils.dateparse import parse_datetime

from accounts.audience import Audience, sees
from accounts.audit import reference_of
from accounts.audit.names import Names
from accounts.audit.reading import ERASED, Disclosed, disclosable, disclose
from accounts.credential_text import MASK
from accounts.formatting import exactly, number
from accounts.models import AuditEvent

#: Events that a row's trail shows at most, newest first; the audit itself has them all.
LONGEST_TRAIL = 200
#: What stands where a secret was masked.
MASKED: Final = "(masked)"


@dataclass(frozen=True, slots=True)
class FieldChange:
    """One field of an event. ``changed`` is false where it is shown for context only."""

    name: str
    before: str
    after: str
    changed: bool

    @property
    def withheld(self) -> bool:
        """Whether what it was or is cannot be shown: it was a secret, or was erased."""
        return bool({self.before, self.after} & {MASKED, ERASED})


@dataclass(frozen=True, slots=True)
class TrailEntry:
    """One event, what it says, and its fields: those that changed, and those that stayed what they were."""

    event: AuditEvent
    said: Disclosed
    #: The name of the tenant that it is about; empty: of none.
    tenant: str
    fields: Sequence[FieldChange]
    unchanged: Sequence[FieldChange]
    #: Fields of which nobody can say any more whether they changed.
    erased: Sequence[str]


def trail_of(request: HttpRequest, obj: Model) -> list[TrailEntry]:
    """What the audit says about ``obj``, newest first. Nothing for who may not read the audit."""
    if not sees(request.user, Audience.AUDITORS):
        return []
    reference = reference_of(obj)
    events = AuditEvent.objects.filter(object_kind=reference.kind, object_id=reference.id)
    return entries_of(disclosable(events)[:LONGEST_TRAIL])


def entries_of(events: Iterable[AuditEvent]) -> list[TrailEntry]:
    """``events`` as they are shown, ids by the names that they have now. A few queries, however many they are."""
    shown = list(events)
    names = Names.in_events(shown)
    return [_entry(event, names) for event in shown]


def _entry(event: AuditEvent, names: Names) -> TrailEntry:
    said = disclose(event)
    fields, unchanged, erased = [], [], []
    for change in _all_fields(said, names):
        if change.before == change.after == ERASED:
            erased.append(change.name)
        elif change.before != change.after:
            fields.append(change)
        elif change.before:
            unchanged.append(change)
    tenant = (names.get(event.tenant_id) or str(event.tenant_id)) if event.tenant_id else ""
    return TrailEntry(event, said, tenant, fields, unchanged, sorted(erased))


def _all_fields(said: Disclosed, names: Names) -> Iterator[FieldChange]:
    before, after = said.before or {}, said.after or {}
    for name in [*after, *(name for name in before if name not in after)]:
        title = name.removesuffix("_id").replace("_", " ")
        yield FieldChange(
            title,
            _text(before, name, names),
            _text(after, name, names),
            said.before is not None and said.after is not None,
        )


def _text(values: Mapping[str, Any], name: str, names: Names) -> str:
    return _said(values.get(name), names)


def _said(value: Any, names: Names) -> str:
    match value:
        case None | "" | [] | {}:
            return ""
        case bool(flag):
            return "yes" if flag else "no"
        case int(count):
            return number(count)
        case str(text):
            return _said_of_text(text, names)
        case [*items]:
            return ", ".join(_said(item, names) for item in items)
        case dict(fields):
            return "; ".join(f"{name}: {_said(inner, names)}" for name, inner in fields.items())
        case _:
            return str(value)


def _said_of_text(text: str, names: Names) -> str:
    if text == MASK:
        return MASKED
    at = _time(text)
    return exactly(at) if at is not None else names.get(text) or text


def _time(text: str) -> datetime | None:
    """The time that ``text`` is, written as events write them; None: it is none."""
    if len(text) < 20 or text[4:5] != "-" or text[10:11] != "T":
        return None
    try:
        at = parse_datetime(text)
    except ValueError:
        return None
    return at if at is not None and at.tzinfo is not None else None
