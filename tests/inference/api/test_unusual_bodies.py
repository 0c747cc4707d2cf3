"""V1: a well-formed but unusual body is answered or refused by name, and a stream beside it does not notice.

On every route that takes a body, and on the chat socket, of the running product.
"""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from openai import OpenAI
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from inference.api.bodies import MAX_NODES
from tests.fixtures.live_stack import LiveStack
from tests.inference.api.bodies import CHAT, TEXT
from tests.inference.api.organization.test_official_client import client_of
from tests.inference.api.routes import taking_bodies

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

#: Bodies of the generation routes, and what is refused of them; None if they are answered.
ITS_OWN: list[tuple[str, dict[str, Any], str | None]] = [
    (TEXT, {"prompt": [5, 6, 7]}, None),
    (TEXT, {"prompt": [[5, 6, 7]]}, None),
    (TEXT, {"prompt": ["one text"]}, None),
    (TEXT, {"prompt": ["a", "b"]}, "prompt"),
    (TEXT, {"prompt": [[5], [6]]}, "prompt"),
    (TEXT, {"prompt": [5, "a"]}, "prompt[1]"),
    (TEXT, {"prompt": [10**9]}, "prompt[0]"),
    (TEXT, {"prompt": [-1]}, "prompt[0]"),
    (TEXT, {"prompt": []}, "prompt"),
    (TEXT, {"prompt": [[]]}, "prompt[0]"),
    (TEXT, {"prompt": ""}, "prompt"),
    (TEXT, {"prompt": {}}, "prompt"),
    (TEXT, {"prompt": "a", "n": 3}, "n"),
    (TEXT, {"prompt": "a", "best_of": 3}, "best_of"),
    (TEXT, {"prompt": "a", "logit_bias": {str(10**9): 1}}, "logit_bias"),
    (TEXT, {"prompt": "a", "stop": ["x"] * 99}, "stop"),
    (TEXT, {"prompt": "a", "messages": []}, "messages"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 3}]}, None),
    (CHAT, {"messages": [{"role": "assistant", "content": None, "refusal": "No."}]}, None),
    (CHAT, {"messages": [{"role": "user", "content": [5, 6, 7]}]}, "messages[0].content[0]"),
    (CHAT, {"messages": [[{"role": "user", "content": "a"}]]}, "messages[0]"),
    (CHAT, {"messages": {"role": "user", "content": "a"}}, "messages"),
    (CHAT, {"messages": [{"role": "user", "content": "a"}], "prompt": "a"}, "prompt"),
    (CHAT, {"messages": [{"role": "user", "content": "a"}], "n": 3}, "n"),
    (CHAT, {"messages": [{"role": "robot", "content": "a"}]}, "messages[0]"),
]

#: JSON texts that nobody means, for any route.
FOR_ANY: list[str] = [
    "{}",
    "[]",
    "[{}]",
    "null",
    "true",
    "7",
    '"a text"',
    " \n\t {} \n",
    "[" * 150 + "]" * 150,
    '{"a":' * 150 + "1" + "}" * 150,
    '{"name": 1, "name": 2}',
    '{"": ""}',
    '{"🚂": "信号箱"}',
    '{"name": ["a", "b"], "model": {"tiny": 1}, "prompt": {"a": []}, "messages": 5}',
    '{"name": "\\ud800"}',
    '{"name": "a\\u0000b"}',
    f'{{"name": {10**400}, "max_tokens": 1e400}}',
    '{"name": 1E-400}',
    json.dumps({f"field {number}": number for number in range(5000)}),
    json.dumps({"metadata": [[]] * (MAX_NODES + 1)}),
]


def send(stack: LiveStack, key: str, method: str, path: str, text: str) -> tuple[int, dict[str, Any]]:
    """Send it as it is: a client library would refuse some of it itself. Status and answer."""
    request = urllib.request.Request(
        stack.base_url + path,
        data=text.encode(),
        method=method,
        headers={"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refused:
        return refused.code, json.load(refused)


@contextmanager
def beside_streams(stack: LiveStack) -> Iterator[None]:
    """Runs one stream after the other meanwhile; each has the text that it has alone."""
    enough = threading.Event()

    def stream(client: OpenAI) -> str:
        chunks = client.completions.create(
            model="tiny",
            prompt="Who was given priority, and why?",
            temperature=0,
            max_tokens=300,
            stream=True,
        )
        return "".join(chunk.choices[0].text for chunk in chunks)

    def streams(client: OpenAI) -> list[str]:
        texts = [stream(client)]
        while not enough.is_set():
            texts.append(stream(client))
        return texts

    with (
        OpenAI(api_key=stack.api_key, base_url=stack.openai_url, max_retries=0) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        alone = stream(client)
        running = pool.submit(streams, client)
        try:
            yield
        finally:
            enough.set()
        assert set(running.result()) == {alone}


def test_v1_what_is_unusual_of_a_prompt_is_answered_or_refused_by_name_and_a_stream_does_not_notice(
    live_stack: LiveStack,
) -> None:
    with beside_streams(live_stack):
        for path, fields, param in ITS_OWN:
            body = json.dumps({"model": "tiny", "max_tokens": 4, **fields})
            status, answer = send(live_stack, live_stack.api_key, "POST", path, body)
            if param is None:
                assert status == 200, (body, answer)
                assert answer["usage"]["completion_tokens"] == 4
            else:
                assert status == 400, (body, answer)
                assert answer["error"]["param"] == param, (body, answer)
                assert f"`{param}`" in answer["error"]["message"], answer


def test_v1_no_route_that_takes_a_body_fails_on_an_unusual_one_and_a_stream_does_not_notice(
    live_stack: LiveStack,
) -> None:
    routes = [(endpoint.method, path) for path, endpoint, _ in taking_bodies()]
    assert {("POST", CHAT), ("POST", TEXT), ("POST", "/v1/organization/projects")} <= set(routes)
    with client_of(live_stack, "operator") as operator, beside_streams(live_stack):
        for method, path in routes:
            key = operator.admin_api_key if "/organization/" in path else live_stack.api_key
            assert key is not None
            for text in FOR_ANY:
                status, answer = send(live_stack, key, method, path, text)
                where = (method, path, text[:80], answer)
                assert status in (400, 404), where
                error = answer["error"]
                assert set(error) == {"message", "type", "param", "code"}, where
                assert (error["type"], bool(error["message"])) == ("invalid_request_error", True), where
                if status == 400 and error["code"] != "invalid_value":
                    assert error["param"] is not None, where


def test_v1_the_chat_socket_refuses_unusual_frames_by_name_and_a_stream_does_not_notice(
    live_stack: LiveStack,
) -> None:
    protocols = [Subprotocol("signalbox.v1"), Subprotocol(f"key.{live_stack.api_key}")]

    def refused(text: str) -> dict[str, Any]:
        """What the frame is answered with; the connection is as good as ever after it."""
        with connect(f"{live_stack.ws_url}/ws/chat/", subprotocols=protocols, max_size=None) as socket:
            socket.send(text)
            answer: dict[str, Any] = json.loads(socket.recv(60))
            socket.send(
                json.dumps({"type": "generate", "model": "tiny", "max_tokens": 1, "messages": _HELLO})
            )
            assert json.loads(socket.recv(60))["type"] == "accepted"
        return answer

    with beside_streams(live_stack):
        for text in FOR_ANY:
            frame = refused(text)
            assert frame["type"] == "error", (text[:80], frame)
            assert frame["code"], frame
            assert frame["message"], frame
        for _, fields, param in (one for one in ITS_OWN if one[0] == CHAT and one[2] is not None):
            frame = refused(json.dumps({"type": "generate", "model": "tiny", "max_tokens": 4, **fields}))
            assert (frame["type"], frame["param"]) == ("error", param), (fields, frame)


_HELLO = [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_v1_a_body_of_two_texts_is_refused(live_stack: LiveStack, path: str) -> None:
    status, answer = send(live_stack, live_stack.api_key, "POST", path, "{} {}")
    assert (status, answer["error"]["code"], answer["error"]["param"]) == (400, "invalid_json", "body")
