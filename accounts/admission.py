"""Which lane a generation gets, and by what right.

What a client asks for is a request; what it gets follows from its tenant's entitlements alone. The rule is a pure
function, ``resolve_lane``; ``admit`` feeds it from the database and writes the lane assignment in the caller's
transaction, so that no generation exists without the record of its lane.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from accounts.models import AssignmentReason, Entitlement, Lane, LaneAssignment
from accounts.principal import Principal
from accounts.tenancy import tenant_scope

#: The rule's version, kept with each assignment: raise it when ``resolve_lane`` decides differently.
POLICY_VERSION = 1
#: The lane of a request that asks for none, with a key that has no default.
TENANT_DEFAULT_LANE = "normal"
#: What a client says to ask for no lane in particular.
AUTO = "auto"


class Denial(StrEnum):
    """Why no lane was given: the same code in the API, the log and the metrics."""

    UNKNOWN_LANE = "unknown_lane"
    NO_ENTITLEMENT = "no_entitlement"


class Refused(Exception):
    """The tenant gets no lane for this request; nothing was written."""

    def __init__(self, code: Denial, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class LaneChoice:
    """A lane as the rule sees it. ``rank`` 0 is the highest."""

    name: str
    rank: int
    service_tier: str


@dataclass(frozen=True, slots=True)
class Resolution:
    """The lane that was given, and why."""

    lane: LaneChoice
    reason: AssignmentReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """What a generation runs with: its lane, and the rights in it. ``requested_lane`` is empty where none was named.

    ``suffix_pool``: whether the tenant lets workers learn from its answers.
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


def resolve_lane(
    *,
    requested: str | None,
    key_default: str | None,
    lanes: Sequence[LaneChoice],
    entitled: Collection[str],
) -> Resolution:
    """Decide the lane of one request. Pure.

    ``requested`` is a lane's name, a service tier, ``auto``, or empty; ``entitled`` names the lanes that the tenant may
    use. A lane that the tenant may not use becomes the next lower one that it may: never a higher one. Raises
    ``Refused`` for a lane that does not exist, and when there is none at or below the one wanted.
    """
    wanted, reason = _wanted(requested, key_default, lanes)
    if wanted.name in entitled:
        return Resolution(wanted, reason)
    lower = [lane for lane in lanes if lane.rank > wanted.rank and lane.name in entitled]
    if lower:
        return Resolution(min(lower, key=lambda lane: lane.rank), AssignmentReason.NOT_ENTITLED)
    if not entitled:
        raise Refused(Denial.NO_ENTITLEMENT, "This tenant is not entitled to any lane.")
    usable = ", ".join(lane.service_tier for lane in lanes if lane.name in entitled)
    raise Refused(
        Denial.NO_ENTITLEMENT,
        f"This tenant is not entitled to the lane {wanted.name!r} or a lower one. It may use the service "
        f"tiers: {usable}.",
    )


def admit(principal: Principal, requested: str | None, generation_id: UUID) -> Admission:
    """Resolve a generation's lane and write its assignment, in the caller's transaction. Raises ``Refused``."""
    with tenant_scope(principal.tenant_id):
        lanes = [LaneChoice(*row) for row in Lane.objects.values_list("name", "rank", "service_tier")]
        standing = {
            entitlement.lane_id: entitlement
            for entitlement in Entitlement.objects.filter(ended_at=None).select_related("tenant")
        }
        resolution = resolve_lane(
            requested=requested, key_default=principal.default_lane, lanes=lanes, entitled=standing
        )
        entitlement = standing[resolution.lane.name]
        admission = Admission(
            lane=resolution.lane.name,
            lane_rank=resolution.lane.rank,
            service_tier=resolution.lane.service_tier,
            weight=entitlement.weight,
            speculation=entitlement.speculation,
            suffix_pool=entitlement.tenant.suffix_pool,
            requested_lane="" if requested in (None, "", AUTO) else str(requested),
            reason=resolution.reason,
            entitlement_id=entitlement.id,
        )
        LaneAssignment.objects.create(
            generation_id=generation_id,
            tenant_id=principal.tenant_id,
            tenant_name=principal.tenant_name,
            api_key_id=principal.api_key_id,
            api_key_prefix=principal.api_key_prefix,
            user_id=principal.user_id,
            user_name=principal.name if principal.user_id else "",
            requested_lane=admission.requested_lane,
            given_lane=admission.lane,
            reason=admission.reason,
            entitlement_id=admission.entitlement_id,
            policy_version=POLICY_VERSION,
        )
    return admission


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
