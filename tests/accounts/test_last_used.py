from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
import time_machine
from django.core.cache import cache

from accounts import keys, last_used
from accounts.authentication import InvalidKey, authenticate_key
from accounts.models import ApiKey
from accounts.tasks import roll_up_usage, stamp_last_used
from accounts.tenancy import every_tenant
from tests.factories import ACTOR, ApiKeyFactory

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("valkey")]

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def _stamp(key: ApiKey) -> datetime | None:
    with every_tenant("test"):
        return ApiKey.objects.get(id=key.id).last_used_at


def test_a_key_s_use_reaches_its_row_through_the_task() -> None:
    used, idle = ApiKeyFactory(), ApiKeyFactory()
    with time_machine.travel(NOON, tick=False):
        authenticate_key(used.raw)  # type: ignore[attr-defined]
        assert _stamp(used) is None
        assert last_used.collect() == 1
    assert _stamp(used) == NOON
    assert _stamp(idle) is None


def test_a_stamp_only_moves_forward() -> None:
    key = ApiKeyFactory()
    with time_machine.travel(NOON, tick=False) as clock:
        authenticate_key(key.raw)  # type: ignore[attr-defined]
        last_used.collect()
        assert last_used.collect() == 0
        clock.shift(timedelta(seconds=59))
        authenticate_key(key.raw)  # type: ignore[attr-defined]
        last_used.collect()
        assert _stamp(key) == NOON
        clock.shift(timedelta(seconds=1))
        authenticate_key(key.raw)  # type: ignore[attr-defined]
        last_used.collect()
        assert _stamp(key) == NOON + timedelta(minutes=1)


def test_the_last_use_before_a_revocation_is_told_and_none_after_it() -> None:
    key = ApiKeyFactory()
    with time_machine.travel(NOON, tick=False) as clock:
        authenticate_key(key.raw)  # type: ignore[attr-defined]
        clock.shift(timedelta(seconds=10))
        keys.revoke(key=key, actor=ACTOR)
        clock.shift(timedelta(minutes=5))
        with pytest.raises(InvalidKey):
            authenticate_key(key.raw)  # type: ignore[attr-defined]
        assert last_used.collect() == 1
    assert _stamp(key) == NOON


def test_a_key_works_while_the_cache_cannot_be_reached(settings: Any, valkey: redis.Redis) -> None:
    key = ApiKeyFactory()
    settings.CACHES = {
        "default": {
            "BACKEND": "django.core.cache.backends.redis.RedisCache",
            "LOCATION": "unix:///nowhere/valkey.sock",
        }
    }
    assert authenticate_key(key.raw).api_key_id == key.id  # type: ignore[attr-defined]


def test_the_periodic_tasks_can_be_run() -> None:
    cache.clear()
    assert stamp_last_used() == 0
    assert roll_up_usage() == 0
