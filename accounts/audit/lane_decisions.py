"""Why a generation ran in its lane, in sentences: what was asked, what the key and the entitlements allowed, which
lanes were tried before and what was short there, where the budgets stood, and by whose grant it was.

All of it is as it was then: what the assignment says, and of keys and entitlements what their events say up to then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from accounts.audit.entitlement_records import EntitlementRecord, records_of
from accounts.audit.history import History, histories
from accounts.audit.names import Names
from accounts.consumption import TITLES
from accounts.formatting import number
from accounts.lane_resolution import TENANT_DEFAULT_LANE
from accounts.limits import LimitName
from accounts.models import ApiKey, AssignmentReason, Entitlement, Lane, LaneAssignment
from accounts.tenancy import every_tenant

_REASON: Final = "the record of any tenant's generation is explained"


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Where a limit stood, the generation counted."""

    title: str
    used: int
    limit: int
    #: Whose limit it was, as far as that can be told.
    of: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """An entitlement that was tried before and had too little left: in which lane, and of which limit."""

    lane: str
    record: EntitlementRecord | None
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Why ``assignment`` says what it says. ``person``: who asked in the browser, as the audit called them then.

    ``right``: the entitlement that gave the lane; None: it is not there any more. ``objection``: by the records it did
    not give its rights then, which cannot be.
    """

    assignment: LaneAssignment
    person: str
    key_name: str
    sentences: Sequence[str]
    tried: Sequence[Tried]
    budgets: Sequence[Budget]
    right: EntitlementRecord | None
    objection: str


def explain(assignment: LaneAssignment) -> Decision:
    """Read why ``assignment`` says what it says. A few queries."""
    with every_tenant(_REASON):
        at = assignment.created_at
        wanted = {
            assignment.entitlement_id,
            *(UUID(step["entitlement_id"]) for step in assignment.step_downs),
        }
        rows = Entitlement.objects.filter(id__in=wanted).select_related(
            "tenant", "allowance", "granted_by", "decided_by"
        )
        records = records_of(rows, at)
        key = ApiKey.objects.filter(id=assignment.api_key_id).first() if assignment.api_key_id else None
        said_of_key = _of_key(key, at)
        right = records.get(assignment.entitlement_id)
        names = Names.of([assignment.user_id], until=at)
        lanes = {lane.name: lane for lane in Lane.objects.all()}
        return Decision(
            assignment=assignment,
            person=(names.get(assignment.user_id) or str(assignment.user_id)) if assignment.user_id else "",
            key_name=said_of_key.get("name", ""),
            sentences=[
                *_asked(assignment, said_of_key, lanes),
                *_allowed(assignment, said_of_key, lanes),
                *_given(assignment),
            ],
            tried=[_tried(step, records) for step in assignment.step_downs],
            budgets=[_budget(one, right, said_of_key) for one in assignment.budget_position],
            right=right,
            objection=_objection(right, at),
        )


def _of_key(key: ApiKey | None, at: datetime) -> dict[str, Any]:
    """What a key was like at ``at``, by its events, and where they are silent by its row."""
    if key is None:
        return {}
    as_it_is = {
        "name": key.name,
        "default_lane_id": key.default_lane_id,
        "allowed_lanes": key.allowed_lanes,
    }
    history = histories("api_key", [key.id], at).get(str(key.id), History())
    return {**as_it_is, **history.fields}


def _asked(assignment: LaneAssignment, key: dict[str, Any], lanes: dict[str, Lane]) -> list[str]:
    who = "the key" if assignment.api_key_id else "the chat"
    if assignment.requested_lane:
        lane = _lane_called(assignment.requested_lane, lanes)
        if lane is None or lane.name == assignment.requested_lane:
            return [f"The request asked for the lane {assignment.requested_lane}."]
        return [
            f"The request asked for the service tier {assignment.requested_lane}, which is the lane {lane.name}."
        ]
    default = key.get("default_lane_id")
    if default:
        return [f"The request asked for no lane. Then {who} has a default: {default}."]
    return [
        f"The request asked for no lane, and {who} names no default: such a request wants {TENANT_DEFAULT_LANE}."
    ]


def _allowed(assignment: LaneAssignment, key: dict[str, Any], lanes: dict[str, Lane]) -> list[str]:
    wanted = _wanted(assignment, key, lanes)
    said = []
    if assignment.api_key_id:
        allowed = key.get("allowed_lanes") or []
        if not allowed:
            said.append("The key allowed every lane that its tenant has.")
        else:
            verdict = "" if wanted in allowed else f", so not {wanted}"
            said.append(f"The key allowed {_and(allowed)}{verdict}.")
    match assignment.reason:
        case AssignmentReason.NOT_ENTITLED:
            said.append(
                f"{assignment.tenant_name} had no entitlement to {wanted} that gave its rights then. A request goes to "
                "the next lower lane that its tenant and its key both have, never to a higher one."
            )
        case AssignmentReason.NOT_ALLOWED_BY_KEY:
            said.append(
                f"{assignment.tenant_name} was entitled to {wanted}, and the key was not allowed it. A request goes to "
                "the next lower lane that both have, never to a higher one."
            )
        case _:
            first = assignment.step_downs[0]["lane"] if assignment.step_downs else assignment.given_lane
            said.append(f"{assignment.tenant_name} was entitled to {first}.")
    return said


def _given(assignment: LaneAssignment) -> list[str]:
    if assignment.reason == AssignmentReason.STEPPED_DOWN:
        return [f"It did not fit there and stepped down. It was given {assignment.given_lane}."]
    if assignment.step_downs:
        return [
            f"What is used first there had too little left; the next had enough. It was given {assignment.given_lane}."
        ]
    return [f"It was given {assignment.given_lane}."]


def _tried(step: dict[str, Any], records: dict[UUID, EntitlementRecord]) -> Tried:
    record = records.get(UUID(step["entitlement_id"]))
    name = LimitName(step["limit"])
    limit = record.terms.limits.of(name) if record is not None else None
    of = f", {number(limit)} by its terms then" if limit is not None else ""
    return Tried(
        lane=step["lane"], record=record, said=f"Too little was left of: {TITLES[name].lower()}{of}."
    )


def _budget(one: dict[str, Any], right: EntitlementRecord | None, key: dict[str, Any]) -> Budget:
    name = LimitName(one["name"])
    of_right = right is not None and right.terms.limits.of(name) == one["limit"]
    of_key = key.get(name.value) == one["limit"]
    whose = {(True, False): "the entitlement's", (False, True): "the key's"}.get((of_right, of_key), "")
    return Budget(title=TITLES[name], used=one["used"], limit=one["limit"], of=whose)


def _objection(right: EntitlementRecord | None, at: datetime) -> str:
    if right is None:
        return (
            "The entitlement that gave the lane is not there any more. Entitlements are ended, never deleted."
        )
    if not right.gave_at(at):
        return "By what is recorded of it, this entitlement did not give its rights at that time."
    return ""


def _wanted(assignment: LaneAssignment, key: dict[str, Any], lanes: dict[str, Lane]) -> str:
    if assignment.requested_lane:
        lane = _lane_called(assignment.requested_lane, lanes)
        return lane.name if lane is not None else assignment.requested_lane
    return key.get("default_lane_id") or TENANT_DEFAULT_LANE


def _lane_called(name: str, lanes: dict[str, Lane]) -> Lane | None:
    return lanes.get(name) or next((lane for lane in lanes.values() if lane.service_tier == name), None)


def _and(names: Sequence[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
