"""What the ids in records are called: people, tenants, keys and entitlements by the names that they have now."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self
from uuid import UUID

from accounts.audit.reading import ERASED
from accounts.models import ApiKey, AuditEvent, Entitlement, Tenant, User
from accounts.tenancy import every_tenant


class Names:
    """Names by id. An id that nothing is called by has none."""

    def __init__(self, names: Mapping[UUID, str]) -> None:
        self._names = names

    @classmethod
    def of(cls, ids: Iterable[UUID | None]) -> Self:
        """Look the ``ids`` up: four queries, however many they are; without any, none."""
        wanted = {one for one in ids if one is not None}
        if not wanted:
            return cls({})
        with every_tenant("a record of any tenant is read, and says whom it is about"):
            names: dict[UUID, str] = {
                user_id: ERASED if erased_at else username
                for user_id, username, erased_at in User.objects.filter(id__in=wanted).values_list(
                    "id", "username", "erased_at"
                )
            }
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
        for event in events:
            found |= {*_ids_in(event.before), *_ids_in(event.after)}
            if event.tenant_id is not None:
                found.add(event.tenant_id)
        return cls.of(found)

    def get(self, value: UUID | str | None) -> str | None:
        """The name of an id, which may be written down as text; None: it has none, or it is no id."""
        return self._names.get(one) if (one := as_id(value)) is not None else None


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
