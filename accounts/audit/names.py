"""What the ids in records are called: tenants, keys and entitlements by the names that they have now, people by those
that the audit has of them.

The row of a user can be written past everything, and says what they are called now. What they were called stands beside
the events, with a commitment in the chain.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final, Self
from uuid import UUID

from django.db.models import Max

from accounts.audit.reading import ERASED
from accounts.models import ApiKey, AuditEvent, AuditPersonalValue, Entitlement, Tenant, User
from accounts.tenancy import every_tenant

#: Where events name a user; of one that does it twice, the last says what they were called after it.
_NAMED_AT: Final = ("actor_name", "after.username")


class Names:
    """Names by id. An id that nothing is called by has none."""

    def __init__(self, names: Mapping[UUID, str]) -> None:
        self._names = names

    @classmethod
    def of(cls, ids: Iterable[UUID | None], *, until: datetime | None = None) -> Self:
        """Look the ``ids`` up: seven queries at most, however many they are; without any, none.

        People are called what the events until then (None: all) call them last, with what they are called now, if that
        is something else.
        """
        wanted = {one for one in ids if one is not None}
        if not wanted:
            return cls({})
        with every_tenant("a record of any tenant is read, and says whom it is about"):
            names: dict[UUID, str] = _people(wanted, until)
            names |= dict(Tenant.objects.filter(id__in=wanted).values_list("id", "name"))
            for key in ApiKey.objects.filter(id__in=wanted):
                names[key.id] = str(key)
            for entitlement in Entitlement.objects.filter(id__in=wanted).select_related("tenant"):
                names[entitlement.id] = str(entitlement)
        return cls(names)

    @classmethod
    def in_events(cls, events: Iterable[AuditEvent]) -> Self:
        """Look up every id that stands in a field of ``events``, and whose tenant they are about."""
        found: set[UUID] = set()
        until: datetime | None = None
        for event in events:
            found |= {*_ids_in(event.before), *_ids_in(event.after)}
            if event.tenant_id is not None:
                found.add(event.tenant_id)
            until = event.at if until is None else max(until, event.at)
        return cls.of(found, until=until)

    def get(self, value: UUID | str | None) -> str | None:
        """The name of an id, which may be written down as text; None: it has none, or it is no id."""
        return self._names.get(one) if (one := as_id(value)) is not None else None


def _people(ids: Collection[UUID], until: datetime | None) -> dict[UUID, str]:
    users = User.objects.filter(id__in=ids).values_list("id", "username", "erased_at")
    rows = {user_id: ERASED if erased_at else username for user_id, username, erased_at in users}
    recorded = _recorded(rows, until)
    return {user_id: _called(recorded.get(user_id, now), now) for user_id, now in rows.items()}


def _called(then: str, now: str) -> str:
    """A name of a person, and what they are called now, if that is something else."""
    return now if now in (then, ERASED) else f"{then} (now {now})"


def _recorded(people: Collection[UUID], until: datetime | None) -> dict[UUID, str]:
    """What the audit has last named each of ``people``, ``until`` then. Of archived events it is not known when."""
    if not people:
        return {}
    values = AuditPersonalValue.objects.filter(person_id__in=list(people), path__in=_NAMED_AT)
    if until is not None:
        by_then = AuditEvent.objects.filter(at__lte=until).order_by("-at", "-sequence")
        values = values.filter(event_id__lte=by_then.values_list("sequence", flat=True).first() or 0)
    latest = values.order_by().values("person_id").annotate(last=Max("event_id")).values("last")
    named = values.filter(event_id__in=latest).order_by("event_id", "path")
    return {person_id: name for person_id, name in named.values_list("person_id", "value") if person_id}


def as_id(value: Any) -> UUID | None:
    """``value`` as an id, where it is one as records write them."""
    if isinstance(value, UUID):
        return value
    if not isinstance(value, str) or len(value) != 36:
        return None
    try:
        return UUID(value)
    except ValueError:
        return None


def _ids_in(value: Any) -> Iterator[UUID]:
    match value:
        case Mapping():
            for inner in value.values():
                yield from _ids_in(inner)
        case list():
            for inner in value:
                yield from _ids_in(inner)
        case _ if (found := as_id(value)) is not None:
            yield found
