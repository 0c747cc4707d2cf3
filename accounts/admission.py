"""Which lane a generation gets, by what right, and what is held back for it.

The rule is ``accounts.lane_resolution``. ``plan`` reads where everything stands, before anything is taken, and lets the
rule choose; ``admit`` takes what was chosen, in the caller's transaction, by what the locked rows say. A limit that
another request was faster to take is told to the plan, which then chooses again: each time it knows one more to be
short, so that it comes to an end. Where the right itself has ended in between, everything is read anew: another may
have taken its place.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

from django.utils import timezone

from accounts import reservations
from accounts.lane_resolution import (
    AUTO,
    POLICY_VERSION,
    KeyRights,
    LaneChoice,
    Refused,
    Resolution,
    Right,
    Wish,
    resolve_lane,
)
from accounts.limits import LimitState
from accounts.models import Allowance, AssignmentReason, Entitlement, Lane, LaneAssignment, Tenant
from accounts.models.entitlement import giving_from
from accounts.principal import Principal
from accounts.rates import Rate, rates_of
from accounts.tenancy import tenant_scope


class RightLost(Exception):
    """The entitlement that was chosen gives no right any more: the caller's transaction is to be rolled back, and a new
    plan made."""

    def __init__(self, entitlement_id: UUID) -> None:
        super().__init__(f"entitlement {entitlement_id} has ended")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A lane that a request may have, as far as its plan knows; and what must be taken for it."""

    resolution: Resolution
    entitlement_allowance_id: UUID
    key_allowance_id: UUID | None
    #: The rates that are set, the entitlement's and the key's: to be taken in Valkey.
    rates: tuple[Rate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """What a generation runs with: its lane, and the rights in it. ``requested_lane`` is empty where none was named.

    ``suffix_pool``: whether the tenant lets workers learn from its answers. ``limits``: where the budgets and the
    concurrency stand, this generation counted.
    """

    lane: str
    lane_rank: int
    service_tier: str
    weight: int
    speculation: bool
    suffix_pool: bool
    requested_lane: str
    reason: AssignmentReason
    entitlement_id: UUID
    longest_queue_wait_s: int | None
    limits: tuple[LimitState, ...] = ()


class Plan:
    """Where a tenant's rights and limits stand for one request, and what has been found out since."""

    def __init__(
        self,
        wish: Wish,
        lanes: Iterable[LaneChoice],
        key: KeyRights,
        rights: Iterable[Right],
        allowances: dict[UUID, Allowance],
        key_allowance: Allowance | None,
        now: datetime,
    ) -> None:
        self.wish = wish
        self.now = now
        self._lanes = tuple(lanes)
        self._key = key
        self._rights = {right.entitlement_id: right for right in rights}
        #: Of the entitlements, by entitlement.
        self._allowances = allowances
        self._key_allowance = key_allowance

    def choose(self) -> Choice:
        """The lane, by all that is known now. Raises ``lane_resolution.Refused``."""
        resolution = resolve_lane(self.wish, self._key, self._rights.values(), self._lanes, self.now)
        allowance = self._allowances[resolution.entitlement_id]
        rates = rates_of(allowance.id, allowance.limits)
        if self._key_allowance is not None:
            rates += rates_of(self._key_allowance.id, self._key_allowance.limits)
        return Choice(
            resolution=resolution,
            entitlement_allowance_id=allowance.id,
            key_allowance_id=self._key_allowance.id if self._key_allowance else None,
            rates=tuple(rates),
        )

    def is_short(self, allowance_id: UUID, state: LimitState) -> None:
        """A limit of that allowance was found to be short: nothing is chosen by it any more."""
        if self._key_allowance is not None and allowance_id == self._key_allowance.id:
            self._key = replace(self._key, limits=(*self._key.limits, state))
            return
        for entitlement_id, allowance in self._allowances.items():
            if allowance.id == allowance_id:
                right = self._rights[entitlement_id]
                self._rights[entitlement_id] = replace(right, limits=(*right.limits, state))

    def allowance_of(self, refusal: Refused) -> Allowance | None:
        """The allowance whose limit a refusal names: the entitlement's, or the key's own."""
        if refusal.entitlement_id is None:
            return self._key_allowance
        return self._allowances[refusal.entitlement_id]


def plan(principal: Principal, wish: Wish, now: datetime) -> Plan:
    """Read where the rights and limits of ``principal`` stand. Takes nothing and locks nothing."""
    with tenant_scope(principal.tenant_id):
        entitlements = list(
            Entitlement.objects.filter(giving_from(now), allowance__tenant__closed_at=None).select_related(
                "allowance__tenant"
            )
        )
        key_allowance = (
            Allowance.objects.select_related("tenant").get(id=principal.key_allowance_id)
            if principal.key_allowance_id
            else None
        )
        allowances = {entitlement.id: entitlement.allowance for entitlement in entitlements}
        states = reservations.states_of([*allowances.values(), *filter(None, [key_allowance])], now)
        lanes = [LaneChoice(*row) for row in Lane.objects.values_list("name", "rank", "service_tier")]
    return Plan(
        wish,
        lanes,
        KeyRights(
            default_lane=principal.default_lane,
            allowed_lanes=principal.allowed_lanes,
            limits=states[key_allowance.id] if key_allowance else (),
        ),
        [
            Right(
                entitlement_id=entitlement.id,
                lane=entitlement.lane_id,
                starts_at=entitlement.starts_at,
                ends_at=entitlement.ends_at,
                step_down_to=entitlement.step_down_to_id,
                limits=states[entitlement.allowance_id],
            )
            for entitlement in entitlements
        ],
        allowances,
        key_allowance,
        now,
    )


def admit(principal: Principal, plan: Plan, choice: Choice, generation_id: UUID) -> Admission:
    """Hold back what ``choice`` needs and write the lane assignment, in the caller's transaction.

    Raises ``reservations.Short`` or ``RightLost``: the transaction must be rolled back, and the plan told, or a new one
    made.
    """
    resolution = choice.resolution
    with tenant_scope(principal.tenant_id):
        states = reservations.reserve(
            generation_id=generation_id,
            tenant_id=principal.tenant_id,
            entitlement_allowance_id=choice.entitlement_allowance_id,
            key_allowance_id=choice.key_allowance_id,
            tokens=plan.wish.tokens,
            now=plan.now,
        )
        entitlement: Entitlement = Entitlement.objects.select_related("tenant").get(
            id=resolution.entitlement_id
        )
        tenant: Tenant = entitlement.tenant
        # Waiting for the locks may have taken longer than the right lasted.
        now = max(plan.now, timezone.now())
        if tenant.closed_at or entitlement.ended_at or not entitlement.gives_at(now):
            raise RightLost(entitlement.id)
        requested = plan.wish.requested
        limits = tuple(state for of in states.values() for state in of)
        admission = Admission(
            lane=resolution.lane.name,
            lane_rank=resolution.lane.rank,
            service_tier=resolution.lane.service_tier,
            weight=entitlement.weight,
            speculation=entitlement.speculation,
            suffix_pool=tenant.suffix_pool,
            requested_lane="" if requested in (None, "", AUTO) else str(requested),
            reason=resolution.reason,
            entitlement_id=entitlement.id,
            longest_queue_wait_s=entitlement.longest_queue_wait_s,
            limits=limits,
        )
        LaneAssignment.objects.create(
            generation_id=generation_id,
            tenant_id=principal.tenant_id,
            tenant_name=principal.tenant_name,
            api_key_id=principal.api_key_id,
            api_key_prefix=principal.api_key_prefix,
            user_id=principal.user_id,
            requested_lane=admission.requested_lane,
            given_lane=admission.lane,
            reason=admission.reason,
            entitlement_id=admission.entitlement_id,
            step_downs=[
                {"lane": one.lane, "entitlement_id": str(one.entitlement_id), "limit": one.limit.name.value}
                for one in resolution.step_downs
            ],
            budget_position=[
                {"name": state.name.value, "limit": state.limit, "used": state.used} for state in limits
            ],
            policy_version=POLICY_VERSION,
        )
    return admission
