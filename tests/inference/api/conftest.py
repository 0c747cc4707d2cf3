from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import redis

from accounts.models import Lane, Tenant
from inference.dispatch.delivery import delivery
from inference.models import LanguageModel
from tests.factories import ApiKeyFactory, EntitlementFactory, LanguageModelFactory, TenantFactory
from tests.inference.api.asgi_client import AsgiClient
from tests.inference.api.hand import Hand
from tests.inference.api.socket_client import Connect, SocketClient
from tests.inference.engine.tiny_model import CONTEXT_LENGTH


@pytest.fixture
def model(transactional_db: None, valkey: redis.Redis, tiny_model_dir: Path) -> LanguageModel:
    """An offered model whose tokenizer and template are real; the test's hand writes its answers."""
    made: LanguageModel = LanguageModelFactory(
        name="tiny/model",
        directory=str(tiny_model_dir),
        context_length=CONTEXT_LENGTH,
        checksum="c0ffee" * 10,
    )
    return made


@pytest.fixture
def tenant(transactional_db: None) -> Tenant:
    """A tenant that may use every lane."""
    made: Tenant = TenantFactory()
    for lane in Lane.objects.all():
        EntitlementFactory(tenant=made, lane=lane)
    return made


@pytest.fixture
def key(tenant: Tenant) -> str:
    return str(ApiKeyFactory(tenant=tenant).raw)


@pytest.fixture
async def api(key: str, model: LanguageModel) -> AsyncIterator[AsgiClient]:
    """A client of the whole application, with the tenant's key."""
    yield AsgiClient(key)
    await delivery().aclose()


@pytest.fixture
def hand(valkey: redis.Redis, model: LanguageModel) -> Hand:
    """The worker's hand of ``model``."""
    return Hand(valkey, model.name)


@pytest.fixture
def plain_static(settings: Any) -> None:
    """Pages of the site without collected static files."""
    settings.STORAGES = {
        **settings.STORAGES,
        "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
    }


@pytest.fixture
async def connect(model: LanguageModel) -> AsyncIterator[Connect]:
    """Opens connections that are closed at the test's end."""
    opened: list[SocketClient] = []

    async def connect_(**options: Any) -> SocketClient:
        client = SocketClient(**options)
        await client.connect()
        opened.append(client)
        return client

    yield connect_
    for client in opened:
        await client.hang_up()
    await delivery().aclose()
