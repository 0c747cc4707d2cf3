"""One event on its page: what it says, where it leads, and whether its place in the chain holds."""

from __future__ import annotations

from dataclasses import dataclass

from django.http import HttpRequest
from django.urls import reverse

from accounts.admin.audit_links import about_object, by_actor, events_url, page_of
from accounts.admin.trail import TrailEntry
from accounts.audit import batches
from accounts.audit.canonical import GENESIS_HASH
from accounts.audit.contents import event_hash
from accounts.audit.names import as_id
from accounts.formatting import number
from accounts.models import AuditArchive, AuditEvent, AuditHead, SealedAssignment, User

_ACTORS = {
    "user": "user",
    "api_key": "API key",
    "system": "the system, or a command",
    "anonymous": "nobody who had signed in",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What its place in the chain looks like now. ``held``: its own hash, and its links to both sides."""

    held: bool
    said: str
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """All that the page of an event shows. Addresses are empty where there is nothing that the reader may see."""

    entry: TrailEntry
    actor_kind: str
    #: What a person who acted is called now, if that is something else; else empty.
    actor_now: str
    object_url: str
    actor_url: str
    tenant_url: str
    about_object: str
    by_actor: str
    in_session: str
    in_request: str
    place: Place
    #: Of a batch: how many leaves there are, and the generation of the first.
    leaves: int


def page_of_event(request: HttpRequest, entry: TrailEntry) -> Page:
    """What is shown of an event. A few queries."""
    event = entry.event
    tenant_id = str(event.tenant_id) if event.tenant_id else ""
    actor_page = event.actor_kind if event.actor_kind in ("user", "api_key") else ""
    return Page(
        entry=entry,
        actor_kind=_ACTORS.get(event.actor_kind, event.actor_kind),
        actor_now=_called_now(entry),
        object_url=page_of(request, event.object_kind, event.object_id),
        actor_url=page_of(request, actor_page, event.actor_id),
        tenant_url=page_of(request, "tenant", tenant_id),
        about_object=about_object(event) if event.object_id else "",
        by_actor=by_actor(event),
        in_session=events_url(session=event.session) if event.session else "",
        in_request=events_url(request_id=event.request_id) if event.request_id else "",
        place=_place(event),
        leaves=SealedAssignment.objects.filter(batch=event.sequence).count()
        if event.action == batches.ACTION
        else 0,
    )


def _called_now(entry: TrailEntry) -> str:
    actor_id = as_id(entry.event.actor_id) if entry.event.actor_kind == "user" else None
    if actor_id is None:
        return ""
    users = User.objects.filter(id=actor_id, erased_at=None).exclude(username=entry.said.actor_name)
    return users.values_list("username", flat=True).first() or ""


def _place(event: AuditEvent) -> Place:
    neighbours = AuditEvent.objects.in_bulk([event.sequence - 1, event.sequence + 1])
    before, after = neighbours.get(event.sequence - 1), neighbours.get(event.sequence + 1)
    fault = _fault(event, before, after)
    return Place(
        held=not fault,
        said=fault or "Its hash covers what it says and the hash before it, and what follows names it.",
        before=_url(before),
        after=_url(after),
    )


def _fault(event: AuditEvent, before: AuditEvent | None, after: AuditEvent | None) -> str:
    """What is wrong with the place of ``event``; empty: nothing."""
    if event.hash != event_hash(event):
        return "Its hash does not cover what it says: this event was changed after it was recorded."
    if event.previous_hash != _hash_before(event, before):
        return f"It does not follow event {number(event.sequence - 1)}: that one was changed, or is gone."
    if after is not None:
        return "" if after.previous_hash == event.hash else "The event after it names another hash before it."
    head = AuditHead.objects.get(id=1)
    if head.sequence != event.sequence:
        return f"Event {number(event.sequence + 1)}, the one after it, is gone."
    return "" if head.hash == event.hash else "It is the last event, and the chain's head has another hash."


def _hash_before(event: AuditEvent, before: AuditEvent | None) -> str | None:
    if event.sequence == 1:
        return GENESIS_HASH
    if before is not None:
        return before.hash
    archived = AuditArchive.objects.filter(last_sequence=event.sequence - 1)
    return archived.values_list("last_hash", flat=True).first()


def _url(event: AuditEvent | None) -> str:
    return reverse("admin:accounts_auditevent_change", args=(event.sequence,)) if event is not None else ""
