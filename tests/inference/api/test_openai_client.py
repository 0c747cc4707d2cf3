"""OpenAI's own client against the running product: web server, Valkey, worker and the tiny model, in processes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletion

from inference.tokenization import tokenizer as tokenization
from tests.fixtures.live_stack import LONG_CONTEXT, Installation, LiveStack, running_stack

QUESTION: list[Any] = [{"role": "user", "content": "Who was given priority?"}]
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 24}
#: So long that it does not end before its client, or another one, has ended it.
ENDLESS: dict[str, Any] = {"temperature": 0, "max_tokens": LONG_CONTEXT - 200}
PATIENCE_S = 60.0


@pytest.fixture
def client(live_stack: LiveStack) -> Iterator[OpenAI]:
    with OpenAI(api_key=live_stack.api_key, base_url=live_stack.openai_url, max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def long_stack(long_installation: Installation) -> Iterator[LiveStack]:
    """A stack whose model has room for ``ENDLESS``."""
    with running_stack(long_installation) as stack:
        yield stack


@pytest.fixture
def long_client(long_stack: LiveStack) -> Iterator[OpenAI]:
    with OpenAI(api_key=long_stack.api_key, base_url=long_stack.openai_url, max_retries=0) as made:
        yield made


@pytest.fixture
async def async_client(live_stack: LiveStack) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(api_key=live_stack.api_key, base_url=live_stack.openai_url, max_retries=0) as made:
        yield made


def ask(client: OpenAI, content: str = "Hello", **options: Any) -> ChatCompletion:
    return client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": content}], **{**GREEDY, **options}
    )


def test_models_are_listed_and_found(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "signalbox"


def test_a_chat_is_the_same_whole_and_streamed(client: OpenAI) -> None:
    whole = client.chat.completions.create(model="tiny", messages=QUESTION, **GREEDY)
    assert whole.id.startswith("chatcmpl-")
    assert whole.object == "chat.completion"
    assert whole.choices[0].message.role == "assistant"
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 24
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + 24
    assert whole.service_tier == "default"

    chunks = list(
        client.chat.completions.create(
            model="tiny", messages=QUESTION, stream=True, stream_options={"include_usage": True}, **GREEDY
        )
    )
    *parts, usage = chunks
    text = "".join(part.choices[0].delta.content or "" for part in parts)
    assert text == whole.choices[0].message.content
    assert parts[0].choices[0].delta.role == "assistant"
    assert parts[-1].choices[0].finish_reason == "length"
    assert usage.choices == []
    assert usage.usage is not None
    assert (usage.usage.prompt_tokens, usage.usage.total_tokens) == (
        whole.usage.prompt_tokens,
        whole.usage.total_tokens,
    )


def test_the_clients_own_stream_helper_collects_the_answer(client: OpenAI) -> None:
    text = ask(client).choices[0].message.content or ""
    # The helper takes an answer that was cut at its length for an error.
    whole = ask(client, stop=text[10:14])
    with client.chat.completions.stream(
        model="tiny", messages=[{"role": "user", "content": "Hello"}], stop=text[10:14], **GREEDY
    ) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == whole.choices[0].message.content


def test_an_answer_can_be_given_back_as_history(client: OpenAI) -> None:
    first = ask(client)
    history: list[Any] = [
        {"role": "user", "content": "Hello"},
        first.choices[0].message,
        {"role": "user", "content": "And then?"},
    ]
    second = client.chat.completions.create(model="tiny", messages=history, **GREEDY)
    assert second.choices[0].message.content
    assert second.usage is not None
    assert first.usage is not None
    assert second.usage.prompt_tokens > first.usage.total_tokens
    assert second.usage.prompt_tokens_details is not None
    cached = second.usage.prompt_tokens_details.cached_tokens or 0
    assert cached >= first.usage.prompt_tokens, "a chat's next turn finds all of the last one"


def test_a_completion_is_the_same_whole_and_streamed(client: OpenAI) -> None:
    whole = client.completions.create(model="tiny", prompt="The signal box", **GREEDY)
    assert whole.id.startswith("cmpl-")
    assert whole.object == "text_completion"
    streamed = client.completions.create(model="tiny", prompt=["The signal box"], stream=True, **GREEDY)
    assert "".join(chunk.choices[0].text for chunk in streamed) == whole.choices[0].text


def test_s5_what_is_drawn_byte_by_byte_is_the_same_text_whole_and_streamed(
    client: OpenAI, tiny_model_dir: Path
) -> None:
    """Bytes of a character in any order: it is finished seldom, and broken off at every place."""
    tokenizer = tokenization.load(tiny_model_dir)
    token_of = {tokenizer.token_bytes(token): token for token in range(tokenizer.vocab_size)}
    seen = ""
    for character in ("e\u0301", "信", "👍"):
        drawn = {str(token_of[bytes([byte])]): 100 for byte in character.encode()}
        options: dict[str, Any] = {"seed": 1, "temperature": 2, "max_tokens": 60, "logit_bias": drawn}
        whole = client.completions.create(model="tiny", prompt="Hello", **options).choices[0].text
        streamed = client.completions.create(model="tiny", prompt="Hello", stream=True, **options)
        assert "".join(chunk.choices[0].text for chunk in streamed) == whole
        seen += whole
    assert {"\u0301", "信", "\N{REPLACEMENT CHARACTER}"} <= set(seen)


def test_v7_a_seed_gives_the_same_answer_and_another_seed_another(client: OpenAI) -> None:
    options = {"temperature": 1.5, "max_tokens": 24}
    first, same, other = (ask(client, seed=seed, **options) for seed in (7, 7, 8))
    assert first.choices[0].message.content == same.choices[0].message.content
    assert first.choices[0].message.content != other.choices[0].message.content


@pytest.mark.slow
def test_v7_a_seed_gives_the_same_answer_in_a_busy_batch(client: OpenAI) -> None:
    """Whoever else is in it, with whatever seed, and as long as the others' prompts and answers may be."""
    options = {"temperature": 1.5, "max_tokens": 40}
    alone = {seed: ask(client, seed=seed, **options).choices[0].message.content for seed in range(4)}
    assert len(set(alone.values())) == len(alone)

    def one(number: int) -> bool:
        if number % 3 == 2:
            ask(
                client,
                f"Somebody else, {number}. " * (number // 3 + 1),
                temperature=1,
                max_tokens=10 + 9 * number,
            )
            return True
        seed = number % len(alone)
        return ask(client, seed=seed, **options).choices[0].message.content == alone[seed]

    with ThreadPoolExecutor(12) as pool:
        assert all(pool.map(one, range(24)))


@pytest.mark.parametrize("stream", [False, True])
def test_v7_several_choices_are_refused_by_name(client: OpenAI, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError) as chat:
        ask(client, n=3, stream=stream)
    with pytest.raises(openai.BadRequestError) as text:
        client.completions.create(model="tiny", prompt="Hello", n=3, stream=stream)
    for refusal in (chat.value, text.value):
        assert (refusal.status_code, refusal.code, refusal.param) == (400, "unsupported_parameter", "n")
        assert "`n` is not supported by this server: only `1` is accepted" in refusal.message


def test_s6_a_stop_string_ends_the_answer_and_is_not_part_of_it(client: OpenAI) -> None:
    text = ask(client).choices[0].message.content
    assert text
    for length in (1, 3, 7):
        stop = text[5 : 5 + length]
        whole = ask(client, stop=[stop, "never to be seen"])
        assert whole.choices[0].finish_reason == "stop"
        assert whole.choices[0].message.content == text[: text.index(stop)]
        streamed = client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "Hello"}], stop=stop, stream=True, **GREEDY
        )
        joined = "".join(chunk.choices[0].delta.content or "" for chunk in streamed)
        assert joined == whole.choices[0].message.content


async def test_async_streams_run_side_by_side(async_client: AsyncOpenAI) -> None:
    async def stream(content: str) -> str:
        chunks = await async_client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": content}], stream=True, **GREEDY
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])

    async def whole(content: str) -> str:
        answer = await async_client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": content}], **GREEDY
        )
        return answer.choices[0].message.content or ""

    questions = [f"Question {number}" for number in range(8)]
    streamed = await asyncio.gather(*(stream(question) for question in questions))
    assert streamed == await asyncio.gather(*(whole(question) for question in questions))


def test_errors_are_the_clients_own_exceptions(client: OpenAI, live_stack: LiveStack) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        ask(client, temperature=3)
    assert (bad.value.code, bad.value.param, bad.value.type) == (
        "invalid_value",
        "temperature",
        "invalid_request_error",
    )
    assert bad.value.request_id
    assert bad.value.request_id.startswith("req_")

    with pytest.raises(openai.BadRequestError) as too_long:
        ask(client, "0 1 2 3 " * 300)
    assert too_long.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as too_long_streamed:
        ask(client, "0 1 2 3 " * 300, stream=True)
    assert too_long_streamed.value.body == too_long.value.body
    with pytest.raises(openai.BadRequestError) as too_long_text:
        client.completions.create(model="tiny", prompt="0 1 2 3 " * 300)
    with pytest.raises(openai.BadRequestError) as too_long_text_streamed:
        client.completions.create(model="tiny", prompt="0 1 2 3 " * 300, stream=True)
    assert too_long_text_streamed.value.body == too_long_text.value.body

    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="other", messages=QUESTION)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.AuthenticationError) as wrong:
        ask(client.with_options(api_key="sb_wrong"))
    assert wrong.value.code == "invalid_api_key"
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="tiny", input="x")
    with pytest.raises(openai.BadRequestError) as unsupported:
        ask(client, n=2)
    assert (unsupported.value.code, unsupported.value.param) == ("unsupported_parameter", "n")


def test_lanes_are_asked_for_in_openais_words(client: OpenAI) -> None:
    assert ask(client, service_tier="flex").service_tier == "flex"
    raw = client.chat.completions.with_raw_response.create(
        model="tiny", messages=QUESTION, service_tier="priority", **GREEDY
    )
    assert raw.headers["x-signalbox-lane"] == "high"
    assert raw.parse().service_tier == "priority"


@pytest.mark.slow
def test_s1_a_client_that_leaves_ends_its_generation(long_client: OpenAI) -> None:
    with long_client.chat.completions.with_streaming_response.create(
        model="tiny", messages=QUESTION, stream=True, **ENDLESS
    ) as response:
        generation = response.headers["x-signalbox-generation"]
        next(response.iter_lines())
    record = ended(long_client, generation)
    assert (record["state"], record["cancel_reason"]) == ("cancelled", "client_disconnected")
    assert record["usage"]["completion_tokens"] < ENDLESS["max_tokens"]


@pytest.mark.slow
def test_a_generation_is_cancelled_from_outside(long_client: OpenAI) -> None:
    stream = long_client.chat.completions.create(model="tiny", messages=QUESTION, stream=True, **ENDLESS)
    first = next(stream)
    long_client.post(f"/generations/{first.id}/cancel", cast_to=object)
    with pytest.raises(openai.APIError) as cancelled:
        list(stream)
    assert cancelled.value.code == "generation_cancelled"
    assert ended(long_client, first.id)["cancel_reason"] == "client_requested"


def ended(client: OpenAI, generation: str) -> dict[str, Any]:
    """The generation's record once it has ended."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        record: dict[str, Any] = client.get(f"/generations/{generation}", cast_to=dict[str, Any])
        if record["timeline"]["ended_at"] is not None:
            return record
        assert time.monotonic() < deadline, f"it did not end: {record}"
        time.sleep(0.05)
