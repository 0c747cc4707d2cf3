"""Which lane a request gets, by what right: the rule. Pure.

What a client asks for only ever narrows what it may have. The rule takes plain values that ``accounts.admission`` reads
from the database and from Valkey, and the clock as an argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from accounts.limits import LimitState, shortage
from accounts.models.assignment import AssignmentReason

#: The rule's version, kept with each assignment: raise it when ``resolve_lane`` decides differently.
POLICY_VERSION = 2
#: The lane of a request that asks for none, with a key that has no default.
TENANT_DEFAULT_LANE = "normal"
#: What a client says to ask for no lane in particular.
AUTO = "auto"


class Denial(StrEnum):
    """Why no lane was given: the same code in the API, the log and the metrics."""

    UNKNOWN_LANE = "unknown_lane"
    NO_ENTITLEMENT = "no_entitlement"
    INSUFFICIENT_QUOTA = "insufficient_quota"
    RATE_LIMIT_EXCEEDED = "rate_limit_exceeded"
    CONCURRENCY_LIMIT_EXCEEDED = "concurrency_limit_exceeded"

    @classmethod
    def of_limit(cls, state: LimitState) -> Denial:
        """The code for a limit that a request did not fit in."""
        if state.name.is_budget:
            return cls.INSUFFICIENT_QUOTA
        return cls.RATE_LIMIT_EXCEEDED if state.name.is_rate else cls.CONCURRENCY_LIMIT_EXCEEDED


class Refused(Exception):
    """The tenant gets no lane for this request; nothing was written.

    ``limit``: the limit that was short, where one was, ``subject`` whose it is (a lane, or the key), and
    ``entitlement_id`` the entitlement that has it; None: the key.
    """

    def __init__(
        self,
        code: Denial,
        message: str,
        *,
        limit: LimitState | None = None,
        subject: str = "",
        entitlement_id: UUID | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.limit = limit
        self.subject = subject
        self.entitlement_id = entitlement_id


@dataclass(frozen=True, slots=True)
class LaneChoice:
    """A lane as the rule sees it. ``rank`` 0 is the highest."""

    name: str
    rank: int
    service_tier: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a request asks for: a lane's name, a service tier, ``auto`` or nothing; and its tokens at worst.

    ``prompt_tokens`` of those ``tokens`` are its prompt's.
    """

    requested: str | None
    tokens: int
    prompt_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRights:
    """What a key narrows. Empty ``allowed_lanes``: it allows every lane. ``limits``: where its own limits stand."""

    default_lane: str | None = None
    allowed_lanes: frozenset[str] = frozenset()
    limits: tuple[LimitState, ...] = ()

    def allows(self, lane: str) -> bool:
        """Whether its requests may have ``lane``."""
        return not self.allowed_lanes or lane in self.allowed_lanes


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """One entitlement as the rule sees it. ``limits``: where those that are set stand.

    It gives nothing before ``starts_at`` or from ``ends_at`` on; None: no such bound. ``step_down_to``: the lane that
    its lane goes down to when it is exhausted; None: refuse.
    """

    entitlement_id: UUID
    lane: str
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    step_down_to: str | None = None
    limits: tuple[LimitState, ...] = ()

    def gives_at(self, now: datetime) -> bool:
        """Whether it gives its rights at ``now``."""
        return (self.starts_at is None or self.starts_at <= now) and (
            self.ends_at is None or now < self.ends_at
        )


@dataclass(frozen=True, slots=True)
class StepDown:
    """A lane that a request did not fit in, and the limit that was short."""

    lane: str
    entitlement_id: UUID
    limit: LimitState


@dataclass(frozen=True, slots=True)
class Resolution:
    """The lane that was given, by which entitlement, and why."""

    lane: LaneChoice
    entitlement_id: UUID
    reason: AssignmentReason
    step_downs: tuple[StepDown, ...] = ()


def resolve_lane(
    wish: Wish, key: KeyRights, rights: Iterable[Right], lanes: Sequence[LaneChoice], now: datetime
) -> Resolution:
    """Decide the lane of one request.

    1. The lane wanted is what was asked for, else the key's default, else ``normal``.
    2. A lane that the tenant is not entitled to now, or the key is not allowed, becomes the next lower one that both
       have: never a higher one.
    3. In a lane, temporary entitlements are used first, the one that ends first before the others, then the standing
       one. The first whose limits the request fits in gives the lane.
    4. Where it fits in none of them, the last one says what happens: the request steps down to the lane that it names,
       which is then the one wanted, or is refused. No lane is tried twice.
    5. A key's own limits hold in every lane, so that stepping down does not help.

    Raises ``Refused``, which names the limit that was short.
    """
    wanted, reason = _wanted(wish.requested, key.default_lane, lanes)
    living = [right for right in rights if right.gives_at(now)]
    short = shortage(key.limits, wish.tokens)
    if short is not None:
        raise _exhausted(short, "this API key", wish)
    step_downs: list[StepDown] = []
    while True:
        lane = _usable(wanted, key, living, lanes)
        if lane is None:
            if step_downs:
                first = step_downs[0]
                raise _exhausted(first.limit, f"the lane {first.lane!r}", wish, first.entitlement_id)
            raise _not_entitled(wanted, key, living, lanes)
        if lane != wanted and not step_downs:
            entitled = any(right.lane == wanted.name for right in living)
            reason = AssignmentReason.NOT_ALLOWED_BY_KEY if entitled else AssignmentReason.NOT_ENTITLED
        tried = _in_order(right for right in living if right.lane == lane.name)
        for right in tried:
            short = shortage(right.limits, wish.tokens)
            if short is None:
                return Resolution(lane, right.entitlement_id, reason, tuple(step_downs))
            step_downs.append(StepDown(lane.name, right.entitlement_id, short))
        lower = next((one for one in lanes if one.name == tried[-1].step_down_to), None)
        if lower is None or lower.rank <= lane.rank:
            last = step_downs[-1]
            raise _exhausted(last.limit, f"the lane {lane.name!r}", wish, last.entitlement_id)
        wanted, reason = lower, AssignmentReason.STEPPED_DOWN


def _in_order(rights: Iterable[Right]) -> list[Right]:
    return sorted(rights, key=lambda right: (right.ends_at is None, right.ends_at, right.entitlement_id))


def _usable(
    wanted: LaneChoice, key: KeyRights, living: Sequence[Right], lanes: Sequence[LaneChoice]
) -> LaneChoice | None:
    entitled = {right.lane for right in living}
    at_or_below = [
        lane for lane in lanes if lane.rank >= wanted.rank and lane.name in entitled and key.allows(lane.name)
    ]
    return min(at_or_below, key=lambda lane: lane.rank, default=None)


def _wanted(
    requested: str | None, key_default: str | None, lanes: Sequence[LaneChoice]
) -> tuple[LaneChoice, AssignmentReason]:
    by_name = {lane.service_tier: lane for lane in lanes} | {lane.name: lane for lane in lanes}
    if requested and requested != AUTO:
        if requested not in by_name:
            known = ", ".join(f"{lane.service_tier} ({lane.name})" for lane in lanes)
            raise Refused(
                Denial.UNKNOWN_LANE, f"There is no such lane or service tier. There are: {AUTO}, {known}."
            )
        return by_name[requested], AssignmentReason.REQUESTED
    if key_default is not None:
        return by_name[key_default], AssignmentReason.KEY_DEFAULT
    return by_name[TENANT_DEFAULT_LANE], AssignmentReason.TENANT_DEFAULT


def _not_entitled(
    wanted: LaneChoice, key: KeyRights, living: Sequence[Right], lanes: Sequence[LaneChoice]
) -> Refused:
    entitled = {right.lane for right in living}
    if not entitled:
        return Refused(Denial.NO_ENTITLEMENT, "This tenant is not entitled to any lane.")
    usable = [lane.service_tier for lane in lanes if lane.name in entitled and key.allows(lane.name)]
    who = "This API key may not use" if key.allowed_lanes else "This tenant is not entitled to"
    tiers = f"It may use the service tiers: {', '.join(usable)}." if usable else "It may use none."
    return Refused(Denial.NO_ENTITLEMENT, f"{who} the lane {wanted.name!r} or a lower one. {tiers}")


def _exhausted(short: LimitState, subject: str, wish: Wish, entitlement_id: UUID | None = None) -> Refused:
    """What is told: which limit of whom, how much of it is used, when it resets, what would be accepted."""
    return Refused(
        Denial.of_limit(short),
        " ".join((_what_is_short(short, subject, wish), _what_would_be_accepted(short, wish))),
        limit=short,
        subject=subject,
        entitlement_id=entitlement_id,
    )


def _what_is_short(short: LimitState, subject: str, wish: Wish) -> str:
    held = f", {short.reserved:,} of them reserved by what runs" if short.reserved else ""
    if not short.name.counts_tokens:
        return f"The limit {short.name.value} of {subject} is reached: {short.used:,} of {short.limit:,} used{held}."
    return (
        f"The limit {short.name.value} of {subject} is too short: {short.used:,} of {short.limit:,} tokens are used"
        f"{held}, and this request may use {wish.tokens:,} (its prompt's {wish.prompt_tokens:,} and the most that it "
        "may answer)."
    )


def _what_would_be_accepted(short: LimitState, wish: Wish) -> str:
    resets = "" if short.resets_at is None else f" It resets at {short.resets_at:%Y-%m-%dT%H:%M:%SZ}."
    if not short.name.counts_tokens:
        if short.limit == 0:
            return "It allows none."
        return resets.strip() or "Try again when one of them has ended."
    answer = short.remaining - wish.prompt_tokens
    now = (
        f"Now a max_tokens of up to {answer:,} would be accepted."
        if answer > 0
        else "Now no answer to this prompt would be accepted."
    )
    return f"{now}{resets}"
