"""What is used of an allowance's limits, for whoever sets them: words, figures and a small bar for each limit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import structlog
from django.template.loader import render_to_string
from django.utils.safestring import SafeString

from accounts import allowances, rates, reservations
from accounts.formatting import number
from accounts.limits import BUDGETS, LimitName, LimitState
from accounts.models import Allowance

_log = structlog.get_logger(__name__)

#: What people read for each limit.
TITLES: Final[Mapping[LimitName, str]] = {
    LimitName.TOKENS_PER_DAY: "Tokens a day",
    LimitName.TOKENS_PER_WEEK: "Tokens a week",
    LimitName.TOKENS_PER_MONTH: "Tokens a month",
    LimitName.REQUESTS_PER_MINUTE: "Requests a minute",
    LimitName.TOKENS_PER_MINUTE: "Tokens a minute",
    LimitName.CONCURRENCY: "At the same time",
}
#: From this share of a limit on, in percent, its bar and words say that it is running out.
NEARLY_USED_PERCENT: Final = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumption:
    """One limit and where it stands, in tokens or generations.

    ``limit``: None where none is set. ``state``: None where it is not known: a rate that is not set is not counted, and
    no rate is known while Valkey cannot be reached.
    """

    name: LimitName
    limit: int | None
    state: LimitState | None

    @property
    def title(self) -> str:
        """What the limit is called."""
        return TITLES[self.name]

    @property
    def figure(self) -> str:
        """How much of it is used, what is reserved included."""
        if self.state is None:
            return "no limit, and not counted" if self.limit is None else "unknown: Valkey cannot be reached"
        used = number(self.state.used)
        match self.limit:
            case None:
                return f"{used} used, no limit"
            case 0:
                return f"{used} used, none allowed"
            case limit:
                return f"{used} of {number(limit)} used ({self.percent} %)"

    @property
    def details(self) -> Sequence[str]:
        """What is left of it, and what is reserved but may come back."""
        if self.state is None:
            return ()
        details = []
        if self.limit is not None and self.state.over:
            details.append(f"over by {number(self.state.used - self.limit)}: nothing new is admitted")
        elif self.limit:
            details.append(f"{number(self.state.remaining)} left")
        if self.state.reserved:
            details.append(f"{number(self.state.reserved)} of it reserved by what runs")
        return details

    @property
    def resets_at(self) -> datetime | None:
        """When nothing of it is used any more. None: not known, nothing is used, or it ends with what runs."""
        return self.state.resets_at if self.state is not None and self.state.used else None

    @property
    def percent(self) -> int:
        """How much of it is used, in whole percent, rounded down; 0 where there is no limit."""
        return 100 * self.state.used // self.limit if self.state is not None and self.limit else 0

    @property
    def mark(self) -> str:
        """``over``, ``full`` or ``near`` where it is (nearly) used up, else empty."""
        if self.state is None or self.limit is None:
            return ""
        if self.state.over:
            return "over"
        if self.limit and self.state.remaining == 0:
            return "full"
        return "near" if self.limit and self.percent >= NEARLY_USED_PERCENT else ""

    @property
    def bar(self) -> tuple[float, float] | None:
        """How far its bar goes for what was used, and on from there for what is reserved, in percent. None: no bar."""
        if self.state is None or not self.limit:
            return None
        most = max(self.limit, self.state.used)
        reserved = 100 * self.state.reserved / most
        return round(100 * self.state.used / most - reserved, 2), round(reserved, 2)


def consumption_of(allowance: Allowance, states: Iterable[LimitState]) -> tuple[Consumption, ...]:
    """All six limits of ``allowance``, by ``states``: those of limits that are not set count as well."""
    by_name = {state.name: state for state in states}
    return tuple(
        Consumption(name=name, limit=allowance.limits.of(name), state=by_name.get(name)) for name in LimitName
    )


def read(allowance: Allowance, now: datetime) -> tuple[Consumption, ...]:
    """Where all six limits of ``allowance``, which has its tenant with it, stand at ``now``. One query, mostly.

    Budgets and what is live are counted whether they are limited or not, so that whoever sets a limit sees both.
    """
    budgets = reservations.states_of([_as_if_limited(allowance)], now)[allowance.id]
    in_a_minute = (rates.read_all([allowance]) or {}).get(allowance.id, ())
    return consumption_of(allowance, (*budgets, *in_a_minute))


def rendered(rows: Iterable[Consumption], *, titled: bool = True) -> SafeString:
    """``rows`` as HTML. Not ``titled``: each stands beside its limit's own field, which says which one it is."""
    return render_to_string("admin/consumption.html", {"rows": tuple(rows), "titled": titled})


def _as_if_limited(allowance: Allowance) -> Allowance:
    """A copy whose budgets and concurrency are all set: their states say what is used of each."""
    limited = copy(allowance)
    for name in (*BUDGETS, LimitName.CONCURRENCY):
        if allowance.limits.of(name) is None:
            setattr(limited, name.value, allowances.MOST)
    return limited
