"""Where a record leads: to the page of what it is about, as far as the reader may see that, and to other records."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse

from accounts.audit import batches
from accounts.models import AuditEvent


def events_url(**narrowed: str) -> str:
    """The list of events, narrowed by their fields."""
    query = urlencode({name: value for name, value in narrowed.items() if value})
    return f"{reverse('admin:accounts_auditevent_changelist')}?{query}"


def assignments_url(**narrowed: str) -> str:
    """The list of lane assignments, narrowed."""
    query = urlencode({name: value for name, value in narrowed.items() if value})
    return f"{reverse('admin:accounts_laneassignment_changelist')}?{query}"


def page_of(request: HttpRequest, kind: str, object_id: str) -> str:
    """The page of the object that events call so; empty: it has none, or the reader may not see it."""
    model = _kinds().get(kind)
    if model is None or not object_id:
        return ""
    page = admin.site._registry[model]
    if not page.has_view_permission(request):
        return ""
    opts = model._meta
    try:
        return reverse(f"admin:{opts.app_label}_{opts.model_name}_change", args=(object_id,))
    except NoReverseMatch:
        return ""


def about_object(event: AuditEvent) -> str:
    """The events about the object of ``event``."""
    return events_url(
        object_kind=event.object_kind,
        object_id=event.object_id,
        seals="shown" if event.action == batches.ACTION else "",
    )


def by_actor(event: AuditEvent) -> str:
    """The events by the actor of ``event``; of a part of the system, which has no id, by its name."""
    if event.actor_id:
        return events_url(actor_kind=event.actor_kind, actor_id=event.actor_id)
    return events_url(actor_kind=event.actor_kind, actor_name=event.actor_name)


def _kinds() -> Mapping[str, Any]:
    """The models that have pages, by the kind that events call them: their name in snake case."""
    return {re.sub(r"(?<!^)(?=[A-Z])", "_", model.__name__).lower(): model for model in admin.site._registry}
