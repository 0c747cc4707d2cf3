"""C13 through the route: every content of every role is answered, or refused by name, as `docs/api.md` says."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from inference.api.prompts import tokenizer_of
from inference.models import LanguageModel
from tests.fixtures.live_stack import LiveStack
from tests.inference.api.asgi_client import AsgiClient
from tests.inference.api.bodies import CHAT, chat
from tests.inference.api.hand import Hand
from tests.inference.api.test_prompts import CALL, SHOWS_CALLS, with_template
from tests.inference.api.test_unusual_bodies import send

PARTS = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
#: What a message has beside its content.
ROLES: dict[str, dict[str, Any]] = {
    "system": {},
    "developer": {},
    "user": {},
    "assistant": {},
    "tool": {"tool_call_id": "call_1"},
    "function": {"name": "f"},
}
CONTENTS: list[dict[str, Any]] = [
    {},
    {"content": None},
    {"content": ""},
    {"content": PARTS},
]
CALLS: list[dict[str, Any]] = [
    {"tool_calls": CALL["tool_calls"]},
    {"function_call": {"name": "weather", "arguments": "{}"}},
]


def is_taken(role: str, content: Any) -> bool:
    """By the table of the roles in `docs/api.md`."""
    if role == "function":
        return content is None or isinstance(content, str)
    return content is not None


def asked(stack: LiveStack, message: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    body = {"model": "tiny", "max_tokens": 1, "messages": [message]}
    return send(stack, stack.api_key, "POST", CHAT, json.dumps(body))


def test_c13_every_content_of_every_role_is_answered_or_refused_by_name(live_stack: LiveStack) -> None:
    for (role, beside), content in product(ROLES.items(), CONTENTS):
        message = {"role": role, **beside, **content}
        status, answer = asked(live_stack, message)
        if is_taken(role, content.get("content")):
            assert (status, answer.get("usage", {}).get("completion_tokens")) == (200, 1), (message, answer)
        else:
            assert (status, answer["error"]["param"]) == (400, "messages[0].content"), (message, answer)


def test_c13_an_assistant_that_refused_needs_no_content(live_stack: LiveStack) -> None:
    for content in ({}, {"content": None}, {"content": [{"type": "refusal", "refusal": "No."}]}):
        status, answer = asked(live_stack, {"role": "assistant", "refusal": "No.", **content})
        assert status == 200, (content, answer)


def test_c13_calls_without_words_in_the_template_are_refused_by_name_whatever_the_content(
    live_stack: LiveStack,
) -> None:
    for calls, content in product(CALLS, CONTENTS):
        status, answer = asked(live_stack, {"role": "assistant", **content, **calls})
        error = answer["error"]
        assert (status, error["code"], error["param"]) == (400, "invalid_prompt", "messages"), (
            content,
            calls,
        )


@pytest.mark.django_db(transaction=True)
async def test_c13_calls_without_content_reach_a_model_whose_template_has_words_for_them(
    api: AsgiClient, hand: Hand, model: LanguageModel, tiny_model_dir: Path, tmp_path: Path
) -> None:
    other = with_template(tiny_model_dir, tmp_path, SHOWS_CALLS)
    model.directory, model.checksum = other.directory, "with words for calls"
    await model.asave()
    tokenizer = await sync_to_async(tokenizer_of)(model)
    for content in ({}, {"content": None}, {"content": ""}, {"content": PARTS}):
        question = {"role": "user", "content": "x"}
        result = {"role": "tool", "tool_call_id": "1", "content": "Rain"}
        messages = [question, {**CALL, **content}, result]
        async with api.open("POST", CHAT, chat(messages=messages)) as exchange:
            run = await hand.answer(["Take an umbrella."])
            answer = await exchange.end()
        assert answer.status == 200, answer.body
        assert "weatherUlm" in tokenizer.decode(run.claim.task.prompt)
