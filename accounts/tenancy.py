"""The one place where tenancy is enforced.

Every model that belongs to a tenant has ``objects = TenantManager()``. Outside of a scope such a
manager's queries raise ``ScopeError``; inside ``tenant_scope(tenant_id)`` they see that tenant's
rows only, whatever else the query says; inside ``every_tenant(reason)`` (the operator's admin,
settlement, periodic tasks) they see all. What a view forgets to filter is therefore an error,
never a leak.

A scope lives in a context variable: it goes along into ``sync_to_async`` threads, and ends with its block.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar
from uuid import UUID

from django.db import models
from django_scopes import ScopeError, get_scope, scope, scopes_disabled

__all__ = ["ScopeError", "TenantManager", "every_tenant", "tenant_scope"]

_Row = TypeVar("_Row", bound=models.Model)


class TenantManager(models.Manager[_Row]):
    """A manager whose queries need a scope; ``path`` leads from the model to its tenant's id."""

    def __init__(self, path: str = "tenant") -> None:
        super().__init__()
        self._path = path

    def contribute_to_class(self, cls: type[models.Model], name: str) -> None:
        super().contribute_to_class(cls, name)
        # Kept on the model, because Django makes its related managers from this class without the argument.
        cls._tenant_path = self._path  # type: ignore[attr-defined]

    def get_queryset(self) -> models.QuerySet[_Row]:
        active = get_scope()
        if not active.get("_enabled", True):
            return super().get_queryset()
        if "tenant" not in active:
            return _UnscopedQuerySet(self.model, using=self._db)
        path: str = self.model._tenant_path  # type: ignore[attr-defined]
        return super().get_queryset().filter(**{path: active["tenant"]})


class _UnscopedQuerySet(models.QuerySet[_Row]):
    """What there is outside of a scope: rows can be made and nothing can be asked, not even whether there are any."""

    def none(self) -> Any:
        return models.QuerySet(self.model, using=self.db).none()

    def _refuse(self, *args: object, **kwargs: object) -> NoReturn:
        raise ScopeError(
            f"{self.model.__name__} rows belong to tenants: query them inside tenant_scope(tenant_id), or inside "
            "every_tenant(reason) where all tenants may be seen."
        )


#: Every way to ask a query set something, or to change what it holds; to make rows is none.
_WAYS = """
    __bool__ __getitem__ __iter__ __len__ _fetch_all resolve_expression
    aggregate alias all annotate complex_filter contains count dates datetimes defer delete difference distinct
    earliest exclude exists explain extra filter first get get_or_create in_bulk intersection iterator aiterator
    last latest only order_by prefetch_related raw reverse select_for_update select_related union
    update update_or_create bulk_update values values_list
"""
for _way in _WAYS.split():
    setattr(_UnscopedQuerySet, _way, _UnscopedQuerySet._refuse)


@contextmanager
def tenant_scope(tenant_id: UUID) -> Iterator[None]:
    """Queries inside see the rows of one tenant only."""
    if not isinstance(tenant_id, UUID):
        raise TypeError(f"tenant_scope() needs a tenant's id, not {tenant_id!r}")
    with scope(tenant=tenant_id):
        yield


@contextmanager
def every_tenant(reason: str) -> Iterator[None]:
    """Queries inside see every tenant's rows; ``reason`` tells the reader why that is right there."""
    if not reason:
        raise ValueError("every_tenant() needs the reason why all tenants may be seen here")
    with scopes_disabled():
        yield
