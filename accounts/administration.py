"""Administration with an API key: which tenants it reaches, and whose audit it reads.

What such a key may give to other keys is decided where keys are made (``accounts.key_rights``).
"""

from __future__ import annotations

from django.db.models import QuerySet

from accounts.models import Scope, Tenant
from accounts.principal import Principal


def administered(principal: Principal) -> QuerySet[Tenant]:
    """The tenants that ``principal`` may administer, closed ones too: every one, its own one, or none.

    The only place that decides it. What is not among them does not exist for the caller.
    """
    return _reached(principal, administers_all(principal))


def administers_all(principal: Principal) -> bool:
    """Whether it acts for the platform's operators, on every tenant."""
    return Scope.OPERATOR.value in principal.scopes


def audited(principal: Principal) -> QuerySet[Tenant]:
    """The tenants whose audit ``principal`` may read, closed ones too: every one, its own one, or none."""
    return _reached(principal, audits_all(principal))


def audits_all(principal: Principal) -> bool:
    """Whether it reads the whole audit, what is no tenant's included: for the operators, or for an auditor."""
    return not principal.scopes.isdisjoint({Scope.OPERATOR.value, Scope.AUDIT.value})


def _reached(principal: Principal, every_one: bool) -> QuerySet[Tenant]:
    if every_one:
        return Tenant.objects.all()
    if Scope.ADMIN.value in principal.scopes:
        return Tenant.objects.filter(id=principal.tenant_id)
    return Tenant.objects.none()
