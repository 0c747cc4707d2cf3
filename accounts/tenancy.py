"""The one place where tenancy is enforced.

Every model that belongs to a tenant has ``objects = TenantManager()``. Outside of a scope such a
manager's queries raise ``ScopeError``; inside ``tenant_scope(tenant_id)`` they see that tenant's
rows only, whatever else the query says; inside ``every_tenant(reason)`` (the operator's admin,
settlement, periodic tasks) they see all. What a view forgets to filter is therefore an error,
never a leak.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from django_scopes import ScopedManager, ScopeError, scope, scopes_disabled

__all__ = ["ScopeError", "TenantManager", "every_tenant", "tenant_scope"]


def TenantManager(path: str = "tenant") -> Any:
    """A manager whose queries need a scope; ``path`` leads from the model to its tenant's id."""
    return ScopedManager(tenant=path)


@contextmanager
def tenant_scope(tenant_id: UUID) -> Iterator[None]:
    """Queries inside see the rows of one tenant only."""
    with scope(tenant=tenant_id):
        yield


@contextmanager
def every_tenant(reason: str) -> Iterator[None]:
    """Queries inside see every tenant's rows; ``reason`` tells the reader why that is right there."""
    if not reason:
        raise ValueError("every_tenant() needs the reason why all tenants may be seen here")
    with scopes_disabled():
        yield
