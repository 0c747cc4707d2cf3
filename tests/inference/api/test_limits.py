"""What a client sees of limits: the refusals that they cause, and ``GET /v1/limits``."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import openai
import pytest
import redis
import time_machine
from asgiref.sync import sync_to_async
from django.utils import timezone
from openai import OpenAI

from accounts import rates
from accounts.models import Allowance, Lane, Reservation, Tenant
from accounts.tenancy import every_tenant
from inference import recovery
from inference.models import Generation, LanguageModel
from tests.accounts.rate_entries import let_pass
from tests.factories import ApiKeyFactory, EntitlementFactory, TenantFactory
from tests.fixtures.live_stack import LiveStack
from tests.inference.api.asgi_client import Answer, AsgiClient, events_of
from tests.inference.api.bodies import CHAT, chat
from tests.inference.api.hand import Hand
from tests.inference.api.socket_client import Connect

in_database = pytest.mark.django_db(transaction=True)

SIX = [
    "tokens_per_day",
    "tokens_per_week",
    "tokens_per_month",
    "requests_per_minute",
    "tokens_per_minute",
    "concurrency",
]
CODES = {
    "requests_per_minute": "rate_limit_exceeded",
    "tokens_per_minute": "rate_limit_exceeded",
    "concurrency": "concurrency_limit_exceeded",
}


@sync_to_async
def client_with(*, key: dict[str, Any] | None = None, lane: str = "normal", **limits: Any) -> AsgiClient:
    """A client whose tenant has one entitlement with ``limits``, with a key that has its own."""
    return AsgiClient(_key_with(key=key, lane=lane, **limits))


def _key_with(*, key: dict[str, Any] | None = None, lane: str = "normal", **limits: Any) -> str:
    tenant = TenantFactory()
    EntitlementFactory(
        tenant=tenant,
        lane=Lane.objects.get(name=lane),
        **{f"allowance__{name}": limit for name, limit in limits.items()},
    )
    own = {f"allowance__{name}": limit for name, limit in (key or {}).items()}
    return str(ApiKeyFactory(tenant=tenant, **own).raw)


async def limits_of(client: AsgiClient) -> dict[str, Any]:
    answer = await client.get("/v1/limits")
    assert answer.status == 200, answer.body
    return dict(answer.json())


@sync_to_async
def held() -> tuple[int, int]:
    """Reservations that are not settled, and generations that count as live, over all tenants."""
    with every_tenant("the test looks for leftovers"):
        unsettled = Reservation.objects.filter(settled_at=None).count()
        return unsettled, sum(Allowance.objects.values_list("live_generations", flat=True))


def assert_refused(answer: Answer, code: str, limit: str) -> dict[str, Any]:
    """The refusal's ``limit``."""
    assert (answer.status, answer.error["code"], answer.error["type"]) == (429, code, "rate_limit_error")
    named: dict[str, Any] = answer.error["limit"]
    assert set(named) == {
        "name",
        "subject",
        "limit",
        "used",
        "reserved",
        "remaining",
        "resets_at",
        "accepted_tokens",
    }
    assert named["name"] == limit
    return named


async def answered(client: AsgiClient, hand: Hand, **fields: Any) -> Answer:
    async with client.open("POST", CHAT, chat(**fields)) as exchange:
        await hand.answer(["Hi", " there"])
        return await exchange.end()


@in_database
async def test_q4_the_worst_case_is_what_is_reserved_and_the_answer_names_what_was_short(
    model: LanguageModel, hand: Hand
) -> None:
    client = await client_with(tokens_per_day=300)
    refused = await client.post(CHAT, chat(max_tokens=400))
    named = assert_refused(refused, "insufficient_quota", "tokens_per_day")
    assert (named["limit"], named["used"], named["reserved"], named["remaining"]) == (300, 0, 0, 300)
    assert named["accepted_tokens"] == 300
    assert named["subject"] == "the lane 'normal'"
    assert "tokens_per_day" in refused.error["message"]
    assert await held() == (0, 0)

    # Just what is said to be accepted is: the prompt's tokens are part of it.
    async with client.open("POST", CHAT, chat(max_tokens=1)) as exchange:
        run = await hand.take()
        await run.finish()
        await exchange.end()
    prompt = len(run.claim.task.prompt)
    room = 300 - prompt - prompt
    async with client.open("POST", CHAT, chat(max_tokens=room)) as exchange:
        run = await hand.take()
        [budget] = (await limits_of(client))["lanes"][0]["entitlements"][0]["limits"]
        assert (budget["used"], budget["reserved"], budget["remaining"]) == (300, prompt + room, 0)
        short = assert_refused(
            await client.post(CHAT, chat(max_tokens=1)), "insufficient_quota", "tokens_per_day"
        )
        assert (short["reserved"], short["accepted_tokens"]) == (prompt + room, 0)
        await run.say("a", "b", "c")
        await run.finish()
        await exchange.end()
    [budget] = (await limits_of(client))["lanes"][0]["entitlements"][0]["limits"]
    assert (budget["used"], budget["reserved"]) == (2 * prompt + 3, 0)
    assert await held() == (0, 0)


@in_database
@pytest.mark.parametrize("whose", ["entitlement", "key"])
@pytest.mark.parametrize("name", SIX)
async def test_q6_unset_is_unlimited_and_0_is_none(
    model: LanguageModel, hand: Hand, name: str, whose: str
) -> None:
    unset = await client_with()
    assert (await answered(unset, hand, max_tokens=400)).status == 200

    none = await (client_with(key={name: 0}) if whose == "key" else client_with(**{name: 0}))
    for stream in (False, True):
        refused = await none.post(CHAT, chat(max_tokens=1, stream=stream))
        named = assert_refused(refused, CODES.get(name, "insufficient_quota"), name)
        assert (named["limit"], named["used"], named["remaining"], named["accepted_tokens"]) == (0, 0, 0, 0)
        assert named["subject"] == ("this API key" if whose == "key" else "the lane 'normal'")
        # No wait helps: whatever the code is, no client is to try again.
        assert refused.headers["x-should-retry"] == "false"
        assert not {"retry-after", "retry-after-ms"} & set(refused.headers)
    assert await held() == (0, 0)
    assert await hand.finds_nothing()


@in_database
async def test_q7_of_three_requests_exactly_two_pass_in_each_window(
    model: LanguageModel, hand: Hand, valkey: redis.Redis
) -> None:
    """By the store's own clock, and the whole minute."""
    client = await client_with(requests_per_minute=2)
    for _ in range(3):
        assert (await answered(client, hand)).status == 200
        assert (await answered(client, hand)).status == 200
        refused = await client.post(CHAT, chat())
        named = assert_refused(refused, "rate_limit_exceeded", "requests_per_minute")
        assert (named["used"], named["limit"]) == (2, 2)
        assert 30 < int(refused.headers["retry-after"]) <= 60
        let_pass(valkey, rates.WINDOW_MS // 2)
        assert_refused(await client.post(CHAT, chat()), "rate_limit_exceeded", "requests_per_minute")
        let_pass(valkey, rates.WINDOW_MS // 2)
        assert (await client.get("/v1/models")).headers["x-ratelimit-remaining-requests"] == "2"
    assert await held() == (0, 0)


@in_database
@pytest.mark.parametrize(
    ("zone", "hours"), [("Asia/Seoul", 24), ("America/New_York", 25)], ids=["Seoul", "New York"]
)
async def test_q12_the_reset_that_an_answer_tells_is_the_one_that_is_had(
    model: LanguageModel, hand: Hand, zone: str, hours: int
) -> None:
    """Over the night in which New York's clocks go back."""
    calendar = ZoneInfo(zone)
    midnights = [datetime(2026, 11, day, tzinfo=calendar).timestamp() for day in (1, 2)]
    assert (midnights[1] - midnights[0]) / 3600 == hours
    with time_machine.travel(midnights[0] - 3600, tick=False) as clock:
        client = await client_with(tokens_per_day=300)
        await Tenant.objects.aupdate(time_zone=zone)
        for midnight in midnights:
            # The first one of a day is made at the very moment that was said.
            assert (await answered(client, hand, max_tokens=200)).status == 200
            for moment in (None, midnight - 0.001):
                if moment is not None:
                    clock.move_to(moment)
                refused = await client.post(CHAT, chat(max_tokens=290))
                named = assert_refused(refused, "insufficient_quota", "tokens_per_day")
                assert named["resets_at"] == midnight
            clock.move_to(midnight)
        assert (await answered(client, hand, max_tokens=200)).status == 200


@in_database
async def test_a_rate_says_when_the_request_fits_and_leaves_trying_again_to_the_client(
    model: LanguageModel, hand: Hand
) -> None:
    client = await client_with(requests_per_minute=1)
    assert (await answered(client, hand)).status == 200
    refused = await client.post(CHAT, chat())
    named = assert_refused(refused, "rate_limit_exceeded", "requests_per_minute")
    assert (named["used"], named["remaining"], named["accepted_tokens"]) == (1, 0, 0)
    assert 0 < named["resets_at"] - time.time() <= 61
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert 1 <= int(refused.headers["retry-after-ms"]) <= 60_000
    assert "x-should-retry" not in refused.headers
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"


@in_database
async def test_a_request_larger_than_the_rate_is_told_that_no_wait_helps(model: LanguageModel) -> None:
    client = await client_with(tokens_per_minute=50)
    refused = await client.post(CHAT, chat(max_tokens=400))
    named = assert_refused(refused, "rate_limit_exceeded", "tokens_per_minute")
    assert named["accepted_tokens"] == 50
    assert refused.headers["x-should-retry"] == "false"
    assert "retry-after" not in refused.headers


@in_database
async def test_a_budget_that_is_used_up_says_when_it_resets_and_that_trying_again_does_not_help(
    model: LanguageModel, hand: Hand
) -> None:
    client = await client_with(tokens_per_day=150)
    async with client.open("POST", CHAT, chat(max_tokens=100)) as exchange:
        run = await hand.take()
        refused = await client.post(CHAT, chat(max_tokens=100))
        await run.finish()
        await exchange.end()
    named = assert_refused(refused, "insufficient_quota", "tokens_per_day")
    midnight = (timezone.now() + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)
    assert datetime.fromtimestamp(named["resets_at"], midnight.tzinfo) in (
        midnight,
        midnight - timedelta(days=1),
    )
    assert 0 < int(refused.headers["retry-after"]) <= 86_400
    assert refused.headers["x-should-retry"] == "false"


@in_database
async def test_concurrency_is_refused_for_as_long_as_what_runs(model: LanguageModel, hand: Hand) -> None:
    client = await client_with(key={"concurrency": 1})
    async with client.open("POST", CHAT, chat()) as exchange:
        run = await hand.take()
        refused = await client.post(CHAT, chat())
        named = assert_refused(refused, "concurrency_limit_exceeded", "concurrency")
        assert (named["subject"], named["resets_at"]) == ("this API key", None)
        assert int(refused.headers["retry-after"]) >= 1
        await run.finish()
        await exchange.end()
    assert (await answered(client, hand)).status == 200


@in_database
async def test_the_socket_s_error_frame_names_the_limit_too(model: LanguageModel, connect: Connect) -> None:
    key = await sync_to_async(_key_with)(tokens_per_day=100)
    client = await connect(key=key)
    question = {"model": "tiny/model", "messages": [{"role": "user", "content": "Hello"}]}
    await client.send(type="generate", ref="1", max_tokens=400, **question)
    frame = await client.until_error()
    assert (frame["ref"], frame["code"]) == ("1", "insufficient_quota")
    assert (frame["limit"]["name"], frame["limit"]["accepted_tokens"]) == ("tokens_per_day", 100)
    assert frame["retry_after_ms"] is None
    await client.send(type="generate", ref="2", **{**question, "model": "none"})
    assert "limit" not in await client.until_error()


@in_database
async def test_limits_tell_lane_by_lane_what_is_left_until_when(model: LanguageModel, hand: Hand) -> None:
    def make() -> str:
        tenant = TenantFactory(time_zone="Asia/Seoul")
        high, low = Lane.objects.get(name="high"), Lane.objects.get(name="low")
        EntitlementFactory(
            tenant=tenant, lane=high, ends_at=timezone.now() + timedelta(hours=1), allowance__concurrency=3
        )
        EntitlementFactory(
            tenant=tenant,
            lane=high,
            on_exhausted="step_down",
            step_down_to=low,
            weight=2,
            longest_queue_wait_s=30,
            allowance__tokens_per_month=1000,
            allowance__requests_per_minute=9,
        )
        EntitlementFactory(tenant=tenant, lane=low, speculation=False)
        return str(ApiKeyFactory(tenant=tenant, default_lane=high, allowance__requests_per_minute=5).raw)

    client = AsgiClient(await sync_to_async(make)())
    async with client.open("POST", CHAT, chat()) as exchange:
        run = await hand.take()
        told = await limits_of(client)
        await run.finish()
        await exchange.end()
    assert (told["object"], told["time_zone"], told["rates_known"]) == ("limits", "Asia/Seoul", True)
    [rate] = told["api_key"]
    assert (rate["name"], rate["limit"], rate["used"], rate["over"]) == ("requests_per_minute", 5, 1, False)
    high, low = told["lanes"]
    assert (high["lane"], high["service_tier"], high["is_default"]) == ("high", "priority", True)
    assert (low["lane"], low["is_default"]) == ("low", False)
    temporary, standing = high["entitlements"]
    assert (temporary["kind"], standing["kind"]) == ("temporary", "standing")
    assert temporary["ends_at"] > told["time"]
    [concurrency] = temporary["limits"]
    assert (concurrency["name"], concurrency["used"], concurrency["resets_at"]) == ("concurrency", 1, None)
    assert (standing["on_exhausted"], standing["step_down_to"]) == ("step_down", "low")
    assert (standing["weight"], standing["longest_queue_wait_s"]) == (2, 30)
    assert [limit["name"] for limit in standing["limits"]] == ["tokens_per_month", "requests_per_minute"]
    assert [entitlement["speculation"] for entitlement in low["entitlements"]] == [False]
    assert low["entitlements"][0]["limits"] == []


@in_database
async def test_a_limit_that_was_lowered_below_its_use_is_told_to_be_over(
    model: LanguageModel, hand: Hand
) -> None:
    client = await client_with(tokens_per_day=400)
    assert (await answered(client, hand, max_tokens=100)).status == 200

    @sync_to_async
    def lower() -> None:
        with every_tenant("the test lowers a limit"):
            Allowance.objects.filter(tokens_per_day=400).update(tokens_per_day=1)

    await lower()
    [budget] = (await limits_of(client))["lanes"][0]["entitlements"][0]["limits"]
    assert (budget["over"], budget["remaining"]) == (True, 0)
    assert_refused(await client.post(CHAT, chat(max_tokens=1)), "insufficient_quota", "tokens_per_day")


@in_database
@pytest.mark.parametrize("stream", [False, True])
async def test_who_waited_too_long_is_told_so(model: LanguageModel, hand: Hand, stream: bool) -> None:
    """Nobody takes it. The answer comes when the wait is over: as a status, or inside of a stream that has begun."""

    def make() -> str:
        tenant = TenantFactory()
        EntitlementFactory(tenant=tenant, longest_queue_wait_s=30)
        return str(ApiKeyFactory(tenant=tenant).raw)

    @sync_to_async
    def end_its_wait() -> bool:
        with every_tenant("the test lets time pass"):
            Generation.objects.update(queue_deadline=timezone.now())
        return recovery.end_waits() == 1

    client = AsgiClient(await sync_to_async(make)())
    options = {"stream": True, "stream_options": {"include_progress": True}} if stream else {}
    async with client.open("POST", CHAT, chat(**options)) as exchange:
        async with asyncio.timeout(20):
            while not await end_its_wait():
                await asyncio.sleep(0.01)
        answer = await exchange.end()
    if stream:
        [(_, event)] = events_of(answer.body)
        assert '"code": "queue_wait_exceeded"' in event
        assert b"[DONE]" not in answer.body
    else:
        assert (answer.status, answer.error["code"]) == (503, "queue_wait_exceeded")
        assert "waited" in answer.error["message"]
        assert int(answer.headers["retry-after"]) >= 1
    generation = answer.headers["x-signalbox-generation"]
    record = (await client.get(f"/v1/generations/{generation}")).json()
    assert (record["state"], record["cancel_reason"]) == ("expired", "queue_wait_exceeded")
    assert record["usage"]["total_tokens"] == 0
    assert await hand.finds_nothing()


@in_database
async def test_who_waited_too_long_is_told_so_on_the_socket(model: LanguageModel, connect: Connect) -> None:
    key = await sync_to_async(_key_with)()
    client = await connect(key=key)
    await client.send(
        type="generate", ref="1", model="tiny/model", messages=[{"role": "user", "content": "Hello"}]
    )
    accepted = await client.until("accepted")

    @sync_to_async
    def end_its_wait() -> int:
        with every_tenant("the test lets time pass"):
            Generation.objects.update(queue_deadline=timezone.now())
        return recovery.end_waits()

    assert await end_its_wait() == 1
    frame = await client.until_error()
    assert (frame["generation"], frame["code"]) == (accepted["generation"], "queue_wait_exceeded")
    assert frame["retry_after_ms"] is not None


# OpenAI's own client, against the running product.

_LIMITED = """
from accounts import keys
from accounts.models import Allowance, Entitlement, Lane, Tenant
from accounts.principal import Actor
from accounts.tenancy import every_tenant
with every_tenant("a test sets up"):
    tenant = Tenant.objects.create(name={slug!r}, slug={slug!r})
    allowance = Allowance.objects.create(tenant=tenant, **{limits!r})
    Entitlement.objects.create(tenant=tenant, lane=Lane.objects.get(name="normal"), allowance=allowance)
    issued = keys.create(tenant=tenant, name="test", actor=Actor.system("test"))
print(issued.raw)
"""


class Requests:
    """Counts what a client sends."""

    def __init__(self) -> None:
        self.sent = 0

    def note(self, request: Any) -> None:
        self.sent += 1


def openai_client(stack: LiveStack, requests: Requests, slug: str, retries: int, **limits: int) -> OpenAI:
    key = stack.python(_LIMITED.format(slug=slug, limits=limits)).strip()
    http = openai.DefaultHttpxClient(event_hooks={"request": [requests.note]})
    return OpenAI(api_key=key, base_url=stack.openai_url, max_retries=retries, http_client=http)


def ask(client: OpenAI, **options: Any) -> Any:
    messages: list[Any] = [{"role": "user", "content": "Hello"}]
    return client.chat.completions.create(model="tiny", messages=messages, temperature=0, **options)


def test_openais_client_raises_a_used_up_budget_at_once_and_does_not_retry_it(live_stack: LiveStack) -> None:
    requests = Requests()
    with openai_client(live_stack, requests, "few-tokens", 3, tokens_per_week=60) as client:
        with pytest.raises(openai.RateLimitError) as refused:
            ask(client, max_tokens=300)
        assert requests.sent == 1
        assert (refused.value.code, refused.value.type) == ("insufficient_quota", "rate_limit_error")
        assert isinstance(refused.value.body, dict)
        named = refused.value.body["limit"]
        assert (named["name"], named["limit"], named["accepted_tokens"]) == ("tokens_per_week", 60, 60)
        assert refused.value.response.headers["x-should-retry"] == "false"
        assert refused.value.response.headers["x-ratelimit-remaining-tokens"] == "60"
        with pytest.raises(openai.RateLimitError):
            ask(client, max_tokens=300, stream=True)
        assert requests.sent == 2


def test_openais_client_raises_a_rate_and_reads_what_is_left_from_the_headers(live_stack: LiveStack) -> None:
    requests = Requests()
    with openai_client(live_stack, requests, "few-requests", 0, requests_per_minute=2) as client:
        for left in ("1", "0"):
            raw = client.chat.completions.with_raw_response.create(
                model="tiny", messages=[{"role": "user", "content": "Hello"}], max_tokens=4
            )
            assert raw.headers["x-ratelimit-limit-requests"] == "2"
            assert raw.headers["x-ratelimit-remaining-requests"] == left
        with pytest.raises(openai.RateLimitError) as refused:
            ask(client, max_tokens=4)
        assert refused.value.code == "rate_limit_exceeded"
        assert int(refused.value.response.headers["retry-after"]) >= 1
        assert "x-should-retry" not in refused.value.response.headers
        told: dict[str, Any] = client.get("/limits", cast_to=dict[str, Any])
        [rate] = told["lanes"][0]["entitlements"][0]["limits"]
        assert (rate["name"], rate["remaining"]) == ("requests_per_minute", 0)
