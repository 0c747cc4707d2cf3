"""C9 in the running product: what is asked for limits the answer, by either name, and what cannot be is refused."""

from __future__ import annotations

import json
from typing import Any

from tests.fixtures.event_stream import EventStream
from tests.fixtures.live_stack import LiveStack
from tests.inference.api.bodies import CHAT, TEXT
from tests.inference.api.test_unusual_bodies import send
from tests.inference.engine.tiny_model import CONTEXT_LENGTH

PROMPTS: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "Hello"}]},
    TEXT: {"prompt": "Hello"},
}
#: What is asked for, and how many tokens the answer has.
ANSWERED: list[tuple[str, dict[str, Any], int]] = [
    (CHAT, {"max_tokens": 1}, 1),
    (CHAT, {"max_tokens": 9}, 9),
    (CHAT, {"max_completion_tokens": 1}, 1),
    (CHAT, {"max_completion_tokens": 9}, 9),
    (CHAT, {"max_tokens": 9, "max_completion_tokens": 9}, 9),
    (CHAT, {"max_tokens": None, "max_completion_tokens": 9}, 9),
    (CHAT, {"max_tokens": 9, "max_completion_tokens": None}, 9),
    (TEXT, {"max_tokens": 1}, 1),
    (TEXT, {"max_tokens": 9}, 9),
]
#: What is asked for, and how it is refused.
REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    *(
        (path, {name: value}, "invalid_value", name)
        for path, name in ((CHAT, "max_tokens"), (CHAT, "max_completion_tokens"), (TEXT, "max_tokens"))
        for value in (0, -1, 2**31, 10**30)
    ),
    (CHAT, {"max_tokens": 9, "max_completion_tokens": 8}, "invalid_value", "max_completion_tokens"),
    (CHAT, {"max_tokens": 0, "max_completion_tokens": 9}, "invalid_value", "max_tokens"),
    (CHAT, {"max_tokens": CONTEXT_LENGTH}, "context_length_exceeded", "messages"),
    (CHAT, {"max_completion_tokens": 2**31 - 1}, "context_length_exceeded", "messages"),
    (TEXT, {"max_tokens": 2**31 - 1}, "context_length_exceeded", "prompt"),
    (TEXT, {"max_completion_tokens": 9}, "unsupported_parameter", "max_completion_tokens"),
]


def body(path: str, asked: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "temperature": 0, **PROMPTS[path], **asked, **fields}


def test_c9_either_name_limits_the_answer_streamed_and_not(live_stack: LiveStack) -> None:
    longest: dict[str, str] = {}
    for path, asked, tokens in reversed(ANSWERED):
        status, whole = send(live_stack, live_stack.api_key, "POST", path, json.dumps(body(path, asked)))
        assert status == 200, (asked, whole)
        [choice] = whole["choices"]
        text = choice["message"]["content"] if path == CHAT else choice["text"]
        assert (choice["finish_reason"], whole["usage"]["completion_tokens"]) == ("length", tokens), asked
        options = {"stream": True, "stream_options": {"include_usage": True}}
        stream = EventStream(live_stack, "POST", path, body(path, asked, **options)).open().read_to_end()
        assert stream.usage is not None
        assert (stream.text, stream.usage["completion_tokens"]) == (text, tokens), asked
        # It is the same answer, cut: the shorter one begins the longer one.
        assert longest.setdefault(path, text).startswith(text.rstrip("\N{REPLACEMENT CHARACTER}")), asked


def test_c9_a_length_that_cannot_be_is_refused_alike_streamed_and_not(live_stack: LiveStack) -> None:
    for path, asked, code, param in REFUSED:
        answers = [
            send(live_stack, live_stack.api_key, "POST", path, json.dumps(body(path, asked, stream=stream)))
            for stream in (False, True)
        ]
        assert answers[0] == answers[1], asked
        status, answer = answers[0]
        assert (status, answer["error"]["code"], answer["error"]["param"]) == (400, code, param), asked
        if code == "context_length_exceeded":
            assert str(CONTEXT_LENGTH) in answer["error"]["message"]
