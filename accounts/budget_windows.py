"""The calendar windows that budgets are kept in: a day, a week or a month of the tenant's own calendar. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from zoneinfo import ZoneInfo

from accounts.limits import LimitName


class Period(StrEnum):
    """How long a budget's window is."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"

    @property
    def limit_name(self) -> LimitName:
        """The limit that is counted in windows of this length."""
        return LimitName(f"tokens_per_{self.value}")


@dataclass(frozen=True, slots=True)
class Window:
    """From ``starts_at`` until just before ``ends_at``, in UTC."""

    starts_at: datetime
    ends_at: datetime


def window_at(
    period: Period, at: datetime, zone: ZoneInfo, *, previous_end: datetime | None = None
) -> Window:
    """The window of ``period`` that ``at`` lies in, by the calendar of ``zone``: weeks begin on Monday.

    ``previous_end`` is when the last window that was used ended, at or before ``at``: where the tenant has moved to
    another time zone since, the new window begins no earlier, so that no moment lies in two.
    """
    first = _first_day(period, at.astimezone(zone).date())
    # Where clocks are put back over midnight, its date comes round again in the day that has begun.
    if at >= _midnight(_first_day_after(period, first), zone):
        first = _first_day_after(period, first)
    starts_at, ends_at = _midnight(first, zone), _midnight(_first_day_after(period, first), zone)
    if previous_end is not None:
        starts_at = max(starts_at, previous_end)
    return Window(starts_at, ends_at)


def _first_day(period: Period, day: date) -> date:
    match period:
        case Period.DAY:
            return day
        case Period.WEEK:
            return day - timedelta(days=day.weekday())
        case Period.MONTH:
            return day.replace(day=1)


def _first_day_after(period: Period, first: date) -> date:
    match period:
        case Period.DAY:
            return first + timedelta(days=1)
        case Period.WEEK:
            return first + timedelta(days=7)
        case Period.MONTH:
            return (first + timedelta(days=32)).replace(day=1)


def _midnight(day: date, zone: ZoneInfo) -> datetime:
    """When ``day`` begins in ``zone``, in UTC: where the clocks jump over midnight, the first moment after it."""
    return datetime.combine(day, time.min, zone).astimezone(UTC)
