"""Chains for tests to verify: made by the product's own functions, and changed as by somebody who owns the database."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from accounts import audit
from accounts.audit import archives, checkpoints, merkle, sealing
from accounts.audit.canonical import GENESIS_HASH
from accounts.audit.contents import assignment_leaf, event_hash
from accounts.models import AuditArchive, AuditEvent, AuditHead, LaneAssignment, SealedAssignment
from accounts.tenancy import every_tenant
from tests.accounts.audit.replaying import made_once
from tests.factories import ACTOR

#: The fixture ``tampering``.
Tampering = Callable[[], AbstractContextManager[None]]

THING = audit.ObjectRef("thing", "1", "a thing")
PERSON = audit.ObjectRef("user", str(uuid.UUID(int=8)), "ada")


def record_events(count: int) -> None:
    """So many events of a person whose name and address are kept beside them; each third one is about a person too."""
    for number in range(count):
        with transaction.atomic():
            audit.record(
                ACTOR,
                "thing.change" if number % 3 else "user.change",
                THING if number % 3 else PERSON,
                {"n": number, "email": "ada@example.com"},
                {"n": number + 1, "email": "ada@example.org"},
            )


def assignment(**fields: Any) -> LaneAssignment:
    """An assignment as the door to the queue writes one."""
    values = {
        "generation_id": uuid.uuid4(),
        "tenant_id": uuid.UUID(int=1),
        "tenant_name": "Räil",
        "api_key_id": uuid.UUID(int=2),
        "api_key_prefix": "sk-sb-abc",
        "user_id": uuid.UUID(int=3),
        "requested_lane": "high",
        "given_lane": "normal",
        "reason": "stepped_down",
        "entitlement_id": uuid.UUID(int=4),
        "step_downs": [{"lane": "high", "entitlement_id": str(uuid.UUID(int=5)), "limit": "tokens_per_day"}],
        "budget_position": [{"name": "tokens_per_day", "limit": 1000, "used": 64}],
        "policy_version": 1,
    }
    return LaneAssignment(**values | fields)


def assign(count: int, *, at: datetime | None = None) -> list[UUID]:
    """So many assignments, each a moment after the one before; made at ``at``, or now."""
    made = [assignment() for _ in range(count)]
    begun = at or timezone.now()
    with every_tenant("the test assigns"):
        LaneAssignment.objects.bulk_create(made)
        for number, one in enumerate(made):
            set_row(one, created_at=begun + timedelta(milliseconds=number))
    return [one.generation_id for one in made]


def seal(count: int) -> list[UUID]:
    """A batch of so many assignments, in its order."""
    made = assign(count)
    assert sealing.seal(timezone.now()) == count
    return made


def set_row(row: Any, **columns: Any) -> None:
    """Change columns of a row in the database; its triggers must be away."""
    with every_tenant("the test changes what it likes"):
        assert type(row)._base_manager.filter(pk=row.pk).update(**columns) == 1


def forge(sequence: int, **columns: Any) -> None:
    """Change an event, and give it the hash of what it says then."""
    event = AuditEvent.objects.get(sequence=sequence)
    for name, value in columns.items():
        setattr(event, name, value)
    event.hash = event_hash(event)
    set_row(event, **columns, hash=event.hash)


def chain_anew(first: int) -> None:
    """Give every event from ``first`` on the hash that follows from those before it, and the head too."""
    previous = (
        AuditEvent.objects.filter(sequence__lt=first).order_by("-sequence").values_list("hash", flat=True)
    )
    archived = AuditArchive.objects.order_by("-last_sequence").values_list("last_hash", flat=True)
    before = previous.first() or archived.first() or GENESIS_HASH
    last = first - 1
    for event in AuditEvent.objects.filter(sequence__gte=first).order_by("sequence"):
        event.previous_hash = before
        event.hash = event_hash(event)
        set_row(event, previous_hash=before, hash=event.hash)
        before, last = event.hash, event.sequence
    AuditHead.objects.update(sequence=last, hash=before)


def seal_anew(batch: int) -> None:
    """Give every leaf of a batch the hash that its assignment has now, and the batch its root, but for the chain."""
    leaves = list(SealedAssignment.objects.filter(batch=batch).order_by("index"))
    with every_tenant("the test seals"):
        rows = LaneAssignment.objects.in_bulk([leaf.generation_id for leaf in leaves])
    for leaf in leaves:
        leaf.hash = assignment_leaf(rows[leaf.generation_id])
        set_row(leaf, hash=leaf.hash)
    root = merkle.root([leaf.hash for leaf in leaves])
    event = AuditEvent.objects.get(sequence=batch)
    set_row(event, object_id=root, after={**event.after, "root": root, "count": len(leaves)})


@dataclass(frozen=True)
class Built:
    """A chain with everything in it. Sequence numbers; the assignments of each batch, in their order."""

    archived: int
    first: int
    checkpoint: int
    head: int
    batches: dict[int, list[UUID]]
    unsealed: UUID


@made_once
def build(tampering: Tampering) -> Built:
    """An archive of six events; then in the database events, batches, a checkpoint and what came after it."""
    with tampering():
        record_events(4)
        seal(4)
        assert checkpoints.make(timezone.now())
        [archive] = archives.archive(timezone.now(), timezone.now() + timedelta(days=1), least=1)
        batches = {}
        record_events(2)
        for size, following in ((5, 1), (3, 2)):
            ids = seal(size)
            batches[_head()] = ids
            record_events(following)
        made = checkpoints.make(timezone.now())
        assert made
        record_events(1)
        ids = seal(2)
        batches[_head()] = ids
        record_events(1)
        [unsealed] = assign(1)
    return Built(
        archived=archive.last_sequence,
        first=archive.last_sequence + 1,
        checkpoint=made.sequence,
        head=_head(),
        batches=batches,
        unsealed=unsealed,
    )


def _head() -> int:
    return AuditHead.objects.get(id=1).sequence
