"""C6, V6, S10 and A13: whatever is wrong with a request, the answer has one shape and the right status."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import pytest
import redis
from asgiref.sync import sync_to_async

from accounts.models import Scope, Tenant
from accounts.tenancy import every_tenant
from inference import intake
from inference.api import generating
from inference.api.bodies import validate
from inference.api.endpoint import Endpoint
from inference.api.errors import ApiError
from inference.api.middleware import ROUTES
from inference.api.resource import endpoints_of
from inference.api.urls import urlpatterns
from inference.dispatch.delivery import delivery
from inference.dispatch.queue import DispatchQueue
from inference.models import Generation
from tests.factories import ApiKeyFactory, MembershipFactory
from tests.inference.api.asgi_client import Answer, AsgiClient
from tests.inference.api.bodies import CHAT, TEXT, chat, text
from tests.inference.api.routes import BODIES, ENDPOINTS, PATHS, body_of, taking_bodies
from tests.inference.api.test_chat_socket import session_of

pytestmark = pytest.mark.django_db(transaction=True)

METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"]
#: No value of any field of any body.
NONSENSE = [{"no": "such thing"}]
EVIL = "https://evil.example"

Kind = TypeVar("Kind")


@pytest.fixture
async def almighty(api: AsgiClient, tenant: Tenant) -> AsgiClient:
    """With a key that may come to every route."""
    key = await sync_to_async(ApiKeyFactory)(tenant=tenant, scopes=[scope.value for scope in Scope])
    return AsgiClient(key.raw)


def assert_error(answer: Answer, status: int, code: str, param: str | None = None, where: Any = "") -> None:
    assert answer.headers["content-type"] == "application/json", where
    assert answer.status == status, (where, answer.body)
    assert (answer.error["code"], answer.error["param"]) == (code, param), (where, answer.body)
    assert isinstance(answer.error["message"], str)
    assert answer.error["message"]
    assert answer.headers["x-request-id"].startswith("req_")


async def test_c6_a_wrong_method_is_405_on_every_route_and_names_the_right_ones(api: AsgiClient) -> None:
    assert len(PATHS) == len(urlpatterns) - 1, "all but the one for what there is not"
    for path, endpoints in PATHS.items():
        right = {method for endpoint in endpoints for method in endpoint.methods}
        for method in METHODS:
            if method not in right:
                answer = await api.request(method, path)
                assert_error(answer, 405, "method_not_allowed", where=(method, path))
                assert set(answer.headers["allow"].split(", ")) == right, path


async def test_c6_an_unknown_path_is_404_in_the_error_shape(api: AsgiClient) -> None:
    for path in (
        "",
        "/",
        "/nothing",
        "/chat",
        "/chat/completions/",
        "/models/",
        "/generations/a/b/c",
        "/limits/",
        "/usage/completions",
        "/organization",
        "/organization/",
        "/organization/projects/",
        "/organization/projects/a/b",
        "/organization/projects/a/api_keys/b/c",
        "/organization/usage",
    ):
        for method in ("GET", "POST"):
            answer = await api.request(method, f"/v1{path}")
            assert_error(answer, 404, "unknown_url", where=(method, path))
            assert "POST /v1/chat/completions" in answer.error["message"]


def test_what_an_unknown_path_is_told_to_exist_does() -> None:
    there_is = set()
    for route in urlpatterns:
        if endpoints := endpoints_of(route.callback):
            methods = "|".join(endpoint.method for endpoint in endpoints)
            there_is.add(f"{methods} /v1/{re.sub(r'<[^>]+>', '{id}', str(route.pattern))}")
    assert set(ROUTES) == there_is


async def test_what_lies_beside_v1_is_left_alone(api: AsgiClient, plain_static: None) -> None:
    answer = await api.get("/v1beta/models")
    assert answer.status == 404
    assert "text/html" in answer.headers["content-type"]


async def test_c6_an_oversized_body_is_413_on_every_route_that_takes_one(
    almighty: AsgiClient, settings: Any
) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1000
    raw = b'{"name": "' + b"x" * 1000 + b'"}'
    for path, endpoint, _ in taking_bodies():
        for headers in ({}, {"content-length": "", "transfer-encoding": "chunked"}):
            answer = await almighty.request(endpoint.method, path, raw=raw, headers=headers)
            assert_error(answer, 413, "request_too_large", where=(path, headers))


def tried(kinds: Sequence[Kind]) -> Iterator[tuple[str, Endpoint, Kind]]:
    """Each kind of mistake on one route, and one of them on every other route that takes a body: one reader has all."""
    for number, (path, endpoint, _) in enumerate(taking_bodies()):
        for kind in kinds if path == CHAT else [kinds[number % len(kinds)]]:
            yield path, endpoint, kind


async def test_v6_a_wrong_content_type_is_415_on_every_route_that_takes_a_body(almighty: AsgiClient) -> None:
    kinds = (
        "",
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
        "application/json; charset=latin1",
    )
    for path, endpoint, kind in tried(kinds):
        answer = await almighty.request(endpoint.method, path, raw=b"{}", headers={"content-type": kind})
        assert_error(answer, 415, "unsupported_media_type", "Content-Type", where=(path, kind))


async def test_a_charset_of_utf_8_is_no_wrong_content_type(api: AsgiClient) -> None:
    answer = await api.post(CHAT, raw=b"{}", headers={"content-type": "application/json; charset=UTF-8"})
    assert_error(answer, 400, "missing_required_parameter", "model")


async def test_v6_broken_json_is_400_on_every_route_that_takes_a_body(almighty: AsgiClient) -> None:
    broken = (
        b"",
        b"{",
        b'{"model": "tiny/model",}',
        b"{'model': 1}",
        b"\xff\xfe",
        b'{"model": "\xff"}',
        b'{"model": "\\ud800"}',
        b'{"a": ' + b"[" * 5000,
        b'{"seed": ' + b"9" * 5000 + b"}",
        b"\xef\xbb\xbf{}",
    )
    for path, endpoint, raw in tried(broken):
        answer = await almighty.request(endpoint.method, path, raw=raw)
        assert_error(answer, 400, "invalid_json", "body", where=(path, raw[:20]))


async def test_v6_a_body_that_is_no_object_is_400_on_every_route_that_takes_one(almighty: AsgiClient) -> None:
    for path, endpoint, raw in tried((b"[]", b'["model"]', b"null", b'"text"', b"1", b"true")):
        answer = await almighty.request(endpoint.method, path, raw=raw)
        assert_error(answer, 400, "invalid_type", "body", where=(path, raw))


async def test_c6_a_missing_field_is_named_on_every_route(almighty: AsgiClient) -> None:
    for path, endpoint, body in taking_bodies():
        for name, field in body.model_fields.items():
            if field.is_required():
                lacking = {**BODIES[endpoint.name]}
                del lacking[name]
                answer = await almighty.request(endpoint.method, path, lacking)
                assert_error(answer, 400, "missing_required_parameter", name, where=path)


def test_c6_every_field_of_every_body_is_named_when_it_has_a_wrong_type() -> None:
    for path, endpoint, body in taking_bodies():
        for name, field in body.model_fields.items():
            sent = field.alias or name
            with pytest.raises(ApiError) as refused:
                validate(body, json.dumps({**BODIES.get(endpoint.name, {}), sent: NONSENSE}))
            assert refused.value.status == 400
            assert re.split(r"[.\[]", refused.value.param or "")[0] == sent, (path, sent)


async def test_c6_a_field_of_a_wrong_type_is_named_on_every_route(almighty: AsgiClient) -> None:
    for path, endpoint, body in taking_bodies():
        name = next(iter(body.model_fields))
        answer = await almighty.request(
            endpoint.method, path, {**BODIES.get(endpoint.name, {}), name: NONSENSE}
        )
        assert_error(answer, 400, "invalid_type", name, where=path)


async def test_v6_empty_messages_and_messages_without_content_are_named(api: AsgiClient) -> None:
    for messages, code, param in (
        (None, "missing_required_parameter", "messages"),
        ([], "invalid_value", "messages"),
        ([{"role": "user"}], "missing_required_parameter", "messages[0].content"),
        ([{"role": "user", "content": None}], "missing_required_parameter", "messages[0].content"),
        ([{"role": "assistant"}], "invalid_value", "messages[0].content"),
        ([{}], "invalid_value", "messages[0]"),
    ):
        answer = await api.post(CHAT, chat(messages=messages))
        assert_error(answer, 400, code, param, where=messages)


async def test_s10_a_prompt_longer_than_the_context_is_the_same_400_streamed_and_not(api: AsgiClient) -> None:
    too_long = "0 1 2 3 " * 200
    for path, body, param in ((CHAT, chat(too_long), "messages"), (TEXT, text(too_long), "prompt")):
        whole, streamed = [await api.post(path, {**body, "stream": stream}) for stream in (False, True)]
        assert streamed.body == whole.body, path
        for answer in (whole, streamed):
            assert_error(answer, 400, "context_length_exceeded", param, where=path)
            assert "512" in answer.error["message"]
            assert answer.headers["x-should-retry"] == "false"
    assert delivery().following == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_an_unknown_model_is_404(api: AsgiClient, stream: bool) -> None:
    for path, body in (
        (CHAT, chat(model="other", stream=stream)),
        (TEXT, text(model="other", stream=stream)),
    ):
        assert_error(await api.post(path, body), 404, "model_not_found", "model")


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_fault_of_ours_is_500_in_the_error_shape_and_shows_nothing_of_us(
    api: AsgiClient, settings: Any, monkeypatch: pytest.MonkeyPatch, debug: bool, stream: bool
) -> None:
    settings.DEBUG = debug
    monkeypatch.setattr(intake, "accept", lambda *_: 1 / 0)
    answer = await api.post(CHAT, chat(stream=stream))
    assert_error(answer, 500, "internal_error")
    assert b"Traceback" not in answer.body
    assert b"division" not in answer.body


@pytest.mark.parametrize("page_can_be_shown", [True, False])
async def test_a_fault_outside_of_the_views_has_the_error_shape_too(
    api: AsgiClient, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, page_can_be_shown: bool
) -> None:
    if page_can_be_shown:
        request.getfixturevalue("plain_static")

    def broken(self: Any, request: Any) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr("django.contrib.auth.middleware.AuthenticationMiddleware.process_request", broken)
    answer = await api.get("/v1/models")
    assert_error(answer, 500, "internal_error")
    assert b"boom" not in answer.body


async def test_a_full_queue_is_429_and_says_when_to_come_back(
    api: AsgiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DispatchQueue, "take_place", lambda *_: False)
    for stream in (False, True):
        answer = await api.post(CHAT, chat(stream=stream))
        assert_error(answer, 429, "queue_full")
        assert answer.error["type"] == "rate_limit_error"
        assert answer.headers["retry-after"] == "2"
        assert answer.headers["retry-after-ms"] == "2000"
        assert "x-should-retry" not in answer.headers


async def test_a_store_that_cannot_be_reached_is_503_and_says_when_to_come_back(
    api: AsgiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: Any) -> bool:
        raise redis.ConnectionError("Error 111 connecting to 10.1.2.3:6379")

    monkeypatch.setattr(DispatchQueue, "take_place", unreachable)
    answer = await api.post(CHAT, chat())
    assert_error(answer, 503, "queue_unavailable")
    assert answer.headers["retry-after"]
    assert b"10.1.2.3" not in answer.body


async def test_the_body_is_checked_before_anything_is_asked_of_the_queue(
    api: AsgiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unexpected(*_: Any) -> bool:
        raise AssertionError("the queue was asked")

    monkeypatch.setattr(DispatchQueue, "take_place", unexpected)
    assert generating.intake is intake
    for body in (chat(temperature=3), chat(model="other"), chat(service_tier=""), chat("0 1 2 " * 400)):
        assert (await api.post(CHAT, body)).status in (400, 404)


async def test_a13_a_foreign_host_is_refused_in_the_error_shape(api: AsgiClient) -> None:
    for path, endpoint in ENDPOINTS:
        answer = await api.request(endpoint.method, path, body_of(endpoint), headers={"host": "evil.example"})
        assert_error(answer, 400, "invalid_request", where=path)


def generations() -> int:
    with every_tenant("the test looks at what was made"):
        return Generation.objects.count()


async def test_a13_a_foreign_page_gets_no_leave_on_any_route_and_its_visitors_session_opens_none(
    almighty: AsgiClient, tenant: Tenant
) -> None:
    member = (await sync_to_async(MembershipFactory)(tenant=tenant)).user
    session = await sync_to_async(session_of)(member)
    foreign = {"origin": EVIL, "sec-fetch-site": "cross-site", "cookie": f"sessionid={session}"}
    for path, endpoint in ENDPOINTS:
        method, body = endpoint.method, body_of(endpoint)
        # What a browser asks before it sends a page's own headers or JSON elsewhere: without leave it does not.
        wanted = {
            "access-control-request-method": method,
            "access-control-request-headers": "authorization, content-type",
        }
        asked = await AsgiClient().request("OPTIONS", path, headers={**foreign, **wanted})
        assert_error(asked, 405, "method_not_allowed", where=path)
        # What it sends without asking, the session with it.
        sent = await AsgiClient().request(method, path, body, headers=foreign)
        assert_error(sent, 401, "invalid_api_key", where=path)
        # Whoever has a key may send it from anywhere: no page learns what is answered.
        answered = await almighty.request(method, path, body and {**body, "no": "such"}, headers=foreign)
        for answer in (asked, sent, answered):
            assert not any(name.startswith("access-control") for name in answer.headers), (
                path,
                answer.headers,
            )
            assert "*" not in answer.headers.values(), path
    assert await sync_to_async(generations)() == 0
