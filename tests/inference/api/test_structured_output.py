"""V2: no schema or pattern, however nonsensical, slow or large, gets further than the validation of its request.

Structured output is not offered: nothing is compiled, whatever a schema says, and the refusal names the parameter.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from inference.api.bodies import MAX_NODES
from inference.models import Generation
from signalbox.configuration import configuration
from tests.inference.api.asgi_client import AsgiClient
from tests.inference.api.bodies import CHAT, TEXT, chat, text
from tests.inference.api.hand import Hand
from tests.inference.api.test_errors import assert_error
from tests.inference.api.test_idempotency import counted

pytestmark = pytest.mark.django_db(transaction=True)

#: Takes a backtracking matcher longer than anybody lives.
SLOW = "^(([a-z])+.)+[A-Z]([a-z])+$" * 20 + "(a+)+" * 50


def format_of(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


SCHEMAS: dict[str, Any] = {
    "nonsense": {"type": "banana", "properties": 7, "required": {"a": None}},
    "no schema at all": "banana",
    "one that refers to itself": {"$ref": "#"},
    "one that refers to a stranger": {"$ref": "https://example.invalid/schema.json"},
    "a slow pattern": {"type": "string", "pattern": SLOW},
    "a deep one": nested(60),
    "five megabytes of words": {"enum": ["x" * 1000] * 5000},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS.keys())
async def test_v2_a_schema_is_refused_by_name_whatever_it_says(
    api: AsgiClient, hand: Hand, schema: Any, stream: bool
) -> None:
    answer = await api.post(CHAT, chat(response_format=format_of(schema), stream=stream))
    assert_error(answer, 400, "unsupported_parameter", "response_format")
    assert len(answer.body) < 1000, "a refusal does not give back what was sent"
    assert answer.headers["x-should-retry"] == "false"
    assert await counted(Generation) == 0
    assert await hand.finds_nothing()


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(
    "name",
    ["guided_json", "guided_regex", "guided_grammar", "guided_choice", "structured_outputs", "grammar"],
)
async def test_v2_other_servers_words_for_it_are_refused_by_name(
    api: AsgiClient, hand: Hand, path: str, name: str
) -> None:
    body = chat() if path == CHAT else text()
    assert_error(await api.post(path, {**body, name: SLOW}), 400, "unsupported_parameter", name)
    assert await hand.finds_nothing()


async def test_v2_a_schema_of_more_objects_than_anybody_means_is_not_even_built(
    api: AsgiClient, hand: Hand
) -> None:
    raw = json.dumps(chat(response_format=format_of({"allOf": [{}] * (MAX_NODES + 1)}))).encode()
    answer = await api.post(CHAT, raw=raw)
    assert (answer.status, answer.error["code"]) == (400, "invalid_value")
    assert str(MAX_NODES) in answer.error["message"]
    assert await counted(Generation) == 0


async def test_v2_a_body_beyond_the_limit_is_413_and_not_read_further(api: AsgiClient, hand: Hand) -> None:
    schema = {"description": "x" * configuration().max_body_bytes}
    answer = await api.post(CHAT, chat(response_format=format_of(schema)))
    assert_error(answer, 413, "request_too_large")
    assert await hand.finds_nothing()
