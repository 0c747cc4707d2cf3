"""No body, however odd, is answered with anything but an answer or a 4xx in the error shape."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inference.api.bodies import validate
from inference.api.chat_completions import ChatCompletionRequest
from inference.api.completions import CompletionRequest
from inference.api.errors import ApiError
from inference.models import LanguageModel
from tests.factories import ApiKeyFactory
from tests.inference.api.asgi_client import AsgiClient
from tests.inference.api.bodies import CHAT, TEXT, chat, text

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(st.characters(codec=None), max_size=20)
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
ROLES = st.sampled_from(["system", "developer", "user", "assistant", "tool", "function", "robot"])
PARTS = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "refusal", "image_url"]) | SCALARS},
    optional={"text": JSON, "refusal": JSON},
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": ROLES | SCALARS},
        optional={
            "content": st.text(max_size=20) | st.lists(PARTS | JSON, max_size=3) | JSON,
            "name": JSON,
            "tool_call_id": JSON,
            "refusal": JSON,
            "tool_calls": st.lists(JSON, max_size=2),
        },
    )
    | JSON,
    max_size=4,
)


def fields_of(model: type[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Some of the model's fields, with anything in them."""
    return st.dictionaries(
        st.sampled_from(sorted(model.model_fields)) | st.text(max_size=8), JSON, max_size=6
    )


CHATS = st.builds(
    lambda base, odd, messages: {**base, **messages, **odd},
    st.just(chat()),
    fields_of(ChatCompletionRequest),
    st.just({}) | st.fixed_dictionaries({"messages": MESSAGES}),
)
TEXTS = st.builds(
    lambda base, odd, prompt: {**base, **prompt, **odd},
    st.just(text()),
    fields_of(CompletionRequest),
    st.just({}) | st.fixed_dictionaries({"prompt": JSON}),
)
BODIES = st.one_of(
    st.tuples(st.just(CHAT), CHATS.map(json.dumps)),
    st.tuples(st.just(TEXT), TEXTS.map(json.dumps)),
    st.tuples(st.sampled_from([CHAT, TEXT]), JSON.map(json.dumps) | st.text(st.characters(codec="utf-8"))),
)


def refusal_of(model: type[Any], body: bytes) -> ApiError | None:
    try:
        validate(model, body)
    except ApiError as error:
        return error
    return None


@pytest.mark.slow
@settings(max_examples=400)
@given(BODIES)
def test_a_body_is_valid_or_refused_with_a_4xx(body: tuple[str, str]) -> None:
    path, content = body
    model = ChatCompletionRequest if path == CHAT else CompletionRequest
    error = refusal_of(model, content.encode("utf-8", "surrogatepass"))
    if error is not None:
        assert 400 <= error.status < 500
        assert error.message
        assert json.dumps(error.body(), allow_nan=False).encode()


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_no_body_makes_the_server_fail(model: LanguageModel) -> None:
    # Of a tenant that is entitled to nothing: valid bodies go all the way to admission and are refused there.
    client = AsgiClient(ApiKeyFactory().raw)
    loop = asyncio.new_event_loop()
    seen: set[int] = set()

    @settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(BODIES)
    def send(body: tuple[str, str]) -> None:
        path, content = body
        answer = loop.run_until_complete(client.post(path, raw=content.encode("utf-8", "surrogatepass")))
        assert 400 <= answer.status < 500, answer.body
        assert answer.error["message"]
        seen.add(answer.status)

    try:
        send()
    finally:
        loop.close()
    assert seen >= {400, 403}
