"""How much an entitlement or a key may use: made and changed with what it belongs to, in the caller's transaction."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.utils import timezone

from accounts import budget_events, reservations
from accounts.limits import LimitName, Limits
from accounts.models import Allowance, Tenant
from accounts.refusals import ChangeRefusal, ChangeRefused

#: The largest limit that can be set: what all supported databases store.
MOST = 2**63 - 1

UNLIMITED = Limits()


def create(tenant: Tenant, limits: Limits = UNLIMITED) -> Allowance:
    """A new allowance with ``limits``. Raises ``ChangeRefused``."""
    allowance: Allowance = Allowance.objects.create(tenant=tenant, **_values(_checked(limits)))
    return allowance


def change(allowance_id: UUID, limits: Limits) -> None:
    """Set its limits, for what is admitted from now on; what is used stays used. Raises ``ChangeRefused``.

    The row is locked first, as by every reservation.
    """
    _checked(limits)
    [allowance] = reservations.lock([allowance_id])
    Allowance.objects.filter(id=allowance_id).update(**_values(limits))
    budget_events.limits_changed(allowance, limits, timezone.now())


def audited(limits: Limits) -> dict[str, Any]:
    """The limits as an audit event has them: None where none is set."""
    return _values(limits)


def _values(limits: Limits) -> dict[str, int | None]:
    return {name.value: limits.of(name) for name in LimitName}


def _checked(limits: Limits) -> Limits:
    for name in LimitName:
        limit = limits.of(name)
        if limit is not None and not 0 <= limit <= MOST:
            raise ChangeRefused(
                ChangeRefusal.INVALID,
                f"The limit {name.value} is 0 (none at all) or more, or empty (no limit); this is {limit}.",
                field=name.value,
            )
    return limits
