"""``GET /v1/limits``: what this key may still use, until when, lane by lane."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

from django.utils import timezone

from accounts.models import OnExhausted, Scope, Tenant
from accounts.standing import EntitlementStanding, LaneStanding, standing
from inference.api.answers import AnswerModel
from inference.api.endpoint import Call, endpoint
from inference.api.limit_answers import StandingLimit, unix_time


class EntitlementOfLane(AnswerModel):
    """A right to the lane, and what is left of it."""

    id: UUID
    kind: Literal["standing", "temporary"]
    starts_at: int | None
    ends_at: int | None
    """Unix time from which it gives nothing; what runs may finish. Null: it is a standing one."""
    on_exhausted: OnExhausted
    """What becomes of a request that does not fit in its limits."""
    step_down_to: str | None
    """The lane that such a request goes to."""
    weight: int
    """Share of the lane among its tenants."""
    speculation: bool
    """Whether its streams take turns with the drafter, where a model has one."""
    longest_queue_wait_s: int | None
    """Seconds after which a generation that no worker has taken is ended. Null: it waits."""
    limits: list[StandingLimit]
    """Those that are set; what is not listed is not limited."""


class LimitsOfLane(AnswerModel):
    """A lane that the key may use now."""

    lane: str
    service_tier: str
    is_default: bool
    """Whether requests that ask for no lane get it."""
    entitlements: list[EntitlementOfLane]
    """In the order of their use: the first that a request fits in gives the lane."""


class LimitsReport(AnswerModel):
    """What is left, until when."""

    object: Literal["limits"] = "limits"
    time: int
    """Unix time at which it was so."""
    time_zone: str
    """Whose days, weeks (from Monday) and months the budgets are of."""
    rates_known: bool
    """False: the limits of a minute are left out, because their counters cannot be reached at the moment."""
    api_key: list[StandingLimit]
    """The key's own limits, which hold in every lane."""
    lanes: list[LimitsOfLane]
    """From the highest on."""


@endpoint(
    "GET",
    summary="See what is left of the limits",
    tag="Limits and usage",
    scopes=(Scope.READ, Scope.INFERENCE, Scope.ADMIN),
    answer=LimitsReport,
)
def retrieve_limits(call: Call) -> LimitsReport:
    """What this key may use, lane by lane, and what is left of it until when. It takes nothing."""
    now = timezone.now()
    found = standing(call.principal, now)
    call.limits.are(found.next_limits)
    zone = Tenant.objects.values_list("time_zone", flat=True).get(id=call.principal.tenant_id)
    return LimitsReport(
        time=int(now.timestamp()),
        time_zone=zone,
        rates_known=found.rates_known,
        api_key=[StandingLimit.of(state) for state in found.key],
        lanes=[_lane(lane) for lane in found.lanes],
    )


def _lane(standing: LaneStanding) -> LimitsOfLane:
    return LimitsOfLane(
        lane=standing.lane.name,
        service_tier=standing.lane.service_tier,
        is_default=standing.is_default,
        entitlements=[_entitlement(one) for one in standing.entitlements],
    )


def _entitlement(standing: EntitlementStanding) -> EntitlementOfLane:
    return EntitlementOfLane(
        id=standing.entitlement_id,
        kind="standing" if standing.ends_at is None else "temporary",
        starts_at=unix_time(standing.starts_at),
        ends_at=unix_time(standing.ends_at),
        on_exhausted=OnExhausted(standing.on_exhausted),
        step_down_to=standing.step_down_to,
        weight=standing.weight,
        speculation=standing.speculation,
        longest_queue_wait_s=standing.longest_queue_wait_s,
        limits=[StandingLimit.of(state) for state in standing.limits],
    )
