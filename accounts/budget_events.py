"""That a budget came to 80 % or 100 % of its limit: written once a window, in the transaction that moved it there.

80 %: what is used (settled, not only reserved) has come to 80 % of the limit. 100 %: it has come to the limit, or a
request was refused because it did not fit in what was left. Whoever writes here holds the allowance's lock, and moves
``BudgetWindow.told_percent`` by a conditional update: of all who see a share reached, one writes the event. Telling
people and programs is ``accounts.budget_telling``'s.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from django.db import transaction
from django.db.models import QuerySet

from accounts.budget_thresholds import PERCENTS, newly_reached, told_after_change
from accounts.budget_windows import Period
from accounts.limits import BUDGETS, Limits, LimitState
from accounts.models import Allowance, ApiKey, BudgetEvent, BudgetWindow, Entitlement
from accounts.tenancy import tenant_scope

_LONGEST_SUBJECT = 200


def settled(allowances: Iterable[Allowance], windows: QuerySet[BudgetWindow], now: datetime) -> None:
    """Write what the ``windows`` have come to, after a settlement moved them, in its transaction.

    ``allowances``: those that the windows are of, as they were locked. A window that has ended by ``now`` is not told
    of: nobody can do anything about it any more.
    """
    limited = {
        allowance.id: allowance
        for allowance in allowances
        if any(allowance.limits.of(name) is not None for name in BUDGETS)
    }
    if not limited:
        return
    for window in windows.filter(allowance__in=limited, ends_at__gt=now):
        allowance = limited[window.allowance_id]
        limit = _limit(allowance.limits, window)
        _write(allowance, window, limit, newly_reached(window.used, limit, window.told_percent))


def limits_changed(allowance: Allowance, limits: Limits, now: datetime) -> None:
    """Follow a change of the limits of ``allowance``, given as it was locked, in the transaction that made it.

    A budget that was lowered may have come to a share by that. One that was raised is told anew when it comes to a
    share again: that event takes the place of the earlier one.
    """
    for window in BudgetWindow.objects.filter(allowance=allowance, starts_at__lte=now, ends_at__gt=now):
        limit = _limit(limits, window)
        told = told_after_change(window.told_percent, window.used, _limit(allowance.limits, window), limit)
        if told != window.told_percent:
            BudgetWindow.objects.filter(id=window.id).update(told_percent=told)
            window.told_percent = told
        _write(allowance, window, limit, newly_reached(window.used, limit, told))


def refused(allowance: Allowance, limit: LimitState, tokens: int, now: datetime) -> None:
    """A request of ``tokens`` was refused because it did not fit in ``limit`` of ``allowance``.

    The first such refusal in a window is its 100 %, in a transaction of its own: the request's was rolled back, or
    never begun. A request that would not fit in the whole budget says nothing about it. All further ones cost one
    query.
    """
    if not limit.name.is_budget or limit.never_allows(tokens):
        return
    with tenant_scope(allowance.tenant_id):
        untold = BudgetWindow.objects.filter(
            allowance=allowance,
            period=_period(limit).value,
            starts_at__lte=now,
            ends_at__gt=now,
            told_percent__lt=PERCENTS[-1],
        )
        if not untold.exists():
            return
        with transaction.atomic():
            locked = Allowance.objects.select_for_update(of=("self",), no_key=True).get(id=allowance.id)
            window = untold.first()
            current = locked.limits.of(limit.name)
            # It was told meanwhile, or the limit was raised since the request met it.
            if window is None or current is None or current > limit.limit:
                return
            _write(locked, window, current, PERCENTS[-1:])


def _write(allowance: Allowance, window: BudgetWindow, limit: int | None, percents: tuple[int, ...]) -> None:
    if limit is None or not percents:
        return
    untold = BudgetWindow.objects.filter(id=window.id, told_percent=window.told_percent)
    if not untold.update(told_percent=percents[-1]):
        return
    # Told before a limit was raised, and now again.
    BudgetEvent.objects.filter(window=window, percent__in=percents).delete()
    subject = _subject(allowance)
    BudgetEvent.objects.bulk_create(
        BudgetEvent(
            tenant_id=allowance.tenant_id,
            allowance_id=allowance.id,
            window=window,
            subject=subject,
            percent=percent,
            limit=limit,
            used=window.used,
            reserved=window.reserved,
            resets_at=window.ends_at,
        )
        for percent in percents
    )


def _limit(limits: Limits, window: BudgetWindow) -> int | None:
    return limits.of(Period(window.period).limit_name)


def _period(limit: LimitState) -> Period:
    return next(period for period in Period if period.limit_name == limit.name)


def _subject(allowance: Allowance) -> str:
    """Whose budget it is, for people: the lane that it was granted in, or the key that works by it now."""
    entitlement = Entitlement.objects.filter(allowance=allowance).first()
    if entitlement is not None:
        kind = "" if entitlement.ends_at is None else f", until {entitlement.ends_at:%Y-%m-%d %H:%M} UTC"
        return f"lane {entitlement.lane_id}{kind}"
    key = ApiKey.objects.filter(allowance=allowance).order_by("-created_at").first()
    return f"API key {key}"[:_LONGEST_SUBJECT] if key is not None else str(allowance)
