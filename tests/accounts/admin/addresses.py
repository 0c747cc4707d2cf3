"""Every address of the admin and of the site, by walking their routes, and rows for them to show."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from typing import Any, Final

from django.contrib import admin
from django.urls import URLPattern, URLResolver
from django.urls.resolvers import RoutePattern
from django.utils import timezone

from accounts import users
from accounts.audit import sealing
from accounts.models import LaneAssignment
from accounts.tenancy import every_tenant
from signalbox.urls import urlpatterns
from tests.accounts.audit.chains import assignment
from tests.factories import (
    ACTOR,
    ApiKeyFactory,
    BudgetEventFactory,
    ConversationFactory,
    EntitlementFactory,
    GenerationFactory,
    MembershipFactory,
    UserFactory,
    WebhookDeliveryFactory,
    WorkerFactory,
)

#: What stands in the place of an id in addresses; rows of ``make_rows`` have it where it is free.
THE_ID: Final = uuid.UUID(int=1)
#: What everybody who sees it may send something to: leaving, and what only reads. Signing in leads on who is in.
OPEN: Final = frozenset({"login", "logout", "accounts_audit_verify", "accounts_audit_export"})
#: Not pages of people: what is below is asked for with a key, and has no session.
_WITH_KEYS: Final = ("^v1", "metrics", "health/")


def _addresses(patterns: list[Any], slug: str, before: str = "") -> Iterator[tuple[str, str]]:
    for pattern in patterns:
        route = str(pattern.pattern) if isinstance(pattern.pattern, RoutePattern) else ""
        if isinstance(pattern, URLResolver):
            yield from _addresses(list(pattern.url_patterns), slug, before + route)
        elif isinstance(pattern, URLPattern) and isinstance(pattern.pattern, RoutePattern):
            filled = re.sub(r"<int:\w+>", "1", before + route)
            filled = re.sub(r"<slug:\w+>", slug, filled)
            yield re.sub(r"<(?:\w+:)?\w+>", str(THE_ID), filled), str(pattern.name)


admin.autodiscover()
#: The admin's, with something in the place of each of their parts, and their names.
ADMIN: Final = sorted(
    {("/admin/" + address, name) for address, name in _addresses(admin.site.urls[0], "high")}
)
#: The other pages' and what their scripts call, of the tenant `rail`.
SITE: Final = sorted(
    {
        ("/" + address, name)
        for address, name in _addresses(
            [one for one in urlpatterns if not str(one.pattern).startswith((*_WITH_KEYS, "admin/"))], "rail"
        )
    }
)


def make_rows() -> None:
    """A row or two of everything, all of the same id where that is free."""
    ApiKeyFactory(id=THE_ID)
    EntitlementFactory(id=THE_ID)
    MembershipFactory(user=UserFactory(id=THE_ID, username="the-one"))
    GenerationFactory(id=THE_ID)
    WorkerFactory()
    ConversationFactory()
    BudgetEventFactory()
    WebhookDeliveryFactory()
    users.create(username="recorded", actor=ACTOR)
    with every_tenant("test"):
        LaneAssignment.objects.bulk_create([assignment(generation_id=THE_ID)])
    sealing.seal(timezone.now())
