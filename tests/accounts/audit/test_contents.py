"""What of a row is hashed: all of it, in the form that exports and older rows have."""

from __future__ import annotations

import hashlib
import json
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import transaction

from accounts import audit
from accounts.audit import verification
from accounts.audit.contents import (
    EVENT_FORMAT,
    assignment_content,
    assignment_leaf,
    event_content,
    event_hash,
)
from accounts.models import AuditEvent, LaneAssignment
from tests.accounts.audit.older import record_in_format_1
from tests.factories import ACTOR

_EVENT: dict[str, Any] = {
    "sequence": 7,
    "format": 2,
    "at": datetime(2027, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
    "actor_kind": "api_key",
    "actor_id": "0" * 8,
    "actor_name": "the app's",
    "session": "",
    "action": "tenant.rename",
    "object_kind": "tenant",
    "object_id": "1",
    "object_name": "Rail",
    "tenant_id": uuid.UUID(int=1),
    "before": {"name": "Räil"},
    "after": {"name": "Rail"},
    "request_id": "req_1",
    "address": "",
    "personal": {"address": "ab" * 32},
    "previous_hash": "cd" * 32,
}
_ASSIGNMENT: dict[str, Any] = {
    "generation_id": uuid.UUID(int=2),
    "tenant_id": uuid.UUID(int=1),
    "tenant_name": "Rail",
    "api_key_id": uuid.UUID(int=3),
    "api_key_prefix": "abcdefghijkl",
    "user_id": None,
    "requested_lane": "high",
    "given_lane": "normal",
    "reason": "not_entitled",
    "entitlement_id": uuid.UUID(int=4),
    "step_downs": [],
    "budget_position": [{"name": "tokens_per_day", "limit": 1000, "used": 12}],
    "policy_version": 2,
    "created_at": datetime(2027, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
}


def _sha256_of(content: dict[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def test_an_event_s_content_is_what_is_documented() -> None:
    event = AuditEvent(**_EVENT)
    assert event_content(event) == {
        "format": 2,
        "sequence": 7,
        "at": "2027-01-02T03:04:05.000006+00:00",
        "actor": ["api_key", "00000000", "the app's"],
        "session": "",
        "action": "tenant.rename",
        "object": ["tenant", "1", "Rail"],
        "tenant": uuid.UUID(int=1).hex,
        "before": {"name": "Räil"},
        "after": {"name": "Rail"},
        "request": "req_1",
        "address": "",
        "personal": {"address": "ab" * 32},
    }
    linked = bytes.fromhex("cd" * 32) + bytes.fromhex(_sha256_of(event_content(event)))
    assert event_hash(event) == hashlib.sha256(linked).hexdigest()


@pytest.mark.parametrize("field", [field.name for field in AuditEvent._meta.concrete_fields])
def test_every_field_of_an_event_is_in_its_hash(field: str) -> None:
    """A field that a later version adds, and forgets to hash, could be changed unseen."""
    changed = {
        "sequence": 8,
        "format": 1,
        "at": datetime(2027, 1, 2, 3, 4, 5, 7, tzinfo=UTC),
        "tenant_id": uuid.UUID(int=9),
        "before": None,
        "after": {"name": "rail"},
        "personal": {},
        "previous_hash": "ce" * 32,
    }
    if field == "hash":
        return
    event = AuditEvent(**{**_EVENT, field: changed.get(field, "else")})
    assert event_hash(event) != event_hash(AuditEvent(**_EVENT))


@pytest.mark.parametrize("field", [field.name for field in LaneAssignment._meta.concrete_fields])
def test_every_field_of_an_assignment_is_in_its_leaf(field: str) -> None:
    another: dict[str, Any] = {
        "user_id": uuid.UUID(int=9),
        "step_downs": [{"lane": "high"}],
        "budget_position": [],
        "policy_version": 3,
        "created_at": datetime(2027, 1, 2, 3, 4, 5, 7, tzinfo=UTC),
    }
    value = another.get(field, uuid.UUID(int=9) if field.endswith("_id") else "else")
    leaf = assignment_leaf(LaneAssignment(**_ASSIGNMENT))
    assert assignment_leaf(LaneAssignment(**{**_ASSIGNMENT, field: value})) != leaf


def test_an_assignment_s_leaf_is_that_of_its_content() -> None:
    assignment = LaneAssignment(**_ASSIGNMENT)
    content = assignment_content(assignment)
    assert (content["generation"], content["at"]) == (
        uuid.UUID(int=2).hex,
        "2027-01-02T03:04:05.000006+00:00",
    )
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert assignment_leaf(assignment) == hashlib.sha256(b"\x00" + text.encode()).hexdigest()


@pytest.mark.django_db
def test_events_of_both_formats_make_one_chain(tampering: Any) -> None:
    older = record_in_format_1(3, tampering)
    assert verification.verify(from_scratch=True).fault is None
    with transaction.atomic():
        newer = audit.record(
            ACTOR, "tenant.rename", audit.ObjectRef("tenant", "1", "Rail"), None, {"name": "x"}
        )
    assert (newer.sequence, newer.format, newer.previous_hash) == (4, EVENT_FORMAT, older[-1].hash)
    found = verification.verify(from_scratch=True)
    assert (found.events, found.fault) == (4, None)


@pytest.mark.django_db
@pytest.mark.parametrize("sequence", [2, 4])
def test_an_event_of_either_format_that_was_changed_is_found(sequence: int, tampering: Any) -> None:
    record_in_format_1(3, tampering)
    with transaction.atomic():
        audit.record(ACTOR, "tenant.rename", audit.ObjectRef("tenant", "1", "Rail"), None, {"name": "x"})
    with tampering():
        AuditEvent.objects.filter(sequence=sequence).update(after={"name": "y"})
    fault = verification.verify(from_scratch=True).fault
    assert fault is not None
    assert fault.sequence == sequence


@pytest.mark.django_db
def test_a_newer_event_that_is_passed_off_as_an_older_one_is_found(tampering: Any) -> None:
    with transaction.atomic():
        audit.record(ACTOR, "tenant.rename", audit.ObjectRef("tenant", "1", "Rail"), None, None)
    with tampering():
        AuditEvent.objects.update(format=1)
    assert verification.verify(from_scratch=True).fault is not None
