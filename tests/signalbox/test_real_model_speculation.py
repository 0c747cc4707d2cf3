"""Speculation through the whole product with the real small model: only the usage shows what was guessed."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from openai import OpenAI
from openai.types import CompletionUsage
from prometheus_client.parser import text_string_to_metric_families

from tests.fixtures.live_stack import LiveStack

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(600)]

#: A worker looks at its settings every five seconds, and tells what it counts every second.
PATIENCE_S = 60.0
QUESTIONS = (
    "Repeat this list exactly, nothing else:\n\n" + "red apple\ngreen pear\nyellow lemon\n" * 2,
    "Give this program again, unchanged:\n\n```python\ndef total(items):\n    sum = 0\n    for item in items:\n"
    "        sum = sum + item\n    return sum\n```",
)


@pytest.fixture
def stack(model_stack: LiveStack) -> Iterator[LiveStack]:
    """The shared stack; it speculates afterwards as it did before."""
    yield model_stack
    model_stack.manage("model", "schedule", model_stack.model, "--speculation", "measured")


def speculates(stack: LiveStack, setting: str) -> None:
    """Switch speculation ``on`` or ``off``; return once the worker goes by it."""
    stack.manage("model", "schedule", stack.model, "--speculation", setting)
    deadline = time.monotonic() + PATIENCE_S
    while worker_value(stack, "speculation_on") != float(setting == "on"):
        assert time.monotonic() < deadline, f"the worker does not follow: speculation {setting}"
        time.sleep(0.2)


def worker_value(stack: LiveStack, name: str) -> float:
    """What the workers say of themselves in ``/metrics``, summed."""
    token = (stack.state_dir / "secrets" / "metrics_token").read_text().strip()
    request = urllib.request.Request(
        f"{stack.base_url}/metrics", headers={"Authorization": f"Bearer {token}"}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return sum(
            sample.value
            for family in families
            for sample in family.samples
            if sample.name == f"signalbox_worker_{name}"
        )


def streamed(stack: LiveStack, question: str) -> tuple[str, str, CompletionUsage]:
    """One greedy answer's text, why it ended, and its usage."""
    client = OpenAI(base_url=stack.openai_url, api_key=stack.api_key, timeout=300, max_retries=0)
    text, reason, usage = "", "", None
    with client.chat.completions.create(
        model=stack.model,
        messages=[{"role": "user", "content": question}],
        temperature=0,
        max_tokens=40,
        stream=True,
        stream_options={"include_usage": True},
    ) as chunks:
        for chunk in chunks:
            for choice in chunk.choices:
                text += choice.delta.content or ""
                reason = choice.finish_reason or reason
            usage = chunk.usage or usage
    assert usage is not None
    return text, reason, usage


def test_two_streams_that_speculate_say_what_they_say_without_and_tell_what_was_guessed(
    stack: LiveStack,
) -> None:
    speculates(stack, "off")
    plain = [streamed(stack, question) for question in QUESTIONS]
    speculates(stack, "on")
    with ThreadPoolExecutor(len(QUESTIONS)) as pool:
        together = list(pool.map(lambda question: streamed(stack, question), QUESTIONS))
    accepted = 0
    for (text, reason, usage), (said, ended, counted) in zip(plain, together, strict=True):
        assert (said, ended) == (text, reason)
        assert counted.completion_tokens == usage.completion_tokens
        assert counted.prompt_tokens == usage.prompt_tokens
        before, details = usage.completion_tokens_details, counted.completion_tokens_details
        assert before is not None
        assert details is not None
        assert (before.accepted_prediction_tokens, before.rejected_prediction_tokens) == (0, 0)
        accepted += details.accepted_prediction_tokens or 0
    assert accepted > 0
