from __future__ import annotations

import pytest
import redis

from accounts.models import Tenant
from tests.factories import ApiKeyFactory, TenantFactory
from tests.inference.api.asgi_client import AsgiClient


@pytest.fixture
def admin(tenant: Tenant, valkey: redis.Redis) -> AsgiClient:
    """With a key that administers ``tenant``."""
    return AsgiClient(ApiKeyFactory(tenant=tenant, name="the admin's", scopes=["admin"]).raw)


@pytest.fixture
def operator(valkey: redis.Redis, transactional_db: None) -> AsgiClient:
    """With an operator's key, of a tenant of its own."""
    return AsgiClient(
        ApiKeyFactory(
            tenant=TenantFactory(name="Operators", slug="operators"),
            name="the operator's",
            scopes=["operator"],
        ).raw
    )


@pytest.fixture
def other(transactional_db: None) -> Tenant:
    """A tenant that the admin has nothing to do with."""
    made: Tenant = TenantFactory(name="Other", slug="other")
    return made
