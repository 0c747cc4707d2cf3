from __future__ import annotations

import pytest

from accounts import tenants
from accounts.models import AuditEvent, Entitlement, Lane
from accounts.refusals import ChangeRefusal, ChangeRefused
from accounts.tenancy import tenant_scope
from tests.factories import ACTOR, TenantFactory

pytestmark = pytest.mark.django_db


def test_a_tenant_is_made_with_its_standing_entitlements() -> None:
    tenant = tenants.create(name="Rail", slug="rail", actor=ACTOR, lanes=[Lane.objects.get(name="low")])
    with tenant_scope(tenant.id):
        assert Entitlement.objects.get().lane_id == "low"
    assert list(AuditEvent.objects.order_by("sequence").values_list("action", "tenant_id")) == [
        ("tenant.create", tenant.id),
        ("entitlement.grant", tenant.id),
    ]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"name": "Rail", "slug": "taken"}, ChangeRefusal.NAME_TAKEN),
        ({"name": "", "slug": "rail"}, ChangeRefusal.INVALID),
        ({"name": "Rail", "slug": "not a slug"}, ChangeRefusal.INVALID),
        ({"name": "Rail", "slug": "s" * 61}, ChangeRefusal.INVALID),
    ],
)
def test_an_impossible_tenant_is_refused(fields: dict[str, str], code: ChangeRefusal) -> None:
    TenantFactory(slug="taken")
    with pytest.raises(ChangeRefused) as refusal:
        tenants.create(actor=ACTOR, **fields)  # type: ignore[arg-type]
    assert refusal.value.code == code
    assert not AuditEvent.objects.exists()


def test_a_tenant_is_renamed_closed_and_reopened_each_recorded_once() -> None:
    tenant = TenantFactory(name="Rail")
    for _ in range(2):
        tenants.rename(tenant=tenant, name="Railway", actor=ACTOR)
        tenants.close(tenant=tenant, actor=ACTOR)
        tenants.close(tenant=tenant, actor=ACTOR)
    reopened = tenants.reopen(tenant=tenant, actor=ACTOR)
    assert (reopened.name, reopened.closed_at) == ("Railway", None)
    assert list(AuditEvent.objects.order_by("sequence").values_list("action", flat=True)) == [
        "tenant.rename",
        "tenant.close",
        "tenant.reopen",
    ]


def test_nothing_is_learned_from_a_tenant_until_that_is_allowed() -> None:
    tenant = tenants.create(name="Rail", slug="rail", actor=ACTOR)
    assert not tenant.suffix_pool


def test_a_tenant_is_learned_from_or_no_longer_each_recorded_once() -> None:
    tenant = TenantFactory()
    for learns in (True, True, False):
        tenant = tenants.set_suffix_pool(tenant=tenant, suffix_pool=learns, actor=ACTOR)
        assert tenant.suffix_pool == learns
    events = list(AuditEvent.objects.order_by("sequence"))
    assert [event.action for event in events] == ["tenant.set_suffix_pool"] * 2
    assert [(event.before["suffix_pool"], event.after["suffix_pool"]) for event in events] == [
        (False, True),
        (True, False),
    ]
    assert events[0].tenant_id == tenant.id
