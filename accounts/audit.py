"""The proof of who changed what: an append-only chain of events, one for the installation.

Every verb that writes calls ``record`` last in its own transaction: the change and its record are committed
together or not at all. An event's hash covers its content and the hash before it, so that no event can be altered,
taken out or put in without breaking every later one; ``verify`` walks the chain.

The head row is the only lock. It is taken last and nothing is locked after it, so it cannot take part in a
deadlock, and it is held for two statements.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, StrEnum
from typing import Any
from uuid import UUID

from django.db import connection, models
from django.utils import timezone

from accounts.key_text import CONTAINS_KEY
from accounts.models import AuditEvent, AuditHead, Tenant
from accounts.principal import Actor

#: What the first event's ``previous_hash`` is.
GENESIS_HASH = "0" * 64

_SECRET_FIELDS = re.compile(r"(^|_)(password|secret|token|digest|pepper|authorization|cookie|raw)$")
_PERSONAL_FIELDS = frozenset({"email", "first_name", "last_name"})
_ACTION = re.compile(r"[a-z_]+\.[a-z_]+")
_MASK = "***"


class AuditError(RuntimeError):
    """The event cannot be recorded, so the change must not be made."""


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """What was changed, where it is no row: kind, id and name as they are now."""

    kind: str
    id: str
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of a transaction that makes several."""

    action: str
    obj: models.Model | ObjectRef
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None
    tenant_id: UUID | None = None


def record(
    actor: Actor,
    action: str,
    obj: models.Model | ObjectRef,
    before: Mapping[str, Any] | None,
    after: Mapping[str, Any] | None,
    *,
    tenant_id: UUID | None = None,
) -> None:
    """Append one event to the chain, in the caller's transaction, as its last statement.

    ``action`` is ``object.verb``. ``before`` and ``after`` hold the fields that matter, as plain values; secrets and
    personal fields in them are masked. ``tenant_id`` is found from ``obj`` where it has one.
    Raises ``AuditError`` outside of a transaction, and whatever the database raises: the change fails with it.
    """
    record_all(actor, [Change(action=action, obj=obj, before=before, after=after, tenant_id=tenant_id)])


def record_all(actor: Actor, changes: Sequence[Change]) -> None:
    """Append the events of a transaction that changes several things, in order; otherwise as ``record``."""
    if not connection.in_atomic_block:
        raise AuditError("audit.record() must be called inside the transaction that makes the change")
    if not changes:
        return
    head = AuditHead.objects.select_for_update(no_key=True).filter(id=1).first()
    if head is None:
        raise AuditError("the audit chain has no head row: run `manage.py migrate`")
    at = timezone.now()
    events: list[AuditEvent] = []
    previous, sequence = head.hash, head.sequence
    for change in changes:
        sequence += 1
        event = _event(actor, change, sequence, at, previous)
        events.append(event)
        previous = event.hash
    AuditEvent.objects.bulk_create(events)
    # Conditional, so that a database without row locks cannot fork the chain either.
    if not AuditHead.objects.filter(id=1, sequence=head.sequence, hash=head.hash).update(
        sequence=sequence, hash=previous
    ):
        raise AuditError("the audit chain's head moved while this transaction held it: nothing was changed")


def fields_of(obj: models.Model, *names: str) -> dict[str, Any]:
    """The named fields of a row as plain values, for ``before`` and ``after``."""
    return {name: _plain(getattr(obj, name)) for name in names}


class BreakReason(StrEnum):
    """What is wrong where the chain is broken."""

    MISSING = "missing"
    ALTERED = "altered"
    UNLINKED = "unlinked"
    HEAD_MISMATCH = "head_mismatch"


@dataclass(frozen=True, slots=True)
class ChainBreak:
    """Where the chain is broken first, and how."""

    sequence: int
    reason: BreakReason


@dataclass(frozen=True, slots=True)
class Verification:
    """What a walk along the chain found: how many events hold, and the first break if there is one."""

    events: int
    head_hash: str
    broken: ChainBreak | None


def verify() -> Verification:
    """Walk the chain from its first event to the head as it is now. Events appended meanwhile are left out."""
    head = AuditHead.objects.get(id=1)
    previous, expected = GENESIS_HASH, 1
    events: Iterable[AuditEvent] = (
        AuditEvent.objects.filter(sequence__lte=head.sequence).order_by("sequence").iterator(chunk_size=1000)
    )
    for event in events:
        reason = None
        if event.sequence != expected:
            reason = BreakReason.MISSING
        elif event.previous_hash != previous:
            reason = BreakReason.UNLINKED
        elif event.hash != _hash(event):
            reason = BreakReason.ALTERED
        if reason is not None:
            return Verification(expected - 1, head.hash, ChainBreak(expected, reason))
        previous, expected = event.hash, expected + 1
    if expected - 1 != head.sequence:
        return Verification(expected - 1, head.hash, ChainBreak(expected, BreakReason.MISSING))
    if previous != head.hash:
        return Verification(expected - 1, head.hash, ChainBreak(head.sequence, BreakReason.HEAD_MISMATCH))
    return Verification(expected - 1, head.hash, None)


def _event(actor: Actor, change: Change, sequence: int, at: datetime, previous: str) -> AuditEvent:
    if not _ACTION.fullmatch(change.action):
        raise AuditError(f"an audit action is `object.verb`, not {change.action!r}")
    reference = reference_of(change.obj)
    event = AuditEvent(
        sequence=sequence,
        at=at,
        actor_kind=actor.kind,
        actor_id=actor.id,
        actor_name=_masked_text(actor.name)[:150],
        action=change.action,
        object_kind=reference.kind,
        object_id=reference.id,
        object_name=_masked_text(reference.name)[:200],
        tenant_id=change.tenant_id or _tenant_of(change.obj),
        before=_masked(change.before),
        after=_masked(change.after),
        request_id=actor.request_id[:64],
        address=actor.address[:45],
        previous_hash=previous,
    )
    event.hash = _hash(event)
    return event


def _hash(event: AuditEvent) -> str:
    content = {
        "sequence": event.sequence,
        "at": event.at.astimezone(UTC).isoformat(timespec="microseconds"),
        "actor": [event.actor_kind, event.actor_id, event.actor_name],
        "action": event.action,
        "object": [event.object_kind, event.object_id, event.object_name],
        "tenant": event.tenant_id.hex if event.tenant_id else None,
        "before": event.before,
        "after": event.after,
        "request": event.request_id,
        "address": event.address,
        "previous": event.previous_hash,
    }
    return hashlib.sha256(canonical_json(content)).hexdigest()


def canonical_json(value: Any) -> bytes:
    """The one way to write ``value`` as JSON: keys sorted, no spaces, UTF-8. Has no floats: they print unequally."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def reference_of(obj: models.Model | ObjectRef) -> ObjectRef:
    """How events name ``obj``: its kind is its model's name in snake case."""
    if isinstance(obj, ObjectRef):
        return obj
    kind = re.sub(r"(?<!^)(?=[A-Z])", "_", type(obj).__name__).lower()
    return ObjectRef(kind=kind, id=str(obj.pk), name=str(obj))


def _tenant_of(obj: models.Model | ObjectRef) -> UUID | None:
    if isinstance(obj, Tenant):
        return obj.id
    tenant_id = getattr(obj, "tenant_id", None)
    return tenant_id if isinstance(tenant_id, UUID) else None


def _masked(values: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if values is None:
        return None
    return {name: _MASK if _must_hide(name, value) else _plain(value) for name, value in values.items()}


def _must_hide(name: str, value: Any) -> bool:
    text = isinstance(value, str) and value != ""
    return text and (name in _PERSONAL_FIELDS or _SECRET_FIELDS.search(name) is not None)


def _masked_text(text: str) -> str:
    return CONTAINS_KEY.sub(_MASK, text)


def _plain(value: Any) -> Any:
    """``value`` as JSON without floats. Raises ``AuditError`` for what has no one canonical form."""
    match value:
        case Enum():
            return _plain(value.value)
        case None | bool() | int():
            return value
        case str():
            return _masked_text(value)
        case UUID():
            return str(value)
        case datetime():
            return value.astimezone(UTC).isoformat()
        case models.Model():
            return _plain(value.pk)
        case Mapping():
            return _masked(value)
        case list() | tuple():
            return [_plain(item) for item in value]
        case set() | frozenset():
            return sorted(_plain(item) for item in value)
        case _:
            raise AuditError(f"audit values are plain (text, whole numbers, times, ids), not {value!r}")
