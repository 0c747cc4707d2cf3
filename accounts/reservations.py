"""Budgets and concurrency: held back at worst at admission, settled exactly at the end. In the caller's transaction.

The allowance rows are locked first, in the order of their ids, by whoever reserves, settles or changes a limit. What
follows under that lock is decided by what it says, and nothing can come in between: no budget is overspent by
requests that come at once, whichever process they hit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from uuid import UUID
from zoneinfo import ZoneInfo

from django.db.models import F, Max, QuerySet

from accounts import budget_events
from accounts.budget_windows import Period, window_at
from accounts.limits import LimitName, LimitState, shortage
from accounts.models import Allowance, BudgetWindow, Reservation

#: Where the limits stand that are set, by allowance: budgets and concurrency. Rates are ``accounts.rates``'.
States = Mapping[UUID, tuple[LimitState, ...]]


class Short(Exception):
    """A reservation does not fit: the caller's transaction is to be rolled back."""

    def __init__(self, allowance_id: UUID, state: LimitState) -> None:
        super().__init__(f"{state.name} of allowance {allowance_id}: {state.used} of {state.limit} used")
        self.allowance_id = allowance_id
        self.state = state


def states_of(allowances: Collection[Allowance], now: datetime) -> States:
    """Where their budgets and their concurrency stand at ``now``. Allowances have their tenant with them.

    One query; one more where a budget has not been used in its current window yet.
    """
    windows = _current(BudgetWindow.objects.filter(allowance__in=allowances), now)
    limited = [
        (allowance, period)
        for allowance in allowances
        for period in Period
        if allowance.limits.of(period.limit_name) is not None
    ]
    unopened = _unopened(limited, windows, now)
    return {
        allowance.id: _states(allowance, {**unopened[allowance.id], **windows[allowance.id]})
        for allowance in allowances
    }


def reserve(
    *,
    generation_id: UUID,
    tenant_id: UUID,
    entitlement_allowance_id: UUID,
    key_allowance_id: UUID | None,
    tokens: int,
    now: datetime,
) -> States:
    """Hold ``tokens`` and one place among the live back for a generation; where the limits stand then.

    Raises ``Short`` for the first allowance that it does not fit in; the transaction must be rolled back then.
    """
    reservation = Reservation(
        generation_id=generation_id,
        tenant_id=tenant_id,
        entitlement_allowance_id=entitlement_allowance_id,
        key_allowance_id=key_allowance_id,
        tokens=tokens,
        reserved_at=now,
    )
    allowances = lock(reservation.allowance_ids)
    windows = _current(BudgetWindow.objects.filter(allowance__in=allowances), now)
    unopened = _unopened([(allowance, period) for allowance in allowances for period in Period], windows, now)
    for allowance in allowances:
        windows[allowance.id].update(unopened[allowance.id])
        short = shortage(_states(allowance, windows[allowance.id]), tokens)
        if short is not None:
            raise Short(allowance.id, short)
    BudgetWindow.objects.bulk_create([window for of in unopened.values() for window in of.values()])
    held = [window for of in windows.values() for window in of.values()]
    BudgetWindow.objects.filter(id__in=[window.id for window in held]).update(reserved=F("reserved") + tokens)
    Allowance.objects.filter(id__in=reservation.allowance_ids).update(
        live_generations=F("live_generations") + 1
    )
    reservation.save(force_insert=True)
    for window in held:
        window.reserved += tokens
    for allowance in allowances:
        allowance.live_generations += 1
    return {allowance.id: _states(allowance, windows[allowance.id]) for allowance in allowances}


def settle(generation_id: UUID, tokens: int, now: datetime) -> Reservation | None:
    """Let a generation's reservation go, and count the ``tokens`` that it really used, in the windows it was made in.

    None: it has none (it was accepted before there were any), or was settled already.
    """
    reservation = Reservation.objects.filter(generation_id=generation_id, settled_at=None).first()
    if reservation is None:
        return None
    allowances = lock(reservation.allowance_ids)
    if not Reservation.objects.filter(generation_id=generation_id, settled_at=None).update(
        settled_tokens=tokens, settled_at=now
    ):
        return None
    Allowance.objects.filter(id__in=reservation.allowance_ids).update(
        live_generations=F("live_generations") - 1
    )
    windows_of(reservation).update(reserved=F("reserved") - reservation.tokens, used=F("used") + tokens)
    budget_events.settled(allowances, windows_of(reservation), now)
    return reservation


def lock(allowance_ids: Iterable[UUID]) -> list[Allowance]:
    """The allowances, with their tenants, locked until the transaction ends, in the one order that everybody takes."""
    return list(
        Allowance.objects.select_for_update(of=("self",), no_key=True)
        .select_related("tenant")
        .filter(id__in=list(allowance_ids))
        .order_by("id")
    )


def windows_of(reservation: Reservation) -> QuerySet[BudgetWindow]:
    """The windows that ``reservation`` was made in, and is settled in."""
    at = reservation.reserved_at
    windows: QuerySet[BudgetWindow] = BudgetWindow.objects.filter(
        allowance__in=reservation.allowance_ids, starts_at__lte=at, ends_at__gt=at
    )
    return windows


_WindowsByPeriod = dict[Period, BudgetWindow]


def _current(windows: QuerySet[BudgetWindow], now: datetime) -> defaultdict[UUID, _WindowsByPeriod]:
    by_allowance: defaultdict[UUID, _WindowsByPeriod] = defaultdict(dict)
    for window in windows.filter(starts_at__lte=now, ends_at__gt=now):
        by_allowance[window.allowance_id][Period(window.period)] = window
    return by_allowance


def _states(allowance: Allowance, windows: _WindowsByPeriod) -> tuple[LimitState, ...]:
    """``windows``: those of the periods that are limited, at least."""
    states = []
    for period in Period:
        limit = allowance.limits.of(period.limit_name)
        if limit is None:
            continue
        window = windows[period]
        states.append(
            LimitState(
                name=period.limit_name,
                limit=limit,
                used=window.used + window.reserved,
                reserved=window.reserved,
                resets_at=window.ends_at,
            )
        )
    if allowance.concurrency is not None:
        live = allowance.live_generations
        states.append(LimitState(name=LimitName.CONCURRENCY, limit=allowance.concurrency, used=live))
    return tuple(states)


def _unopened(
    asked: Iterable[tuple[Allowance, Period]], current: Mapping[UUID, _WindowsByPeriod], now: datetime
) -> defaultdict[UUID, _WindowsByPeriod]:
    """The windows that the first reservation at ``now`` opens: those ``asked`` for that are not ``current``. Not saved.

    One query for all of them, and none where there are none.
    """
    missing = [
        (allowance, period) for allowance, period in asked if period not in current.get(allowance.id, {})
    ]
    opened: defaultdict[UUID, _WindowsByPeriod] = defaultdict(dict)
    if not missing:
        return opened
    ends: dict[tuple[UUID, str], datetime] = {
        (allowance_id, period): end
        for allowance_id, period, end in BudgetWindow.objects.filter(
            allowance__in={allowance.id for allowance, _ in missing}, ends_at__lte=now
        )
        .order_by()
        .values_list("allowance_id", "period")
        .annotate(Max("ends_at"))
    }
    for allowance, period in missing:
        window = window_at(
            period,
            now,
            ZoneInfo(allowance.tenant.time_zone),
            previous_end=ends.get((allowance.id, period.value)),
        )
        opened[allowance.id][period] = BudgetWindow(
            allowance=allowance, period=period.value, starts_at=window.starts_at, ends_at=window.ends_at
        )
    return opened
