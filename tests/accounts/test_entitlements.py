from __future__ import annotations

import pytest
from django.utils import timezone

from accounts import entitlements
from accounts.models import AuditEvent, Entitlement, Lane
from accounts.refusals import ChangeRefusal, ChangeRefused
from accounts.tenancy import every_tenant
from tests.factories import ACTOR, EntitlementFactory, OperatorFactory, TenantFactory

pytestmark = pytest.mark.django_db


def test_a_grant_records_who_gave_what_and_why() -> None:
    operator, tenant = OperatorFactory(), TenantFactory()
    entitlement = entitlements.grant(
        tenant=tenant,
        lane=Lane.objects.get(name="high"),
        weight=3,
        speculation=False,
        reason=" launch week ",
        granted_by=operator,
        actor=ACTOR,
    )
    assert (entitlement.weight, entitlement.speculation, entitlement.reason) == (3, False, "launch week")
    event = AuditEvent.objects.get()
    assert event.after is not None
    assert (event.action, event.tenant_id, event.after["lane_id"]) == ("entitlement.grant", tenant.id, "high")
    assert event.after["reason"] == "launch week"


def test_a_lane_is_granted_again_only_after_it_was_ended() -> None:
    standing = EntitlementFactory()
    with pytest.raises(ChangeRefused) as refusal:
        entitlements.grant(tenant=standing.tenant, lane=standing.lane, actor=ACTOR)
    assert refusal.value.code == ChangeRefusal.ALREADY_ENTITLED
    entitlements.end(entitlement=standing, actor=ACTOR)
    entitlements.grant(tenant=standing.tenant, lane=standing.lane, actor=ACTOR)


def test_a_change_shows_before_and_after_and_none_shows_nothing() -> None:
    entitlement = EntitlementFactory()
    entitlements.change(entitlement=entitlement, weight=1, speculation=True, reason="", actor=ACTOR)
    assert not AuditEvent.objects.exists()
    entitlements.change(entitlement=entitlement, weight=4, speculation=True, reason="", actor=ACTOR)
    event = AuditEvent.objects.get()
    assert event.before is not None
    assert event.after is not None
    assert (event.before["weight"], event.after["weight"]) == (1, 4)


@pytest.mark.parametrize("weight", [0, -1, 1001])
def test_a_weight_out_of_range_is_refused(weight: int) -> None:
    entitlement = EntitlementFactory()
    with pytest.raises(ChangeRefused) as refusal:
        entitlements.change(entitlement=entitlement, weight=weight, speculation=True, reason="", actor=ACTOR)
    assert refusal.value.field == "weight"


def test_what_has_ended_is_not_changed() -> None:
    ended = EntitlementFactory(ended_at=timezone.now())
    with pytest.raises(ChangeRefused) as refusal:
        entitlements.change(entitlement=ended, weight=2, speculation=True, reason="", actor=ACTOR)
    assert refusal.value.code == ChangeRefusal.ENTITLEMENT_ENDED


def test_several_are_ended_at_once_each_with_its_record() -> None:
    standing = [EntitlementFactory() for _ in range(3)]
    ended = EntitlementFactory(ended_at=timezone.now())
    assert entitlements.end_all(entitlements=[*standing, ended], actor=ACTOR) == 3
    assert entitlements.end_all(entitlements=standing, actor=ACTOR) == 0
    with every_tenant("test"):
        assert not Entitlement.objects.filter(ended_at=None).exists()
    assert AuditEvent.objects.filter(action="entitlement.end").count() == 3


def test_a_closed_tenant_gets_no_entitlement() -> None:
    with pytest.raises(ChangeRefused) as refusal:
        entitlements.grant(
            tenant=TenantFactory(closed_at=timezone.now()), lane=Lane.objects.get(name="low"), actor=ACTOR
        )
    assert refusal.value.code == ChangeRefusal.TENANT_CLOSED
