"""A tenant's members as they see each other."""

from __future__ import annotations

from typing import Any

from django.test import Client
from django.urls import reverse
from django.utils import timezone

from accounts.models import Role, Tenant
from tests.accounts.site.conftest import AsRole
from tests.factories import MembershipFactory, UserFactory


def members_of(client: Client) -> list[tuple[str, str]]:
    page = client.get(reverse("tenant-members", args=["rail"]))
    return [(member.user.username, member.role) for member in page.context["members"]]


def test_live_members_are_listed_from_owners_to_viewers(rail: Tenant, as_role: AsRole) -> None:
    MembershipFactory(tenant=rail, user=UserFactory(username="zoe"), role=Role.OWNER)
    MembershipFactory(tenant=rail, user=UserFactory(username="left"), ended_at=timezone.now())
    MembershipFactory(user=UserFactory(username="elsewhere"))
    assert members_of(as_role(Role.VIEWER)) == [("zoe", "owner"), ("the viewer", "viewer")]


def test_addresses_of_people_are_nobody_s_business(rail: Tenant, as_owner: Client) -> None:
    MembershipFactory(tenant=rail, user=UserFactory(username="ada", email="ada@example.com"))
    page = as_owner.get(reverse("tenant-members", args=["rail"])).content.decode()
    assert "ada" in page
    assert "example.com" not in page


def test_the_list_costs_as_much_for_many_as_for_few(
    rail: Tenant, as_owner: Client, django_assert_max_num_queries: Any
) -> None:
    with django_assert_max_num_queries(8) as few:
        members_of(as_owner)
    for _ in range(20):
        MembershipFactory(tenant=rail)
    with django_assert_max_num_queries(len(few)):
        members_of(as_owner)
