"""The whole product with the real small model, through OpenAI's own client."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from openai import OpenAI

from tests.fixtures.live_stack import LiveStack

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture
def client(model_stack: LiveStack) -> OpenAI:
    return OpenAI(base_url=model_stack.openai_url, api_key=model_stack.api_key, timeout=300, max_retries=0)


def ask(client: OpenAI, model: str, question: str, **parameters: Any) -> Any:
    return client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": question}],
        temperature=0,
        **{"max_tokens": 40, **parameters},
    )


def test_it_knows_the_capital_of_france_and_stops_by_itself(client: OpenAI, model_stack: LiveStack) -> None:
    answer = ask(client, model_stack.model, "What is the capital of France? Answer in one short sentence.")
    assert "Paris" in answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_what_is_streamed_equals_what_is_not(client: OpenAI, model_stack: LiveStack) -> None:
    question = "Write one sentence about trains, with an emoji."
    whole = ask(client, model_stack.model, question)
    chunks = list(
        ask(client, model_stack.model, question, stream=True, stream_options={"include_usage": True})
    )
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert streamed == whole.choices[0].message.content
    usage = chunks[-1].usage
    assert usage is not None
    assert whole.usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (
        whole.usage.prompt_tokens,
        whole.usage.completion_tokens,
    )
    # Whichever was asked second found the prompt of the first, all but its last token.
    assert usage.prompt_tokens_details is not None
    assert (usage.prompt_tokens_details.cached_tokens or 0) >= usage.prompt_tokens - 1


def test_more_requests_than_slots_are_all_answered_and_none_with_anothers_marker(
    client: OpenAI, model_stack: LiveStack
) -> None:
    animals = [
        "tiger",
        "rabbit",
        "elephant",
        "horse",
        "dolphin",
        "spider",
        "monkey",
        "penguin",
        "turtle",
        "camel",
    ]

    def repeat(animal: str) -> str:
        question = f'Repeat this sentence exactly: "My favourite animal is the {animal}."'
        return str(ask(client, model_stack.model, question, max_tokens=16).choices[0].message.content)

    with ThreadPoolExecutor(len(animals)) as pool:
        answers = dict(zip(animals, pool.map(repeat, animals), strict=True))
    # So small a model seldom does as it is told; but no answer names what another was asked.
    for animal, answer in answers.items():
        assert answer
        assert not any(other in answer for other in animals if other != animal)
