"""What of a row is hashed: each event and each lane assignment as a JSON object, and its hash.

The script that checks exports hashes the same objects, so that an export holds them as they are. A format is never
changed, only followed by another: rows of an older one keep their hashes.

``EventRow`` and ``AssignmentRow`` are rows without a model around them, for who reads very many of them:
``AuditEvent.objects.values_list(*EventRow._fields)``.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, NamedTuple
from uuid import UUID

from accounts.audit.canonical import canonical_json, content_hash, link_hash, utc_text
from accounts.audit.merkle import leaf_hash
from accounts.models import AuditEvent, LaneAssignment

#: What new events are written in. In format 1 the content held the previous hash and its own hash was the chain's;
#: it knew no sessions, and named people in the chain itself.
EVENT_FORMAT: Final = 2
ASSIGNMENT_FORMAT: Final = 1


class EventRow(NamedTuple):
    """An ``AuditEvent`` as plain values."""

    sequence: int
    format: int
    at: datetime
    actor_kind: str
    actor_id: str
    actor_name: str
    session: str
    action: str
    object_kind: str
    object_id: str
    object_name: str
    tenant_id: UUID | None
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    request_id: str
    address: str
    personal: dict[str, str]
    previous_hash: str
    hash: str


class AssignmentRow(NamedTuple):
    """A ``LaneAssignment`` as plain values."""

    generation_id: UUID
    tenant_id: UUID
    tenant_name: str
    api_key_id: UUID | None
    api_key_prefix: str
    user_id: UUID | None
    requested_lane: str
    given_lane: str
    reason: str
    entitlement_id: UUID
    step_downs: list[dict[str, Any]]
    budget_position: list[dict[str, Any]]
    policy_version: int
    created_at: datetime


def event_content(event: AuditEvent | EventRow) -> dict[str, Any]:
    """What is hashed of an event."""
    content: dict[str, Any] = {
        "sequence": event.sequence,
        "at": utc_text(event.at),
        "actor": [event.actor_kind, event.actor_id, event.actor_name],
        "action": event.action,
        "object": [event.object_kind, event.object_id, event.object_name],
        "tenant": event.tenant_id.hex if event.tenant_id else None,
        "before": event.before,
        "after": event.after,
        "request": event.request_id,
        "address": event.address,
    }
    if event.format == 1:
        return content | {"previous": event.previous_hash}
    return content | {"format": event.format, "session": event.session, "personal": event.personal}


def event_hash(event: AuditEvent | EventRow) -> str:
    """The chain's hash at an event, by its content and the hash that it says comes before it."""
    content = content_hash(event_content(event))
    return content if event.format == 1 else link_hash(event.previous_hash, content)


def assignment_content(assignment: LaneAssignment | AssignmentRow) -> dict[str, Any]:
    """What is hashed of a lane assignment."""
    return {
        "format": ASSIGNMENT_FORMAT,
        "generation": assignment.generation_id.hex,
        "tenant": [assignment.tenant_id.hex, assignment.tenant_name],
        "key": [assignment.api_key_id.hex if assignment.api_key_id else None, assignment.api_key_prefix],
        "user": assignment.user_id.hex if assignment.user_id else None,
        "requested_lane": assignment.requested_lane,
        "given_lane": assignment.given_lane,
        "reason": assignment.reason,
        "entitlement": assignment.entitlement_id.hex,
        "step_downs": assignment.step_downs,
        "budget_position": assignment.budget_position,
        "policy_version": assignment.policy_version,
        "at": utc_text(assignment.created_at),
    }


def assignment_leaf(assignment: LaneAssignment | AssignmentRow) -> str:
    """The leaf hash of a lane assignment in its batch's tree."""
    return leaf_hash(canonical_json(assignment_content(assignment)))
