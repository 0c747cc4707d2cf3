from __future__ import annotations

import pytest
from asgiref.sync import sync_to_async
from django.utils import timezone

from accounts.models import Tenant
from inference.models import LanguageModel
from tests.factories import ApiKeyFactory, LanguageModelFactory
from tests.inference.api.asgi_client import AsgiClient
from tests.inference.api.bodies import CHAT, TEXT, chat, text
from tests.inference.api.hand import Hand
from tests.inference.api.socket_client import Connect

pytestmark = pytest.mark.django_db(transaction=True)


@sync_to_async
def add_models(*names: str, **fields: object) -> None:
    for name in names:
        LanguageModelFactory(name=name, **fields)


async def test_models_are_listed_by_name_and_retired_ones_are_not(api: AsgiClient) -> None:
    await add_models("b", "org/a")
    await add_models("gone", retired_at=timezone.now())
    answer = (await api.get("/v1/models")).json()
    assert [model["id"] for model in answer["data"]] == ["b", "org/a", "tiny/model"]
    assert (answer["object"], answer["first_id"], answer["last_id"]) == ("list", "b", "tiny/model")
    assert answer["has_more"] is False
    assert (await api.get("/v1/models/gone")).error["code"] == "model_not_found"


async def test_a_model_is_found_by_its_id_also_with_slashes(api: AsgiClient, model: LanguageModel) -> None:
    answer = await api.get("/v1/models/tiny/model")
    assert answer.json() == {
        "id": "tiny/model",
        "object": "model",
        "created": int(model.created_at.timestamp()),
        "owned_by": "signalbox",
        "context_length": 512,
        "default_max_tokens": 1024,
        "has_chat_template": True,
    }
    missing = await api.get("/v1/models/tiny/other")
    assert (missing.status, missing.error["code"], missing.error["param"]) == (
        404,
        "model_not_found",
        "model",
    )


async def test_the_list_comes_in_pages_either_way(api: AsgiClient) -> None:
    await add_models("a", "b", "c")
    for order, expected in (("asc", ["a", "b", "c", "tiny/model"]), ("desc", ["tiny/model", "c", "b", "a"])):
        seen: list[str] = []
        after = ""
        while True:
            page = (await api.get(f"/v1/models?limit=3&order={order}{after}")).json()
            seen += [model["id"] for model in page["data"]]
            if not page["has_more"]:
                break
            after = f"&after={page['last_id']}"
        assert seen == expected


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=x", "limit"),
        ("limit=-1", "limit"),
        ("order=up", "order"),
    ],
)
async def test_a_wrong_page_is_refused_by_name(api: AsgiClient, query: str, param: str) -> None:
    answer = await api.get(f"/v1/models?{query}")
    assert (answer.status, answer.error["param"]) == (400, param)


async def test_what_follows_the_last_entry_is_an_empty_page(api: AsgiClient) -> None:
    answer = (await api.get("/v1/models?after=zzz")).json()
    assert (answer["data"], answer["first_id"], answer["last_id"], answer["has_more"]) == (
        [],
        None,
        None,
        False,
    )


async def test_head_asks_for_what_get_does(api: AsgiClient) -> None:
    assert (await api.request("HEAD", "/v1/models")).status == 200


@sync_to_async
def key_for(tenant: Tenant, *models: str) -> str:
    return str(ApiKeyFactory(tenant=tenant, allowed_models=list(models)).raw)


async def test_a_key_that_is_held_to_some_models_finds_no_others_anywhere(
    tenant: Tenant, model: LanguageModel, connect: Connect
) -> None:
    await add_models("a", "b")
    key = await key_for(tenant, "b", "gone")
    api = AsgiClient(key)
    assert [each["id"] for each in (await api.get("/v1/models")).json()["data"]] == ["b"]
    assert (await api.get("/v1/models/b")).status == 200
    hidden, unknown = await api.get("/v1/models/a"), await api.get("/v1/models/c")
    assert (hidden.status, hidden.error["code"]) == (404, "model_not_found")
    assert hidden.body == unknown.body.replace(b"`c`", b"`a`"), "it is told apart from nothing"
    for path, body in ((CHAT, chat(model="a")), (TEXT, text(model="a"))):
        for stream in (False, True):
            answer = await api.post(path, {**body, "stream": stream})
            assert (answer.status, answer.error["code"]) == (404, "model_not_found")
    socket = await connect(key=key)
    await socket.send(type="generate", ref="1", **chat(model="a"))
    assert (await socket.until_error())["code"] == "model_not_found"


async def test_a_key_that_is_held_to_some_models_may_use_those(
    tenant: Tenant, model: LanguageModel, hand: Hand
) -> None:
    api = AsgiClient(await key_for(tenant, "tiny/model"))
    async with api.open("POST", CHAT, chat()) as exchange:
        await hand.answer(["Hi"])
        assert (await exchange.end()).status == 200
