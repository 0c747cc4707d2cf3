"""V1: a well-formed but unusual body is answered or refused by name, and a stream beside it does not notice."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from openai import OpenAI

from tests.fixtures.live_stack import LiveStack

#: A prompt of the tiny model, its length limit, and what is refused of it; None if it is answered.
BODIES: list[tuple[dict[str, Any], str | None]] = [
    ({"prompt": [5, 6, 7]}, None),
    ({"prompt": [[5, 6, 7]]}, None),
    ({"prompt": ["one text"]}, None),
    ({"prompt": ["a", "b"]}, "prompt"),
    ({"prompt": [[5], [6]]}, "prompt"),
    ({"prompt": [10**9]}, "prompt[0]"),
    ({"prompt": []}, "prompt"),
    ({"prompt": "a", "n": 3}, "n"),
    ({"prompt": "a", "logit_bias": {str(10**9): 1}}, "logit_bias"),
    ({"prompt": "a", "stop": ["x"] * 99}, "stop"),
]


def test_v1_an_unusual_body_is_answered_or_refused_by_name_and_a_stream_beside_it_does_not_notice(
    live_stack: LiveStack,
) -> None:
    question = "Who was given priority, and why?"
    with OpenAI(api_key=live_stack.api_key, base_url=live_stack.openai_url, max_retries=0) as client:

        def stream() -> Any:
            return client.completions.create(
                model="tiny", prompt=question, temperature=0, max_tokens=300, stream=True
            )

        alone = "".join(chunk.choices[0].text for chunk in stream())
        answers, beside = [], ""
        for number, chunk in enumerate(stream()):
            beside += chunk.choices[0].text
            if number < len(BODIES):
                answers.append(complete(live_stack, BODIES[number][0]))
    assert beside == alone
    for (body, param), (status, answer) in zip(BODIES, answers, strict=True):
        if param is None:
            assert status == 200, (body, answer)
            assert answer["usage"]["completion_tokens"] == 4
        else:
            assert status == 400, (body, answer)
            assert answer["error"]["param"] == param, answer


def complete(stack: LiveStack, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Send it as it is: a client library would refuse some of it itself. Status and answer."""
    request = urllib.request.Request(
        f"{stack.openai_url}/completions",
        data=json.dumps({"model": "tiny", "max_tokens": 4, **body}).encode(),
        headers={"Authorization": f"Bearer {stack.api_key}", "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refused:
        return refused.code, json.load(refused)
