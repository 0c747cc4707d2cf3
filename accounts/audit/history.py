"""What the chain tells about things up to a moment: what was done to them, by whom, and what they were like then."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from accounts.audit.reading import disclosable
from accounts.models import AuditEvent


@dataclass(frozen=True, slots=True)
class History:
    """The events about one thing, the oldest first. Those that were archived are not among them."""

    events: Sequence[AuditEvent] = ()

    #: Its fields as the last events left them. Not every event tells all of them.
    fields: Mapping[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        fields: dict[str, Any] = {}
        for event in self.events:
            fields |= event.after or {}
        object.__setattr__(self, "fields", fields)

    def first(self, *actions: str) -> AuditEvent | None:
        """The first event with one of these ``actions``."""
        return next((event for event in self.events if event.action in actions), None)

    def every(self, *actions: str) -> list[AuditEvent]:
        """The events with one of these ``actions``."""
        return [event for event in self.events if event.action in actions]


def histories(kind: str, ids: Collection[object], until: datetime | None = None) -> Mapping[str, History]:
    """The events about each of these things, by its id as text; ``until`` and that moment included (None: all).

    Two queries. Events can be told with ``disclose`` without a further one.
    """
    events = AuditEvent.objects.filter(object_kind=kind, object_id__in=[str(one) for one in ids])
    if until is not None:
        events = events.filter(at__lte=until)
    found: dict[str, list[AuditEvent]] = {str(one): [] for one in ids}
    for event in disclosable(events.order_by("sequence")):
        found[event.object_id].append(event)
    return {one: History(events) for one, events in found.items()}
