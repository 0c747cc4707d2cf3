from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
import structlog.testing
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from accounts import rates, reservations
from accounts.limits import LimitName
from accounts.models import ApiKey, Lane, Tenant
from accounts.principal import Principal
from accounts.standing import Standing, standing
from accounts.tenancy import tenant_scope
from tests.factories import ApiKeyFactory, EntitlementFactory, MembershipFactory, TenantFactory

pytestmark = pytest.mark.django_db

SIX = {
    "tokens_per_day": 100,
    "tokens_per_week": 200,
    "tokens_per_month": 300,
    "requests_per_minute": 4,
    "tokens_per_minute": 50,
    "concurrency": 6,
}
ALL_SIX = {f"allowance__{name}": limit for name, limit in SIX.items()}


def lane(name: str) -> Lane:
    return Lane.objects.get(name=name)


def principal_of(key: ApiKey, **narrowed: Any) -> Principal:
    return Principal(
        tenant_id=key.tenant_id,
        tenant_name=key.tenant.name,
        scopes=frozenset(key.scopes),
        name=key.name,
        api_key_id=key.id,
        key_allowance_id=key.allowance_id,
        **narrowed,
    )


def of(tenant: Tenant, **narrowed: Any) -> Standing:
    return standing(principal_of(ApiKeyFactory(tenant=tenant), **narrowed), timezone.now())


def lanes_of(found: Standing) -> list[str]:
    return [one.lane.name for one in found.lanes]


def test_every_lane_tells_its_entitlements_in_the_order_of_their_use_and_where_all_limits_stand(
    valkey: redis.Redis,
) -> None:
    tenant, now = TenantFactory(time_zone="Asia/Seoul"), timezone.now()
    high = EntitlementFactory(
        tenant=tenant,
        lane=lane("high"),
        on_exhausted="step_down",
        step_down_to=lane("low"),
        weight=3,
        longest_queue_wait_s=30,
        **ALL_SIX,
    )
    later = EntitlementFactory(tenant=tenant, lane=lane("high"), ends_at=now + timedelta(days=2))
    sooner = EntitlementFactory(
        tenant=tenant, lane=lane("high"), starts_at=now - timedelta(days=1), ends_at=now + timedelta(days=1)
    )
    low = EntitlementFactory(tenant=tenant, lane=lane("low"), speculation=False)
    key = ApiKeyFactory(tenant=tenant, allowance__concurrency=2, allowance__requests_per_minute=7)
    request = key.id
    rates.take(request, rates.rates_of(high.allowance_id, high.allowance.limits), 20)
    with tenant_scope(tenant.id):
        reservations.reserve(
            generation_id=request,
            tenant_id=tenant.id,
            entitlement_allowance_id=high.allowance_id,
            key_allowance_id=key.allowance_id,
            tokens=20,
            now=now,
        )

    found = standing(principal_of(key), now)

    assert lanes_of(found) == ["high", "low"]
    first, second = found.lanes
    assert [one.entitlement_id for one in first.entitlements] == [sooner.id, later.id, high.id]
    assert [one.entitlement_id for one in second.entitlements] == [low.id]
    told = first.entitlements[-1]
    assert (told.on_exhausted, told.step_down_to, told.weight) == ("step_down", "low", 3)
    assert (told.speculation, told.longest_queue_wait_s, told.ends_at) == (True, 30, None)
    assert [state.name.value for state in told.limits] == list(SIX)
    assert [state.limit for state in told.limits] == list(SIX.values())
    assert [state.used for state in told.limits] == [20, 20, 20, 1, 20, 1]
    assert [state.reserved for state in told.limits] == [20, 20, 20, 0, 0, 0]
    day = told.limits[0].resets_at
    assert day is not None
    assert day.astimezone(UTC).strftime("%H:%M") == "15:00", "midnight in Seoul"
    assert [(state.name, state.used) for state in found.key] == [
        (LimitName.REQUESTS_PER_MINUTE, 0),
        (LimitName.CONCURRENCY, 1),
    ]
    assert found.rates_known
    assert second.entitlements[0].limits == ()


def test_what_gives_no_right_now_or_is_not_the_keys_is_not_told() -> None:
    tenant, now = TenantFactory(), timezone.now()
    EntitlementFactory(tenant=tenant, lane=lane("high"), ended_at=now)
    EntitlementFactory(tenant=tenant, lane=lane("high"), ends_at=now - timedelta(seconds=1))
    EntitlementFactory(tenant=tenant, lane=lane("high"), starts_at=now + timedelta(hours=1))
    EntitlementFactory(tenant=tenant, lane=lane("high"), approval="requested")
    EntitlementFactory(tenant=tenant, lane=lane("normal"))
    EntitlementFactory(tenant=tenant, lane=lane("low"))
    EntitlementFactory(lane=lane("high"))
    assert lanes_of(of(tenant)) == ["normal", "low"]
    assert lanes_of(of(tenant, allowed_lanes=frozenset({"low", "high"}))) == ["low"]
    assert lanes_of(of(TenantFactory())) == []


@pytest.mark.parametrize(
    ("entitled", "default", "allowed", "given"),
    [
        (["high", "normal", "low"], None, [], "normal"),
        (["high", "normal", "low"], "high", [], "high"),
        (["high", "low"], None, [], "low"),
        (["high"], None, [], None),
        (["high", "normal", "low"], "high", ["normal", "low"], "normal"),
    ],
)
def test_the_default_lane_is_the_one_that_a_request_gets_that_asks_for_none(
    entitled: list[str], default: str | None, allowed: list[str], given: str | None
) -> None:
    tenant = TenantFactory()
    for name in entitled:
        EntitlementFactory(tenant=tenant, lane=lane(name))
    found = of(tenant, default_lane=default, allowed_lanes=frozenset(allowed))
    assert [one.lane.name for one in found.lanes if one.is_default] == ([given] if given else [])


def test_the_next_limits_are_the_keys_and_those_of_the_first_entitlement_with_anything_left() -> None:
    tenant = TenantFactory()
    soon = timezone.now() + timedelta(days=1)
    EntitlementFactory(tenant=tenant, ends_at=soon, allowance__tokens_per_day=0)
    EntitlementFactory(tenant=tenant, allowance__tokens_per_day=70)
    EntitlementFactory(tenant=tenant, lane=lane("high"), allowance__tokens_per_day=1)
    key = ApiKeyFactory(tenant=tenant, allowance__concurrency=2)
    found = standing(principal_of(key), timezone.now())
    assert [(state.name.value, state.limit) for state in found.next_limits] == [
        ("concurrency", 2),
        ("tokens_per_day", 70),
    ]
    exhausted = TenantFactory()
    EntitlementFactory(tenant=exhausted, allowance__tokens_per_day=0)
    assert [state.limit for state in of(exhausted).next_limits] == [0]
    assert of(TenantFactory()).next_limits == ()


def test_a_member_has_no_key_to_be_limited_by() -> None:
    member = MembershipFactory()
    EntitlementFactory(tenant=member.tenant, allowance__tokens_per_day=5)
    principal = Principal(
        tenant_id=member.tenant_id,
        tenant_name="t",
        scopes=frozenset(),
        name="member",
        user_id=member.user_id,
    )
    found = standing(principal, timezone.now())
    assert found.key == ()
    assert [state.limit for state in found.next_limits] == [5]


@pytest.mark.parametrize("many", [False, True])
def test_it_takes_few_queries_however_many_lanes_and_entitlements_there_are(
    valkey: redis.Redis, many: bool
) -> None:
    tenant, now = TenantFactory(), datetime(2026, 11, 30, tzinfo=UTC)
    for name in ("high", "normal", "low") if many else ("normal",):
        for ends_at in (None, now + timedelta(days=1), now + timedelta(days=2))[: 3 if many else 1]:
            EntitlementFactory(tenant=tenant, lane=lane(name), ends_at=ends_at, **ALL_SIX)
    key = ApiKeyFactory(tenant=tenant, **ALL_SIX)
    with CaptureQueriesContext(connection) as queries:
        found = standing(principal_of(key), now)
    assert sum(len(one.entitlements) for one in found.lanes) == (9 if many else 1)
    assert len(queries) == 5, "entitlements, the key's allowance, current windows, those before, lanes"


def test_without_valkey_the_rates_are_left_out_and_the_log_says_so_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nowhere = redis.Redis(unix_socket_path=str(tmp_path / "nobody.sock"))
    monkeypatch.setattr(rates, "_function", lambda name: nowhere.register_script("return 1"))
    tenant = TenantFactory()
    for name in ("high", "low"):
        EntitlementFactory(tenant=tenant, lane=lane(name), **ALL_SIX)
    with structlog.testing.capture_logs() as log:
        found = of(tenant)
    assert not found.rates_known
    budgets = [name for name in SIX if not name.endswith("minute")]
    for one in found.lanes:
        assert [state.name.value for state in one.entitlements[0].limits] == budgets
    assert [entry["event"] for entry in log] == ["rates_not_read"]
