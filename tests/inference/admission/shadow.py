"""The simplest model of the books: what is predicted of admissions, without the product's rules or calendar."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import UUID
from zoneinfo import ZoneInfo

from accounts.budget_windows import Period
from accounts.limits import LimitName, Limits

RANKS = {"high": 0, "normal": 1, "low": 2}
_NEVER = datetime.max.replace(tzinfo=UTC)
_TOKENS = {
    LimitName.TOKENS_PER_DAY: Period.DAY,
    LimitName.TOKENS_PER_WEEK: Period.WEEK,
    LimitName.TOKENS_PER_MONTH: Period.MONTH,
}


def _name_of_period(period: Period, at: datetime, zone: ZoneInfo) -> tuple[int, ...]:
    """What a calendar on the wall in ``zone`` calls the period."""
    day = at.astimezone(zone).date()
    match period:
        case Period.DAY:
            return (day.year, day.month, day.day)
        case Period.WEEK:
            return tuple(day.isocalendar())[:2]
        case Period.MONTH:
            return (day.year, day.month)


def edges(period: Period, at: datetime, zone: ZoneInfo) -> tuple[datetime, datetime]:
    """The first moment of the period around ``at``, and the first one after it: found by halving, not computed."""
    name = _name_of_period(period, at, zone)
    return _edge(period, name, at, at - timedelta(days=40), zone), _edge(
        period, name, at, at + timedelta(days=40), zone
    )


def _edge(
    period: Period, name: tuple[int, ...], inside: datetime, outside: datetime, zone: ZoneInfo
) -> datetime:
    forwards = outside > inside
    # Clocks change, and days begin, at whole seconds.
    near, far = int(inside.timestamp()), int(outside.timestamp())
    while abs(far - near) > 1:
        middle = (near + far) // 2
        if _name_of_period(period, datetime.fromtimestamp(middle, UTC), zone) == name:
            near = middle
        else:
            far = middle
    return datetime.fromtimestamp(far if forwards else near, UTC)


@dataclass
class ShadowWindow:
    starts_at: datetime
    ends_at: datetime
    used: int = 0
    reserved: int = 0


@dataclass(frozen=True)
class Short:
    """A limit that a request does not fit in."""

    name: LimitName
    limit: int
    used: int


@dataclass
class ShadowAllowance:
    """What one allowance has used. Rates never lapse here: no run of the machine takes a minute."""

    id: UUID
    limits: Limits
    live: int = 0
    rates: Counter[LimitName] = field(default_factory=Counter)
    windows: dict[Period, list[ShadowWindow]] = field(
        default_factory=lambda: {period: [] for period in Period}
    )

    def shorts(self, tokens: int, now: datetime) -> set[Short]:
        """The limits that a request of ``tokens`` does not fit in."""
        found = set()
        for name in LimitName:
            limit = self.limits.of(name)
            if limit is None:
                continue
            used = self._used(name, now)
            if used + (tokens if name.value.startswith("tokens") else 1) > limit:
                found.add(Short(name, limit, used))
        return found

    def _used(self, name: LimitName, now: datetime) -> int:
        if name in _TOKENS:
            window = self._at(_TOKENS[name], now)
            return window.used + window.reserved if window else 0
        return self.live if name is LimitName.CONCURRENCY else self.rates[name]

    def take_rates(self, tokens: int) -> None:
        for name in (LimitName.REQUESTS_PER_MINUTE, LimitName.TOKENS_PER_MINUTE):
            if self.limits.of(name) is not None:
                self.rates[name] += tokens if name is LimitName.TOKENS_PER_MINUTE else 1

    def reserve(self, tokens: int, now: datetime, zone: ZoneInfo) -> None:
        self.live += 1
        for period in Period:
            window = self._at(period, now)
            if window is None:
                starts_at, ends_at = edges(period, now, zone)
                earlier = [one.ends_at for one in self.windows[period]]
                window = ShadowWindow(max([starts_at, *earlier]), ends_at)
                self.windows[period].append(window)
            window.reserved += tokens

    def settle(self, reserved: int, used: int, reserved_at: datetime) -> None:
        self.live -= 1
        for period in Period:
            window = self._at(period, reserved_at)
            assert window is not None
            window.reserved -= reserved
            window.used += used

    def _at(self, period: Period, now: datetime) -> ShadowWindow | None:
        around = [one for one in self.windows[period] if one.starts_at <= now < one.ends_at]
        assert len(around) <= 1
        return around[0] if around else None


@dataclass
class ShadowRight:
    """One entitlement."""

    id: UUID
    lane: str
    allowance: ShadowAllowance
    ends_at: datetime | None = None
    step_down_to: str | None = None
    ended: bool = False

    def gives_at(self, now: datetime) -> bool:
        return not self.ended and (self.ends_at is None or now < self.ends_at)


@dataclass(frozen=True)
class Prediction:
    """What a request gets: a right, or a refusal for one of the ``shorts``; or for none, if it is not ``entitled``."""

    right: ShadowRight | None
    entitled: bool
    shorts: frozenset[Short]


def predict(
    lane: str, tokens: int, now: datetime, key: ShadowAllowance | None, rights: list[ShadowRight]
) -> Prediction:
    """What a request for ``lane`` gets that may use ``tokens``."""
    living = [right for right in rights if right.gives_at(now)]
    tried = key.shorts(tokens, now) if key else set()
    kept_out_by_key = bool(tried)
    found = _fitting(lane, tokens, now, living, tried)
    return Prediction(
        right=None if kept_out_by_key else found,
        entitled=any(RANKS[right.lane] >= RANKS[lane] for right in living),
        shorts=frozenset(tried),
    )


def _fitting(
    lane: str, tokens: int, now: datetime, living: list[ShadowRight], tried: set[Short]
) -> ShadowRight | None:
    wanted: str | None = lane
    while wanted is not None:
        rank = RANKS[wanted]
        lanes = sorted({right.lane for right in living if RANKS[right.lane] >= rank}, key=RANKS.__getitem__)
        if not lanes:
            return None
        here = [right for right in living if right.lane == lanes[0]]
        here.sort(key=lambda right: (right.ends_at or _NEVER, right.id))
        for right in here:
            shorts = right.allowance.shorts(tokens, now)
            if not shorts:
                return right
            tried |= shorts
        wanted = here[-1].step_down_to
    return None
