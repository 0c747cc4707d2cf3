"""Appending to the chain of events, in the transaction of the change.

Every verb that writes calls ``record`` last in its own transaction: the change and its record are committed together or
not at all. The head row is the only lock. It is taken last and nothing is locked after it, so it cannot take part in a
deadlock, and it is held for four statements.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from django.db import DatabaseError, connection, models
from django.utils import timezone

from accounts.audit.contents import EVENT_FORMAT, event_hash
from accounts.audit.values import (
    ACCOUNT_PATH,
    AuditError,
    PersonalValue,
    masked,
    masked_text,
    personal_fields,
    plain,
)
from accounts.models import AuditEvent, AuditHead, AuditPersonalValue, Membership, Tenant, User
from accounts.principal import Actor

_ACTION = re.compile(r"[a-z_]+\.[a-z_]+")
#: On what keeps an event from being appended, whatever it is.
_NOT_RECORDED: Final = "It could not be recorded in the audit, and so it was not done."
#: Kinds of objects whose names are people's.
_NAMED_AFTER_PEOPLE: Final = frozenset({"user", "membership"})


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
) -> AuditEvent:
    """Append one event to the chain, in the caller's transaction, as its last statement; return it.

    ``action`` is ``object.verb``. ``before`` and ``after`` hold the fields that matter, as plain values; secrets in
    them are masked, and people's names and addresses are kept where they can be erased. ``tenant_id`` is found from
    ``obj`` where it has one. Raises ``AuditError`` outside of a transaction, and whatever the database raises: the
    change fails with it.
    """
    [event] = record_all(
        actor, [Change(action=action, obj=obj, before=before, after=after, tenant_id=tenant_id)]
    )
    return event


def record_all(actor: Actor, changes: Sequence[Change]) -> list[AuditEvent]:
    """Append the events of a transaction that changes several things, in order; otherwise as ``record``."""
    if not connection.in_atomic_block:
        raise AuditError("audit.record() must be called inside the transaction that makes the change")
    if not changes:
        return []
    try:
        return _append(actor, changes)
    except DatabaseError as error:
        error.add_note(_NOT_RECORDED)
        raise


def kept_from_recording(error: BaseException | None) -> bool:
    """Whether it was the audit that failed, and the change with it."""
    return isinstance(error, AuditError) or _NOT_RECORDED in getattr(error, "__notes__", ())


def _append(actor: Actor, changes: Sequence[Change]) -> list[AuditEvent]:
    head = AuditHead.objects.select_for_update(no_key=True).filter(id=1).first()
    if head is None:
        raise AuditError("the audit chain has no head row: run `manage.py migrate`")
    at = timezone.now()
    events: list[AuditEvent] = []
    personal_values: list[AuditPersonalValue] = []
    previous, sequence = head.hash, head.sequence
    for change in changes:
        sequence += 1
        event, personal = _event(actor, change, sequence, at, previous)
        events.append(event)
        personal_values.extend(
            AuditPersonalValue(
                event=event, path=one.path, person_id=one.person_id, salt=one.salt, value=one.value
            )
            for one in personal
        )
        previous = event.hash
    AuditEvent.objects.bulk_create(events)
    AuditPersonalValue.objects.bulk_create(personal_values)
    # Conditional, so that a database without row locks cannot fork the chain either.
    if not AuditHead.objects.filter(id=1, sequence=head.sequence, hash=head.hash).update(
        sequence=sequence, hash=previous
    ):
        raise AuditError("the audit chain's head moved while this transaction held it: nothing was changed")
    return events


def fields_of(obj: models.Model, *names: str) -> dict[str, Any]:
    """The named fields of a row as plain values, for ``before`` and ``after``."""
    return {name: plain(getattr(obj, name)) for name in names}


def reference_of(obj: models.Model | ObjectRef) -> ObjectRef:
    """How events name ``obj``: its kind is its model's name in snake case."""
    if isinstance(obj, ObjectRef):
        return obj
    # Not its type's name: the user of a request is a stand-in for the row.
    kind = re.sub(r"(?<!^)(?=[A-Z])", "_", str(obj._meta.object_name)).lower()
    return ObjectRef(kind=kind, id=str(obj.pk), name=str(obj))


def _event(
    actor: Actor, change: Change, sequence: int, at: datetime, previous: str
) -> tuple[AuditEvent, list[PersonalValue]]:
    if not _ACTION.fullmatch(change.action):
        raise AuditError(f"an audit action is `object.verb`, not {change.action!r}")
    reference = reference_of(change.obj)
    actor_name = masked_text(actor.name)[:150]
    object_name = masked_text(reference.name)[:200]
    personal = list(_personal_values(actor, actor_name, change, reference, object_name))
    paths = {one.path: one.commitment for one in personal}
    event = AuditEvent(
        sequence=sequence,
        format=EVENT_FORMAT,
        at=at,
        actor_kind=actor.kind,
        actor_id=actor.id,
        actor_name="" if "actor_name" in paths else actor_name,
        session=actor.session[:16],
        action=change.action,
        object_kind=reference.kind,
        object_id=reference.id,
        object_name="" if "object_name" in paths else object_name,
        tenant_id=change.tenant_id or _tenant_of(change.obj),
        before=masked(change.before),
        after=masked(change.after),
        request_id=actor.request_id[:64],
        address="",
        personal=paths,
        previous_hash=previous,
    )
    event.hash = event_hash(event)
    return event, personal


def _personal_values(
    actor: Actor, actor_name: str, change: Change, reference: ObjectRef, object_name: str
) -> list[PersonalValue]:
    """What of the event is about people: who acted, from where, and whom it was done to."""
    actor_id = UUID(actor.id) if actor.kind == "user" else None
    person_id = _person_of(change.obj)
    found = []
    if actor.kind == "user":
        found.append(PersonalValue.of("actor_name", actor_name, actor_id))
    if actor.account:
        found.append(PersonalValue.of(ACCOUNT_PATH, masked_text(actor.account), None))
    if actor.address:
        found.append(PersonalValue.of("address", actor.address[:45], actor_id))
    if reference.kind in _NAMED_AFTER_PEOPLE and object_name:
        found.append(PersonalValue.of("object_name", object_name, person_id))
    return [
        *found,
        *personal_fields("before", change.before, person_id),
        *personal_fields("after", change.after, person_id),
    ]


def _person_of(obj: models.Model | ObjectRef) -> UUID | None:
    match obj:
        case User():
            return obj.id
        case Membership():
            return obj.user_id
        case ObjectRef(kind="user", id=str(text)) if text:
            return UUID(text)
        case _:
            return None


def _tenant_of(obj: models.Model | ObjectRef) -> UUID | None:
    if isinstance(obj, Tenant):
        return obj.id
    tenant_id = getattr(obj, "tenant_id", None)
    return tenant_id if isinstance(tenant_id, UUID) else None
