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

from django.db.models import F, QuerySet

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
    """Where their budgets and their concurrency stand at ``now``; one query. Allowances have their tenant with them."""
    windows = _current(BudgetWindow.objects.filter(allowance__in=allowances), now)
    return {allowance.id: _states(allowance, windows[allowance.id], now) for allowance in allowances}


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
    missing = [
        _open_window(allowance, period, now)
        for allowance in allowances
        for period in Period
        if period not in windows[allowance.id]
    ]
    for allowance in allowances:
        short = shortage(_states(allowance, windows[allowance.id], now), tokens)
        if short is not None:
            raise Short(allowance.id, short)
    for window in missing:
        windows[window.allowance_id][Period(window.period)] = window
    BudgetWindow.objects.bulk_create(missing)
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
    return {allowance.id: _states(allowance, windows[allowance.id], now) for allowance in allowances}


def settle(generation_id: UUID, tokens: int, now: datetime) -> Reservation | None:
    """Let a generation's reservation go, and count the ``tokens`` that it really used, in the windows it was made in.

    None: it has none (it was accepted before there were any), or was settled already.
    """
    reservation = Reservation.objects.filter(generation_id=generation_id, settled_at=None).first()
    if reservation is None:
        return None
    lock(reservation.allowance_ids)
    if not Reservation.objects.filter(generation_id=generation_id, settled_at=None).update(
        settled_tokens=tokens, settled_at=now
    ):
        return None
    Allowance.objects.filter(id__in=reservation.allowance_ids).update(
        live_generations=F("live_generations") - 1
    )
    windows_of(reservation).update(reserved=F("reserved") - reservation.tokens, used=F("used") + tokens)
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


def _states(allowance: Allowance, windows: _WindowsByPeriod, now: datetime) -> tuple[LimitState, ...]:
    states = []
    for period in Period:
        limit = allowance.limits.of(period.limit_name)
        if limit is None:
            continue
        window = windows.get(period)
        states.append(
            LimitState(
                name=period.limit_name,
                limit=limit,
                used=window.used + window.reserved if window else 0,
                reserved=window.reserved if window else 0,
                resets_at=window.ends_at if window else _open_window(allowance, period, now).ends_at,
            )
        )
    if allowance.concurrency is not None:
        live = allowance.live_generations
        states.append(LimitState(name=LimitName.CONCURRENCY, limit=allowance.concurrency, used=live))
    return tuple(states)


def _open_window(allowance: Allowance, period: Period, now: datetime) -> BudgetWindow:
    """The window that the first reservation at ``now`` opens; not saved."""
    previous = BudgetWindow.objects.filter(allowance=allowance, period=period, ends_at__lte=now).first()
    window = window_at(
        period,
        now,
        ZoneInfo(allowance.tenant.time_zone),
        previous_end=previous.ends_at if previous else None,
    )
    return BudgetWindow(
        allowance=allowance, period=period.value, starts_at=window.starts_at, ends_at=window.ends_at
    )
