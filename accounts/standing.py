"""What a tenant may use now, lane by lane, and what is left of it: for whoever asks before being refused.

It is what ``accounts.admission`` would decide by, read without taking anything: by the next request it may be less.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from accounts import rates, reservations
from accounts.lane_resolution import TENANT_DEFAULT_LANE, LaneChoice
from accounts.limits import LimitName, LimitState, shortage
from accounts.models import Allowance, Entitlement, Lane
from accounts.models.entitlement import giving_from
from accounts.principal import Principal
from accounts.tenancy import tenant_scope

_ORDER = {name: place for place, name in enumerate(LimitName)}


@dataclass(frozen=True, slots=True, kw_only=True)
class EntitlementStanding:
    """An entitlement that gives its rights now.

    ``limits``: where those that are set stand, in the order of ``LimitName``. ``ends_at`` of None: it is standing.
    ``step_down_to``: where requests go that do not fit; None: they are refused. ``longest_queue_wait_s``: after so many
    seconds a generation that waits is ended; None: never.
    """

    entitlement_id: UUID
    starts_at: datetime | None
    ends_at: datetime | None
    on_exhausted: str
    step_down_to: str | None
    weight: int
    speculation: bool
    longest_queue_wait_s: int | None
    limits: tuple[LimitState, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneStanding:
    """A lane that the tenant is entitled to now and the key is allowed; its entitlements in the order of their use."""

    lane: LaneChoice
    is_default: bool
    entitlements: tuple[EntitlementStanding, ...]

    @property
    def next_used(self) -> EntitlementStanding:
        """The entitlement that the next request uses: the first that has anything left, else the last."""
        for entitlement in self.entitlements:
            if shortage(entitlement.limits, 1) is None:
                return entitlement
        return self.entitlements[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a caller stands: lane by lane from the highest on, and by the key's own limits, which hold in every lane.

    ``rates_known`` is false where the limits of a minute are left out, because their counters cannot be reached.
    """

    lanes: tuple[LaneStanding, ...]
    key: tuple[LimitState, ...]
    rates_known: bool

    @property
    def next_limits(self) -> tuple[LimitState, ...]:
        """The limits of the next request that asks for no lane: the key's, and those of the lane that it would get."""
        for lane in self.lanes:
            if lane.is_default:
                return (*self.key, *lane.next_used.limits)
        return self.key


def standing(principal: Principal, now: datetime) -> Standing:
    """Read where ``principal`` stands: few queries, however many lanes there are, and one step in Valkey for all rates.

    While Valkey cannot be reached the rates are left out, and the log says so.
    """
    with tenant_scope(principal.tenant_id):
        entitlements = [
            entitlement
            for entitlement in Entitlement.objects.filter(giving_from(now)).select_related(
                "allowance__tenant"
            )
            if entitlement.gives_at(now) and _allows(principal, entitlement.lane_id)
        ]
        key_allowance = (
            Allowance.objects.select_related("tenant").get(id=principal.key_allowance_id)
            if principal.key_allowance_id
            else None
        )
        allowances = [*(entitlement.allowance for entitlement in entitlements)]
        if key_allowance is not None:
            allowances.append(key_allowance)
        states = reservations.states_of(allowances, now)
        lanes = [
            LaneChoice(*row)
            for row in Lane.objects.order_by("rank").values_list("name", "rank", "service_tier")
        ]
    rate_states = rates.read_all(allowances)
    limits = {
        allowance.id: _in_order((*states[allowance.id], *(rate_states or {}).get(allowance.id, ())))
        for allowance in allowances
    }
    return Standing(
        lanes=_by_lane(lanes, entitlements, limits, default=_default(principal, lanes, entitlements)),
        key=limits[key_allowance.id] if key_allowance is not None else (),
        rates_known=rate_states is not None,
    )


def _allows(principal: Principal, lane: str) -> bool:
    return not principal.allowed_lanes or lane in principal.allowed_lanes


def _default(
    principal: Principal, lanes: Iterable[LaneChoice], entitlements: Iterable[Entitlement]
) -> str | None:
    """The lane of a request that asks for none: the key's default, else ``normal``; or the next lower one."""
    wanted = principal.default_lane or TENANT_DEFAULT_LANE
    usable = {entitlement.lane_id for entitlement in entitlements}
    seen = False
    for lane in lanes:
        seen = seen or lane.name == wanted
        if seen and lane.name in usable:
            return lane.name
    return None


def _by_lane(
    lanes: Iterable[LaneChoice],
    entitlements: Iterable[Entitlement],
    limits: dict[UUID, tuple[LimitState, ...]],
    *,
    default: str | None,
) -> tuple[LaneStanding, ...]:
    # As they are used up: the temporary one that ends first before the others, then the standing one.
    used = sorted(entitlements, key=lambda one: (one.ends_at is None, one.ends_at or one.created_at, one.id))
    found = []
    for lane in lanes:
        of_lane = tuple(
            EntitlementStanding(
                entitlement_id=entitlement.id,
                starts_at=entitlement.starts_at,
                ends_at=entitlement.ends_at,
                on_exhausted=entitlement.on_exhausted,
                step_down_to=entitlement.step_down_to_id,
                weight=entitlement.weight,
                speculation=entitlement.speculation,
                longest_queue_wait_s=entitlement.longest_queue_wait_s,
                limits=limits[entitlement.allowance_id],
            )
            for entitlement in used
            if entitlement.lane_id == lane.name
        )
        if of_lane:
            found.append(LaneStanding(lane=lane, is_default=lane.name == default, entitlements=of_lane))
    return tuple(found)


def _in_order(states: Iterable[LimitState]) -> tuple[LimitState, ...]:
    return tuple(sorted(states, key=lambda state: _ORDER[state.name]))
