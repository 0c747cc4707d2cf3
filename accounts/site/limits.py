"""Where the limits of many allowances stand at once, for pages that show them beside each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from uuid import UUID

import redis
import structlog

from accounts import rates, reservations
from accounts.admin.consumption import Consumption, consumption_of
from accounts.limits import LimitState
from accounts.models import Allowance

_log = structlog.get_logger(__name__)


def consumption_of_all(
    allowances: Iterable[Allowance], now: datetime
) -> Mapping[UUID, tuple[Consumption, ...]]:
    """The limits that are set, by allowance, and where they stand; allowances have their tenant with them.

    One query and one step in Valkey, mostly. While Valkey is away no rate's state is known, and the page says so.
    """
    by_id = {allowance.id: allowance for allowance in allowances}
    states = reservations.states_of(by_id.values(), now)
    read = _rates(by_id.values())
    return {
        id_: tuple(
            row for row in consumption_of(allowance, (*states[id_], *read[id_])) if row.limit is not None
        )
        for id_, allowance in by_id.items()
    }


def _rates(allowances: Iterable[Allowance]) -> defaultdict[UUID, list[LimitState]]:
    wanted = [rate for allowance in allowances for rate in rates.rates_of(allowance.id, allowance.limits)]
    found: defaultdict[UUID, list[LimitState]] = defaultdict(list)
    try:
        states = rates.read(wanted)
    except redis.RedisError as error:
        _log.warning("rates_unknown", error=str(error))
        return found
    for rate, state in zip(wanted, states, strict=True):
        found[rate.allowance_id].append(state)
    return found
