"""Administration with an API key: which tenants it reaches.

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
    if administers_all(principal):
        return Tenant.objects.all()
    if Scope.ADMIN.value in principal.scopes:
        return Tenant.objects.filter(id=principal.tenant_id)
    return Tenant.objects.none()


def administers_all(principal: Principal) -> bool:
    """Whether it acts for the platform's operators, on every tenant."""
    return Scope.OPERATOR.value in principal.scopes
