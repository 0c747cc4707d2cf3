"""Where the limits of many allowances stand at once, for lists: as few questions for a hundred rows as for one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from uuid import UUID

import structlog

from accounts import rates, reservations
from accounts.consumption import Consumption, consumption_of
from accounts.models import Allowance

_log = structlog.get_logger(__name__)


def read_limited(allowances: Collection[Allowance], now: datetime) -> Mapping[UUID, tuple[Consumption, ...]]:
    """The limits that are set, by allowance, which have their tenant with them. Rates are unknown without Valkey."""
    budgets = reservations.states_of(allowances, now)
    in_a_minute = rates.read_all(allowances) or {}
    return {
        allowance.id: tuple(
            row
            for row in consumption_of(allowance, (*budgets[allowance.id], *in_a_minute.get(allowance.id, ())))
            if row.limit is not None
        )
        for allowance in allowances
    }


def fullest(rows: Sequence[Consumption]) -> Consumption | None:
    """The limit of which most is used; None: nothing is known of any."""
    known = [row for row in rows if row.state is not None]
    return max(known, key=lambda row: (row.mark != "", row.percent), default=None)
