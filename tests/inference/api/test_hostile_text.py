"""Text that a database cannot hold, and numbers that nobody can mean, are refused before anything is looked up."""

from __future__ import annotations

import pytest
from django.test import Client

from accounts.models import Tenant
from inference.models import LanguageModel
from tests.factories import MembershipFactory
from tests.inference.api.asgi_client import AsgiClient
from tests.inference.api.bodies import CHAT, TEXT, chat, text

pytestmark = pytest.mark.django_db(transaction=True)

NUL = "a\0b"


# As a server hands paths over: decoded.
@pytest.mark.parametrize("path", ["/v1/models/a\0b", "/v1/models?after=%00", "/v1/generations/\0/events"])
async def test_a_nul_in_the_url_is_refused(api: AsgiClient, path: str) -> None:
    answer = await api.get(path)
    assert (answer.status, answer.error["code"]) == (400, "invalid_value")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, {"model": NUL}, "model"),
        (CHAT, {"messages": [{"role": "system", "content": NUL}]}, "messages[0].content"),
        (CHAT, {"stop": ["fine", NUL]}, "stop[1]"),
        (TEXT, {"prompt": NUL}, "prompt"),
    ],
)
async def test_a_nul_in_a_text_is_refused_by_the_fields_name(
    api: AsgiClient, path: str, body: dict[str, object], param: str
) -> None:
    answer = await api.post(path, {**(chat() if path == CHAT else text()), **body})
    assert (answer.status, answer.error["code"], answer.error["param"]) == (400, "invalid_value", param)


async def test_an_escaped_backslash_before_u0000_is_a_text_like_any_other(api: AsgiClient) -> None:
    answer = await api.post(CHAT, chat(model="\\u0000"))
    assert answer.error["code"] == "model_not_found"


@pytest.mark.parametrize("raw", [b"[]", b"{", b""])
async def test_v6_a_body_that_is_no_object_is_refused_by_name(api: AsgiClient, raw: bytes) -> None:
    answer = await api.post(CHAT, raw=raw)
    assert (answer.status, answer.error["param"]) == (400, "body")


@pytest.mark.parametrize("limit", ["9" * 5000, "0", "101", "-1"])
def test_a_page_of_conversations_has_a_size(tenant: Tenant, model: LanguageModel, limit: str) -> None:
    client = Client()
    client.force_login(MembershipFactory(tenant=tenant).user)
    answer = client.get(f"/chat/api/conversations?tenant={tenant.id.hex}&limit={limit}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "limit")
