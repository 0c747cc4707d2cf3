"""Rows as older versions wrote them, made without the product's own code: what it must go on verifying."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime, timedelta
from typing import Any

from accounts.audit.canonical import GENESIS_HASH
from accounts.models import AuditEvent, AuditHead

_FIRST = datetime(2026, 10, 1, 12, tzinfo=UTC)


def record_in_format_1(count: int, triggers_away: Any) -> list[AuditEvent]:
    """Begin the chain with ``count`` events of format 1, which named people in the row and hashed the previous hash
    with the rest. ``triggers_away``: the fixture ``tampering``."""
    events: list[AuditEvent] = []
    previous = GENESIS_HASH
    for sequence in range(1, count + 1):
        at = _FIRST + timedelta(minutes=sequence)
        content = {
            "sequence": sequence,
            "at": at.isoformat(timespec="microseconds"),
            "actor": ["user", "00000000-0000-0000-0000-000000000007", "ada"],
            "action": "tenant.rename",
            "object": ["tenant", str(sequence), "Rail"],
            "tenant": None,
            "before": {"name": "Räil"},
            "after": {"name": "Rail"},
            "request": "req_1",
            "address": "192.0.2.1",
            "previous": previous,
        }
        written = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        event = AuditEvent(
            sequence=sequence,
            at=at,
            actor_kind="user",
            actor_id="00000000-0000-0000-0000-000000000007",
            actor_name="ada",
            action="tenant.rename",
            object_kind="tenant",
            object_id=str(sequence),
            object_name="Rail",
            before={"name": "Räil"},
            after={"name": "Rail"},
            request_id="req_1",
            address="192.0.2.1",
            previous_hash=previous,
            hash=hashlib.sha256(written.encode()).hexdigest(),
        )
        previous = event.hash
        events.append(event)
    AuditEvent.objects.bulk_create(events)
    with triggers_away():
        AuditHead.objects.update(sequence=count, hash=previous)
    return events
