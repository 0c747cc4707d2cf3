from __future__ import annotations

from typing import Any

import pytest
from asgiref.sync import sync_to_async

from accounts.models import Lane, LaneAssignment
from accounts.tenancy import every_tenant
from inference.models import LanguageModel
from tests.factories import ApiKeyFactory, EntitlementFactory, TenantFactory
from tests.inference.api.asgi_client import Answer, AsgiClient
from tests.inference.api.bodies import CHAT, TEXT, chat, text
from tests.inference.api.hand import Hand

pytestmark = pytest.mark.django_db(transaction=True)


async def answered(
    api: AsgiClient, hand: Hand, headers: dict[str, str] | None = None, path: str = CHAT, **fields: Any
) -> Answer:
    body = chat(**fields) if path == CHAT else text(**fields)
    async with api.open("POST", path, body, headers=headers) as exchange:
        await hand.answer(["Hi"])
        return await exchange.end()


@pytest.mark.slow
@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_a_lane_is_asked_for_by_tier_by_name_or_by_header_and_the_tier_used_is_answered(
    api: AsgiClient, hand: Hand, path: str
) -> None:
    asked: list[tuple[dict[str, Any], dict[str, str], str, str]] = [
        ({}, {}, "normal", "default"),
        ({"service_tier": "auto"}, {}, "normal", "default"),
        ({"service_tier": "default"}, {}, "normal", "default"),
        ({"service_tier": "priority"}, {}, "high", "priority"),
        ({"service_tier": "flex"}, {}, "low", "flex"),
        ({"service_tier": "high"}, {}, "high", "priority"),
        ({"lane": "low"}, {}, "low", "flex"),
        ({}, {"X-Priority": "high"}, "high", "priority"),
        ({}, {"X-Priority": "LOW"}, "low", "flex"),
        ({"service_tier": "flex"}, {"X-Priority": "high"}, "low", "flex"),
        ({"service_tier": "auto"}, {"X-Priority": "high"}, "normal", "default"),
    ]
    for fields, headers, lane, tier in asked:
        for stream in (False, True):
            answer = await answered(api, hand, headers, path, stream=stream, **fields)
            assert answer.headers["x-signalbox-lane"] == lane
            assert f'"service_tier":"{tier}"' in answer.body.decode()


async def test_a_key_without_the_lane_gets_the_next_lower_one_and_the_record_says_so(
    hand: Hand, model: LanguageModel
) -> None:
    def make() -> str:
        tenant = TenantFactory()
        EntitlementFactory(tenant=tenant, lane=Lane.objects.get(name="low"))
        return str(ApiKeyFactory(tenant=tenant).raw)

    api = AsgiClient(await sync_to_async(make)())
    answer = await answered(api, hand, service_tier="priority")
    assert (answer.headers["x-signalbox-lane"], answer.json()["service_tier"]) == ("low", "flex")
    record = (await api.get(f"/v1/generations/{answer.headers['x-signalbox-generation']}")).json()
    assert (record["lane"]["requested"], record["lane"]["given"]) == ("priority", "low")
    assert record["lane"]["reason"] == "not_entitled"


@pytest.mark.parametrize("limit", ["requests_per_minute", "tokens_per_minute"])
async def test_what_exceeds_a_rate_of_a_lane_steps_down_where_that_was_said(
    hand: Hand, model: LanguageModel, limit: str
) -> None:
    def make() -> str:
        tenant = TenantFactory()
        high, low = (Lane.objects.get(name=name) for name in ("high", "low"))
        most = 1 if limit == "requests_per_minute" else 150
        step = {"on_exhausted": "step_down", "step_down_to": low}
        EntitlementFactory(tenant=tenant, lane=high, **step, **{f"allowance__{limit}": most})
        EntitlementFactory(tenant=tenant, lane=low)
        return str(ApiKeyFactory(tenant=tenant).raw)

    api = AsgiClient(await sync_to_async(make)())
    answers = [await answered(api, hand, service_tier="priority", max_tokens=90) for _ in range(3)]
    lanes = [answer.headers["x-signalbox-lane"] for answer in answers]
    assert lanes == ["high", "low", "low"]
    record = (await api.get(f"/v1/generations/{answers[-1].headers['x-signalbox-generation']}")).json()
    assert record["lane"]["requested"] == "priority"


async def test_a_lane_that_does_not_exist_is_refused_with_the_field_that_named_it(api: AsgiClient) -> None:
    for fields, headers, param in (
        ({"service_tier": "fast"}, {}, "service_tier"),
        ({"lane": "fast"}, {}, "lane"),
        ({}, {"X-Priority": "urgent"}, "X-Priority"),
    ):
        answer = await api.post(CHAT, chat(**fields), headers=headers)
        assert (answer.status, answer.error["param"]) == (400, param)
        assert "high" in answer.error["message"]


async def test_a_tenant_that_is_entitled_to_nothing_is_refused_and_nothing_is_left(
    model: LanguageModel, hand: Hand
) -> None:
    api = AsgiClient((await sync_to_async(ApiKeyFactory)()).raw)
    answer = await api.post(CHAT, chat())
    assert (answer.status, answer.error["code"]) == (403, "no_entitlement")
    assert answer.headers["x-should-retry"] == "false"

    @sync_to_async
    def assignments() -> int:
        with every_tenant("the test looks for leftovers"):
            return int(LaneAssignment.objects.count())

    assert await assignments() == 0
    assert await hand.finds_nothing()
