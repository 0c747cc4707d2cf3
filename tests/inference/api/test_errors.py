"""C6 and V6: whatever is wrong with a request, the answer has one shape and the right status."""

from __future__ import annotations

import re
from typing import Any

import pytest
import redis

from inference import intake
from inference.api import generating
from inference.api.middleware import ROUTES
from inference.api.urls import urlpatterns
from inference.dispatch.delivery import delivery
from inference.dispatch.queue import DispatchQueue
from tests.inference.api.asgi_client import Answer, AsgiClient
from tests.inference.api.bodies import CHAT, TEXT, chat, text

pytestmark = pytest.mark.django_db(transaction=True)

GENERATION = "/v1/generations/gen_" + "0" * 32
GETS = ["/v1/models", "/v1/models/tiny/model", GENERATION, f"{GENERATION}/events"]
POSTS = [CHAT, TEXT, f"{GENERATION}/cancel"]
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"]


def assert_error(answer: Answer, status: int, code: str, param: str | None = None) -> None:
    assert answer.headers["content-type"] == "application/json"
    assert answer.status == status, answer.body
    assert (answer.error["code"], answer.error["param"]) == (code, param)
    assert isinstance(answer.error["message"], str)
    assert answer.error["message"]
    assert answer.headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize("path", [*GETS, *POSTS])
async def test_c6_a_wrong_method_is_405_and_names_the_right_ones(api: AsgiClient, path: str) -> None:
    right = {"POST"} if path in POSTS else {"GET"} if path.endswith("/events") else {"GET", "HEAD"}
    for method in METHODS:
        if method in right:
            continue
        answer = await api.request(method, path)
        assert_error(answer, 405, "method_not_allowed")
        assert set(answer.headers["allow"].split(", ")) == right


@pytest.mark.parametrize(
    "path",
    [
        "/v1",
        "/v1/",
        "/v1/nothing",
        "/v1/chat",
        "/v1/chat/completions/",
        "/v1/models/",
        "/v1/generations/a/b/c",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_c6_an_unknown_path_is_404_in_the_error_shape(api: AsgiClient, method: str, path: str) -> None:
    answer = await api.request(method, path)
    assert_error(answer, 404, "unknown_url")
    assert "POST /v1/chat/completions" in answer.error["message"]


def test_what_an_unknown_path_is_told_to_exist_does() -> None:
    there_is = {
        re.sub(r"<\w+:\w+>", "{id}", f"/v1/{route.pattern}") for route in urlpatterns if str(route.pattern)
    }
    assert {route.split()[1] for route in ROUTES} == there_is


async def test_what_lies_beside_v1_is_left_alone(api: AsgiClient, plain_static: None) -> None:
    answer = await api.get("/v1beta/models")
    assert answer.status == 404
    assert "text/html" in answer.headers["content-type"]


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("announced", [True, False])
async def test_c6_an_oversized_body_is_413(
    api: AsgiClient, settings: Any, path: str, announced: bool
) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1000
    headers = {} if announced else {"content-length": "", "transfer-encoding": "chunked"}
    answer = await api.post(path, raw=b'{"model": "' + b"x" * 1000 + b'"}', headers=headers)
    assert_error(answer, 413, "request_too_large")


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(
    "content_type",
    [
        "",
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
        "application/json; charset=latin1",
    ],
)
async def test_v6_a_wrong_content_type_is_415(api: AsgiClient, path: str, content_type: str) -> None:
    answer = await api.post(path, raw=b"{}", headers={"content-type": content_type})
    assert_error(answer, 415, "unsupported_media_type")


async def test_a_charset_of_utf_8_is_no_wrong_content_type(api: AsgiClient) -> None:
    answer = await api.post(CHAT, raw=b"{}", headers={"content-type": "application/json; charset=UTF-8"})
    assert_error(answer, 400, "missing_required_parameter", "model")


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(
    "raw",
    [
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
    ],
)
async def test_v6_broken_json_is_400(api: AsgiClient, path: str, raw: bytes) -> None:
    assert_error(await api.post(path, raw=raw), 400, "invalid_json", "body")


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("raw", [b"[]", b'["model"]', b"null", b'"text"', b"1", b"true"])
async def test_v6_a_body_that_is_no_object_is_400(api: AsgiClient, path: str, raw: bytes) -> None:
    assert_error(await api.post(path, raw=raw), 400, "invalid_type", "body")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "Hi"}]}, "model"),
        (CHAT, {"model": "tiny/model"}, "messages"),
        (CHAT, chat(messages=None), "messages"),
        (CHAT, chat(messages=[{"role": "user"}]), "messages[0].content"),
        (CHAT, chat(messages=[{"role": "user", "content": None}]), "messages[0].content"),
        (TEXT, {"prompt": "Hi"}, "model"),
        (TEXT, {"model": "tiny/model"}, "prompt"),
    ],
)
async def test_c6_a_missing_field_is_named(
    api: AsgiClient, path: str, body: dict[str, Any], param: str
) -> None:
    assert_error(await api.post(path, body), 400, "missing_required_parameter", param)


@pytest.mark.parametrize("stream", [False, True])
async def test_s10_a_prompt_longer_than_the_context_is_the_same_400_streamed_and_not(
    api: AsgiClient, stream: bool
) -> None:
    too_long = "0 1 2 3 " * 200
    for path, body, param in (
        (CHAT, chat(too_long, stream=stream), "messages"),
        (TEXT, text(too_long, stream=stream), "prompt"),
    ):
        answer = await api.post(path, body)
        assert_error(answer, 400, "context_length_exceeded", param)
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
    answer = await api.get("/v1/models", headers={"host": "evil.example"})
    assert_error(answer, 400, "invalid_request")


async def test_a13_a_foreign_origin_gets_no_leave_to_read(api: AsgiClient) -> None:
    headers = {"origin": "https://evil.example", "access-control-request-method": "POST"}
    for method in ("GET", "OPTIONS"):
        answer = await api.request(method, "/v1/models", headers=headers)
        assert not any(name.startswith("access-control") for name in answer.headers)
