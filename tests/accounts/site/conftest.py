from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from accounts.models import Role, Tenant
from tests.factories import MembershipFactory, TenantFactory, UserFactory

#: A signed-in browser of somebody who has that role in the tenant.
AsRole = Callable[[Role], Client]


@pytest.fixture
def rail(_admin_pages: None) -> Tenant:
    tenant: Tenant = TenantFactory(name="Rail", slug="rail", time_zone="Asia/Seoul")
    return tenant


@pytest.fixture
def as_role(rail: Tenant) -> AsRole:
    def sign_in(role: Role) -> Client:
        membership: Any = MembershipFactory(tenant=rail, user=UserFactory(username=f"the {role}"), role=role)
        client = Client()
        client.force_login(membership.user)
        return client

    return sign_in


@pytest.fixture
def as_owner(as_role: AsRole) -> Client:
    return as_role(Role.OWNER)
