"""The books of one tenant as the database has them, and what must be true of them at any time."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import pairwise
from uuid import UUID

from accounts.budget_windows import Period
from accounts.models import Allowance, BudgetWindow, LedgerEntry, Reservation
from accounts.tenancy import tenant_scope
from inference.models import Generation
from inference.models.generation import LIVE_STATES


@dataclass(frozen=True)
class Books:
    """``windows`` by allowance and period, oldest first."""

    live: int
    live_by_allowance: dict[UUID, int]
    windows: dict[tuple[UUID, Period], list[BudgetWindow]]
    reservations: list[Reservation]

    def reserved(self, allowance_id: UUID) -> set[int]:
        """What is reserved of the allowance, by each of its periods: one figure, if they agree."""
        return {
            sum(window.reserved for window in self.windows[allowance_id, period])
            for period in Period
            if (allowance_id, period) in self.windows
        }

    def used(self, allowance_id: UUID) -> set[int]:
        """What is used of the allowance, by each of its periods."""
        return {
            sum(window.used for window in self.windows[allowance_id, period])
            for period in Period
            if (allowance_id, period) in self.windows
        }


def checked_books(tenant_id: UUID) -> Books:
    """The tenant's books, which add up."""
    with tenant_scope(tenant_id):
        allowances = list(Allowance.objects.all())
        windows = list(BudgetWindow.objects.order_by("starts_at"))
        reservations = list(Reservation.objects.all())
        generations = {generation.id: generation for generation in Generation.objects.all()}
        entries = list(LedgerEntry.objects.all())
    by_period = defaultdict(list)
    for window in windows:
        by_period[window.allowance_id, Period(window.period)].append(window)

    for of in by_period.values():
        assert all(earlier.ends_at <= later.starts_at for earlier, later in pairwise(of)), (
            "two windows overlap"
        )
    _each_reservation_lies_in_one_window_of_each_period(reservations, by_period)
    for window in windows:
        held = [one for one in reservations if _is_held(one, window)]
        assert window.reserved == sum(one.tokens for one in held if one.settled_at is None)
        assert window.used == sum(one.settled_tokens or 0 for one in held)
    unsettled = {one.generation_id for one in reservations if one.settled_at is None}
    for allowance in allowances:
        mine = [one for one in reservations if allowance.id in one.allowance_ids]
        assert allowance.live_generations == sum(one.settled_at is None for one in mine)

    live = {one.id for one in generations.values() if one.state in LIVE_STATES}
    assert unsettled == live, "reservations that are not settled are those of the live generations"
    written = Counter(entry.generation_id for entry in entries)
    assert written == Counter(generations.keys() - live), "one ledger entry for each that has ended"
    settled = {one.generation_id: one for one in reservations if one.settled_at is not None}
    for entry in entries:
        reservation, generation = settled[entry.generation_id], generations[entry.generation_id]
        spent = entry.prompt_tokens + entry.completion_tokens
        assert spent == reservation.settled_tokens <= reservation.tokens
        assert spent == generation.prompt_tokens + generation.completion_tokens
    return Books(
        live=len(live),
        live_by_allowance={allowance.id: allowance.live_generations for allowance in allowances},
        windows=dict(by_period),
        reservations=reservations,
    )


def _each_reservation_lies_in_one_window_of_each_period(
    reservations: list[Reservation], by_period: dict[tuple[UUID, Period], list[BudgetWindow]]
) -> None:
    for reservation in reservations:
        for allowance_id in reservation.allowance_ids:
            for period in Period:
                around = [
                    window
                    for window in by_period.get((allowance_id, period), ())
                    if window.starts_at <= reservation.reserved_at < window.ends_at
                ]
                assert len(around) == 1


def _is_held(reservation: Reservation, window: BudgetWindow) -> bool:
    return (
        window.allowance_id in reservation.allowance_ids
        and window.starts_at <= reservation.reserved_at < window.ends_at
    )
