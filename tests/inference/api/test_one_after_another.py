"""Whoever has the whole answer may ask for the next one: nothing of the first is in its way any more."""

from __future__ import annotations

import json

from openai import OpenAI

from tests.fixtures.live_stack import LiveStack


def test_a_client_with_a_limit_of_one_is_not_refused_for_what_it_has_read_to_its_end(
    live_stack: LiveStack,
) -> None:
    told = live_stack.manage(
        "key", "create", "--tenant", "default", "--name", "one at a time", "--concurrency", "1", "--json"
    )
    key = json.loads(told)["api_key"]
    with OpenAI(base_url=live_stack.openai_url, api_key=key, max_retries=0) as client:
        for _ in range(8):
            whole = client.completions.create(model="tiny", prompt="Hello", max_tokens=2)
            assert whole.usage is not None
            streamed = client.completions.create(model="tiny", prompt="Hello", max_tokens=2, stream=True)
            assert list(streamed)
