"""A request that no budget has room for leaves the event that says so, and nothing else."""

from __future__ import annotations

import pytest

from accounts.models import Allowance, BudgetEvent, Lane
from accounts.tenancy import every_tenant
from inference.intake import RefusalCode, Refused
from tests.factories import EntitlementFactory, LanguageModelFactory, TenantFactory
from tests.inference.doors import accepted, principal_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("valkey")]


def events() -> list[tuple[str, int, int]]:
    with every_tenant("test"):
        return list(BudgetEvent.objects.order_by("created_at").values_list("subject", "percent", "limit"))


def test_the_first_refusal_for_a_lane_s_budget_is_its_event() -> None:
    tenant, model = TenantFactory(), LanguageModelFactory()
    EntitlementFactory(tenant=tenant, allowance__tokens_per_day=30)
    principal = principal_of(tenant)
    accepted(model, by=principal, prompt=[1] * 10, max_tokens=10)
    for _ in range(2):
        with pytest.raises(Refused) as refusal:
            accepted(model, by=principal, prompt=[1] * 10, max_tokens=10)
        assert refusal.value.code is RefusalCode.INSUFFICIENT_QUOTA
    assert events() == [("lane normal", 100, 30)]


def test_the_key_s_own_budget_has_its_own_event() -> None:
    tenant, model = TenantFactory(), LanguageModelFactory()
    EntitlementFactory(tenant=tenant, allowance__tokens_per_day=1000)
    principal = principal_of(tenant)
    with every_tenant("test"):
        Allowance.objects.filter(id=principal.key_allowance_id).update(tokens_per_day=30)
    accepted(model, by=principal, prompt=[1] * 10, max_tokens=10)
    with pytest.raises(Refused):
        accepted(model, by=principal, prompt=[1] * 10, max_tokens=10)
    [(subject, percent, limit)] = events()
    assert subject.startswith("API key")
    assert (percent, limit) == (100, 30)


def test_stepping_down_is_no_refusal() -> None:
    tenant, model = TenantFactory(), LanguageModelFactory()
    low = Lane.objects.get(name="low")
    EntitlementFactory(
        tenant=tenant, allowance__tokens_per_day=30, on_exhausted="step_down", step_down_to=low
    )
    EntitlementFactory(tenant=tenant, lane=low)
    principal = principal_of(tenant)
    lanes = [accepted(model, by=principal, prompt=[1] * 10, max_tokens=10).admission.lane for _ in range(2)]
    assert lanes == ["normal", "low"]
    assert events() == []
