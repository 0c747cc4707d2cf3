"""An installation in which high was granted, approved and used on one day, for tests of the audit's pages."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import time_machine
from django.db import transaction
from django.utils import timezone

from accounts import approvals, entitlements, keys, lanes, tenants
from accounts.admission import admit, plan
from accounts.audit import checkpoints, sealing
from accounts.lane_resolution import Wish
from accounts.limits import Limits
from accounts.models import ApiKey, Entitlement, Lane, LaneAssignment, OnExhausted, Tenant, User
from accounts.principal import Actor, Principal
from accounts.tenancy import every_tenant
from tests.factories import OperatorFactory, UserFactory

#: A Sunday, and the Tuesday before it.
NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
TUESDAY = datetime(2026, 11, 24, 9, 30, tzinfo=UTC)


def acting(user: User, *, address: str = "192.0.2.7", session: str = "", request_id: str = "") -> Actor:
    """``user`` as an actor."""
    return Actor(
        kind="user",
        id=str(user.pk),
        name=user.username,
        request_id=request_id or f"req_{user.username}",
        address=address,
        session=session,
    )


@dataclass(frozen=True)
class Audited:
    """What there is. ``ada`` asked for the grant, ``grace`` approved it; ``person`` used it too, in the chat."""

    ada: User
    grace: User
    person: User
    timetable: Tenant
    depot: Tenant
    granted: Entitlement
    key: ApiKey
    by_key: list[UUID]
    by_person: UUID
    stepped_down: UUID


def run(principal: Principal, requested: str | None, *, tokens: int = 100) -> UUID:
    """One generation's admission."""
    planned = plan(principal, Wish(requested=requested, tokens=tokens, prompt_tokens=10), timezone.now())
    generation_id = uuid.uuid4()
    with transaction.atomic():
        admit(principal, planned, planned.choose(), generation_id)
    return generation_id


def principal_of(key: ApiKey) -> Principal:
    """The key as a caller."""
    return Principal(
        tenant_id=key.tenant_id,
        tenant_name=key.tenant.name,
        scopes=frozenset(key.scopes),
        name=key.name,
        api_key_id=key.id,
        api_key_prefix=key.prefix,
        default_lane=key.default_lane_id,
        key_allowance_id=key.allowance_id,
        allowed_lanes=frozenset(key.allowed_lanes),
    )


def audited(tuesday: datetime = TUESDAY, *, checkpoint: bool = True) -> Audited:
    """Make it all, granted two days before ``tuesday`` and used then."""
    with time_machine.travel(tuesday - timedelta(days=2), tick=True):
        ada, grace = OperatorFactory(username="ada"), OperatorFactory(username="grace")
        person = UserFactory(username="mabel")
        timetable = tenants.create(
            name="Timetable", slug="timetable", lanes=Lane.objects.filter(name="normal"), actor=acting(ada)
        )
        depot = tenants.create(
            name="Depot", slug="depot", lanes=Lane.objects.filter(name="low"), actor=acting(ada)
        )
        high = Lane.objects.get(name="high")
        lanes.set_approval(lane=high, approval_above_tokens=1000, actor=acting(ada))
        requested = entitlements.grant(
            tenant=timetable,
            lane=high,
            actor=acting(ada, session="5e55" * 4),
            granted_by=ada,
            limits=Limits(tokens_per_day=1000),
            ends_at=tuesday + (NOW - TUESDAY) + timedelta(days=30),
            on_exhausted=OnExhausted.STEP_DOWN,
            step_down_to=Lane.objects.get(name="normal"),
            reason="winter timetable",
        )
        if requested.approval == "requested":
            with every_tenant("test"):
                requested = approvals.approve(
                    entitlement=requested,
                    decided_by=grace,
                    actor=acting(grace, address="198.51.100.9"),
                    reason="agreed",
                )
        key = keys.create(
            tenant=timetable, name="departures", actor=acting(ada), default_lane=high, limits=Limits()
        ).key
    with time_machine.travel(tuesday, tick=True), every_tenant("test"):
        key = ApiKey.objects.select_related("tenant").get(id=key.id)
        by_key = [run(principal_of(key), None) for _ in range(3)]
        by_person = run(
            Principal(
                tenant_id=timetable.id,
                tenant_name=timetable.name,
                scopes=frozenset(),
                name="mabel",
                user_id=person.id,
            ),
            "priority",
        )
        stepped_down = run(principal_of(key), "high", tokens=900)
        sealing.seal(datetime.now(UTC))
        if checkpoint:
            checkpoints.make(datetime.now(UTC))
    return Audited(
        ada=ada,
        grace=grace,
        person=person,
        timetable=timetable,
        depot=depot,
        granted=requested,
        key=key,
        by_key=by_key,
        by_person=by_person,
        stepped_down=stepped_down,
    )


def change_assignment(generation_id: UUID, **columns: Any) -> None:
    """Change a record past everything; the database's triggers must be away."""
    with every_tenant("test"):
        assert LaneAssignment.objects.filter(pk=generation_id).update(**columns) == 1
