"""``x-ratelimit-…``: which limits are told, how, and on which answers."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from asgiref.sync import sync_to_async
from hypothesis import given
from hypothesis import strategies as st

from accounts import rates
from accounts.limits import LimitName, LimitState
from accounts.models import Tenant
from inference.api import limit_headers as module
from inference.api.limit_headers import duration, limit_headers
from inference.models import LanguageModel
from tests.factories import ApiKeyFactory, EntitlementFactory, TenantFactory
from tests.inference.api.asgi_client import Answer, AsgiClient
from tests.inference.api.bodies import CHAT, chat
from tests.inference.api.hand import Hand
from tests.inference.api.routes import ENDPOINTS

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
PREFIX = "x-ratelimit-"


def state(name: str, limit: int, used: int, resets_in: float | None = 60) -> LimitState:
    resets_at = None if resets_in is None else NOW + timedelta(seconds=resets_in)
    return LimitState(name=LimitName(name), limit=limit, used=used, resets_at=resets_at)


def told(answer: Answer) -> dict[str, str]:
    return {
        name.removeprefix(PREFIX): value for name, value in answer.headers.items() if name.startswith(PREFIX)
    }


def test_of_each_kind_the_limit_with_the_least_left_is_told() -> None:
    headers = limit_headers(
        [
            state("tokens_per_day", 1000, 100, 3600),
            state("tokens_per_minute", 500, 400, 12),
            state("tokens_per_month", 9000, 0, 86400),
            state("requests_per_minute", 10, 4, 30),
            state("concurrency", 8, 6, None),
        ],
        NOW,
    )
    assert headers == {
        "x-ratelimit-limit-requests": "8",
        "x-ratelimit-remaining-requests": "2",
        "x-ratelimit-limit-tokens": "500",
        "x-ratelimit-remaining-tokens": "100",
        "x-ratelimit-reset-tokens": "12s",
    }


def test_a_kind_without_a_limit_has_no_headers_and_one_that_is_over_has_nothing_left() -> None:
    assert limit_headers([], NOW) == {}
    headers = limit_headers([state("requests_per_minute", 3, 5)], NOW)
    assert headers == {
        "x-ratelimit-limit-requests": "3",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "1m0s",
    }


def test_of_two_with_as_little_left_the_one_that_takes_longer_is_told() -> None:
    headers = limit_headers(
        [
            state("tokens_per_minute", 5, 5, 40),
            state("tokens_per_day", 9, 9, 7200),
            state("tokens_per_week", 7, 7, 600),
        ],
        NOW,
    )
    assert (headers["x-ratelimit-limit-tokens"], headers["x-ratelimit-reset-tokens"]) == ("9", "2h0m0s")


@pytest.mark.parametrize(
    ("seconds", "written"),
    [
        (0, "0s"),
        (-5, "0s"),
        (0.12, "120ms"),
        (0.0004, "1ms"),
        (0.9996, "1s"),
        (1, "1s"),
        (1.001, "2s"),
        (59.9, "1m0s"),
        (360, "6m0s"),
        (7384, "2h3m4s"),
        (30 * 86400, "720h0m0s"),
    ],
)
def test_durations_are_written_as_openai_writes_them(seconds: float, written: str) -> None:
    assert duration(timedelta(seconds=seconds)) == written


@given(st.timedeltas(timedelta(0), timedelta(days=40)))
def test_a_duration_is_never_told_too_short_nor_a_second_too_long(time: timedelta) -> None:
    match = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?|(\d+)ms", duration(time))
    assert match
    hours, minutes, seconds, ms = (int(group or 0) for group in match.groups())
    read = timedelta(hours=hours, minutes=minutes, seconds=seconds, milliseconds=ms)
    assert timedelta(0) <= read - time < timedelta(seconds=1)


@pytest.fixture
def limited(transactional_db: None) -> Tenant:
    made: Tenant = TenantFactory()
    EntitlementFactory(tenant=made, allowance__tokens_per_day=10_000, allowance__requests_per_minute=50)
    return made


@pytest.fixture
def client(limited: Tenant, model: LanguageModel) -> AsgiClient:
    return AsgiClient(str(ApiKeyFactory(tenant=limited, allowance__concurrency=20).raw))


async def answered(client: AsgiClient, hand: Hand, **fields: Any) -> Answer:
    async with client.open("POST", CHAT, chat(**fields)) as exchange:
        await hand.answer(["Hi"])
        return await exchange.end()


@pytest.mark.django_db(transaction=True)
async def test_every_answer_to_a_caller_who_is_known_tells_them(client: AsgiClient, hand: Hand) -> None:
    whole = await answered(client, hand, max_tokens=100)
    stream = await answered(client, hand, max_tokens=100, stream=True)
    assert (whole.status, stream.status) == (200, 200)
    generation = whole.headers["x-signalbox-generation"]
    answers = [
        whole,
        stream,
        await client.get("/v1/models"),
        await client.request("HEAD", "/v1/models"),
        await client.get("/v1/models/tiny/model"),
        await client.get(f"/v1/generations/{generation}"),
        await client.get(f"/v1/generations/{generation}/events"),
        await client.post(f"/v1/generations/{generation}/cancel"),
        await client.get("/v1/limits"),
        await client.get("/v1/usage"),
        await client.post(CHAT, chat(temperature=9)),
        await client.post(CHAT, chat(model="other")),
        await client.post(CHAT, raw=b"{"),
        await client.get("/v1/models/none"),
    ]
    assert [answer.status for answer in answers] == [200] * 10 + [400, 404, 400, 404]
    for answer in answers:
        headers = told(answer)
        assert headers["limit-tokens"] == "10000"
        assert 0 < int(headers["remaining-tokens"]) <= 10_000
        assert re.fullmatch(r"(\d+h)?(\d+m)?\d+s", headers["reset-tokens"])
        assert headers["limit-requests"] == "20"


@pytest.mark.django_db(transaction=True)
async def test_every_route_tells_them_whatever_it_answers(client: AsgiClient) -> None:
    for path, endpoint in ENDPOINTS:
        answer = await client.request(endpoint.method, path, {} if endpoint.body else None)
        assert (told(answer)["limit-tokens"], told(answer)["limit-requests"]) == ("10000", "20"), path


@pytest.mark.django_db(transaction=True)
async def test_nobody_who_is_not_known_is_told_anything(client: AsgiClient) -> None:
    for answer in (
        await AsgiClient("sb_wrong").get("/v1/models"),
        await AsgiClient().post(CHAT, chat()),
        await client.get("/v1/nothing"),
        await client.request("DELETE", "/v1/models"),
    ):
        assert told(answer) == {}


@pytest.mark.django_db(transaction=True)
async def test_a_key_without_the_scope_is_told_its_limits_all_the_same(
    limited: Tenant, model: LanguageModel
) -> None:
    key = await sync_to_async(ApiKeyFactory)(tenant=limited, scopes=["read"])
    answer = await AsgiClient(str(key.raw)).post(CHAT, chat())
    assert (answer.status, told(answer)["limit-tokens"]) == (403, "10000")


@pytest.mark.django_db(transaction=True)
async def test_an_accepted_generation_tells_what_is_left_behind_it_without_looking_again(
    client: AsgiClient, hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = []
    real = module.standing

    def standing(*arguments: Any) -> Any:
        looked.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(module, "standing", standing)
    async with client.open("POST", CHAT, chat(max_tokens=100)) as exchange:
        run = await hand.take()
        await run.finish()
        answer = await exchange.end()
    assert looked == []
    held = len(run.claim.task.prompt) + 100
    assert told(answer)["remaining-tokens"] == str(10_000 - held)
    assert told(answer)["remaining-requests"] == "19"

    later = await client.get("/v1/models")
    assert len(looked) == 1
    assert told(later)["remaining-tokens"] == str(10_000 - len(run.claim.task.prompt))
    assert told(later)["remaining-requests"] == "20"


@pytest.mark.django_db(transaction=True)
async def test_a_refusal_tells_the_limit_that_refused(model: LanguageModel) -> None:
    key = await sync_to_async(_key_with_few_tokens)()
    refused = await AsgiClient(key).post(CHAT, chat(max_tokens=400))
    assert refused.status == 429
    assert told(refused)["limit-tokens"] == "30"
    assert told(refused)["remaining-tokens"] == "30"
    assert told(refused)["limit-requests"] == "50"


def _key_with_few_tokens() -> str:
    tenant = TenantFactory()
    EntitlementFactory(tenant=tenant, allowance__requests_per_minute=50)
    return str(ApiKeyFactory(tenant=tenant, allowance__tokens_per_week=30).raw)


@pytest.mark.django_db(transaction=True)
async def test_who_has_no_limits_gets_no_such_headers(api: AsgiClient, hand: Hand) -> None:
    assert told(await answered(api, hand)) == {}
    assert told(await api.get("/v1/models")) == {}


@pytest.mark.django_db(transaction=True)
async def test_without_valkey_the_rates_are_left_out_and_nothing_else_fails(
    client: AsgiClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nowhere = redis.Redis(unix_socket_path=str(tmp_path / "nobody.sock"))
    monkeypatch.setattr(rates, "_function", lambda name: nowhere.register_script("return 1"))
    answer = await client.get("/v1/models")
    assert answer.status == 200
    assert told(answer)["limit-requests"] == "20", "the key's concurrency, which the database knows"
    assert told(answer)["limit-tokens"] == "10000"
