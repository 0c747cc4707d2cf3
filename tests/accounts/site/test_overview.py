"""What a tenant may use, as its members see it: lanes, why and until when, and what is left of each limit."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

from django.test import Client
from django.urls import reverse
from django.utils import timezone

from accounts import reservations
from accounts.models import Allowance, Approval, Lane, Tenant
from accounts.rates import rates_of, take
from accounts.tenancy import tenant_scope
from tests.factories import AllowanceFactory, EntitlementFactory, TenantFactory


def lane(name: str) -> Lane:
    found: Lane = Lane.objects.get(name=name)
    return found


def page_of(client: Client) -> str:
    return " ".join(client.get(reverse("tenant", args=["rail"])).content.decode().split())


def hold(tenant: Tenant, allowance: Any, tokens: int) -> Any:
    """One live generation of ``tokens`` at worst; its id."""
    generation_id = uuid4()
    with tenant_scope(tenant.id):
        reservations.reserve(
            generation_id=generation_id,
            tenant_id=tenant.id,
            entitlement_allowance_id=allowance.id,
            key_allowance_id=None,
            tokens=tokens,
            now=timezone.now(),
        )
    return generation_id


def test_each_limit_is_told_with_what_is_used_reserved_left_and_when_it_resets(
    rail: Tenant, as_owner: Client
) -> None:
    granted: Any = EntitlementFactory(
        tenant=rail,
        allowance__tokens_per_day=1000,
        allowance__requests_per_minute=5,
        allowance__concurrency=3,
    )
    used = hold(rail, granted.allowance, 300)
    with tenant_scope(rail.id):
        reservations.settle(used, 250, timezone.now())
    hold(rail, granted.allowance, 400)
    take(uuid4(), rates_of(granted.allowance.id, granted.allowance.limits), 400)
    page = page_of(as_owner)
    assert "650 of 1,000 used (65 %)" in page
    assert "350 left · 400 of it reserved by what runs · resets" in page
    assert "00:00:00 KST" in page
    assert "1 of 5 used (20 %)" in page
    assert "1 of 3 used (33 %)" in page
    assert "1 generation of this tenant waits or runs now." in page
    assert "What does not fit in these limits is refused (429)." in page


def test_lanes_are_shown_with_why_until_when_and_what_comes_after(rail: Tenant, as_owner: Client) -> None:
    tomorrow = timezone.now() + timedelta(days=1)
    EntitlementFactory(
        tenant=rail,
        lane=lane("high"),
        ends_at=tomorrow,
        reason="The timetable changes",
        allowance__tokens_per_day=10,
        on_exhausted="step_down",
        step_down_to=lane("low"),
        longest_queue_wait_s=1200,
    )
    EntitlementFactory(tenant=rail, lane=lane("low"))
    page = page_of(as_owner)
    assert "High lane" in page
    assert "Temporary, until" in page
    assert "The timetable changes" in page
    assert "What does not fit in these limits goes to the lane low." in page
    assert "waited for more than 1,200 seconds" in page
    assert page.index("High lane") < page.index("Low lane")
    assert "Standing" in page
    assert "No limits." in page
    assert page.count("Used when a request asks for none") == 1


def test_what_is_granted_for_later_or_waits_for_approval_is_shown_apart_and_gives_nothing(
    rail: Tenant, as_owner: Client
) -> None:
    now = timezone.now()
    EntitlementFactory(tenant=rail, lane=lane("high"), starts_at=now + timedelta(days=1), reason="Later")
    EntitlementFactory(tenant=rail, lane=lane("normal"), approval=Approval.REQUESTED, reason="Asked for")
    EntitlementFactory(tenant=rail, lane=lane("low"), ends_at=now - timedelta(seconds=1), reason="Long over")
    EntitlementFactory(tenant=rail, lane=lane("low"), ended_at=now, reason="Was ended")
    page = page_of(as_owner)
    assert "This tenant has no lane now" in page
    assert "To come" in page
    assert "Later" in page
    assert "Waits for an operator's approval" in page.replace("&#x27;", "'")
    assert "Long over" not in page
    assert "Was ended" not in page


def test_nothing_of_another_tenant_is_counted(rail: Tenant, as_owner: Client) -> None:
    EntitlementFactory(tenant=rail, allowance__tokens_per_day=1000)
    other = TenantFactory()
    allowance: Any = AllowanceFactory(tenant=other)
    EntitlementFactory(tenant=other, lane=lane("high"), allowance=allowance, reason="A secret plan")
    hold(other, allowance, 500)
    page = page_of(as_owner)
    assert "0 of 1,000 used" in page
    assert "Nothing of this tenant waits or runs now." in page
    assert "A secret plan" not in page


def test_a_limit_that_is_over_says_so(rail: Tenant, as_owner: Client) -> None:
    granted: Any = EntitlementFactory(tenant=rail, allowance__tokens_per_day=1000)
    hold(rail, granted.allowance, 900)
    with tenant_scope(rail.id):
        Allowance.objects.update(tokens_per_day=600)
    page = page_of(as_owner)
    assert "over by 300: nothing new is admitted" in page
    assert "limit-over" in page


def test_the_overview_costs_as_many_queries_for_many_lanes_as_for_one(
    rail: Tenant, as_owner: Client, django_assert_max_num_queries: Any
) -> None:
    EntitlementFactory(tenant=rail, allowance__concurrency=1, allowance__tokens_per_minute=5)
    with django_assert_max_num_queries(14) as few:
        page_of(as_owner)
    for days in range(1, 9):
        EntitlementFactory(
            tenant=rail,
            lane=lane("high"),
            ends_at=timezone.now() + timedelta(days=days),
            allowance__concurrency=1,
            allowance__tokens_per_minute=5,
        )
    with django_assert_max_num_queries(len(few)):
        page_of(as_owner)
