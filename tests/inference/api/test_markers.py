"""C1: parallel requests of several tenants, each with a marker word of its own, over a prefix cache that has not room
for them all. Each is answered as it is alone, and none with another one's marker.

The tiny model's words mean nothing, so that it need not say its marker: what it says depends on every token of the
prompt, so that an answer from another prompt's cache would be another one.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from openai import OpenAI

from tests.fixtures.live_stack import LiveStack
from tests.inference.api.organization.test_official_client import client_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TENANTS, REQUESTS, ROUNDS = 4, 32, 3
#: What the prompts of all tenants begin with: the cache is tempted to take one for another's.
COMMON = (
    "The signal box sets the lanes, and on a single-track section one token admits one train at a time. " * 3
)
PATIENCE_S = 60.0

_FIGURES = """
import json
from inference.dispatch.heartbeats import heartbeats
from signalbox import store
[beat] = heartbeats(store.sync_client())
shot = beat.scheduler
print(json.dumps({**beat.counters, "cache_budget": shot and shot.kv_cache_budget}))
"""


def markers() -> list[str]:
    """Words that no prompt of another request has, nor a part of one."""
    draw = random.Random(1)
    return [f"{number:02d}" + "".join(draw.sample("bcdfghjklmnpqrstvwxz", 8)) for number in range(REQUESTS)]


def question(number: int, marker: str) -> str:
    """Half of them part from the others at their first word, and half only behind a hundred tokens."""
    beginning = f"{marker}! {COMMON}" if number % 2 else COMMON
    return f"{beginning}The marker is {marker}. Say it: {marker}. What follows?"


def ask(client: OpenAI, number: int, marker: str) -> tuple[str, int]:
    """The answer, and how many of the prompt's tokens were found in the cache."""
    answer = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": question(number, marker)}],
        temperature=0,
        max_tokens=24,
    )
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    return answer.choices[0].message.content or "", answer.usage.prompt_tokens_details.cached_tokens or 0


def figures(stack: LiveStack) -> dict[str, float]:
    """What the worker counts, and how many bytes its prefix cache may have."""
    told: dict[str, float] = json.loads(stack.python(_FIGURES))
    return told


@pytest.fixture
def tight_cache(live_stack: LiveStack) -> Iterator[LiveStack]:
    """The stack while its prefix cache has one MiB, less than half of what the requests leave in it."""
    before = figures(live_stack)["cache_budget"]
    live_stack.manage("model", "schedule", "tiny", "--prefix-cache-mib", "1")
    deadline = time.monotonic() + PATIENCE_S
    while figures(live_stack)["cache_budget"] != 2**20:
        assert time.monotonic() < deadline, f"the worker does not follow: {before}"
        time.sleep(0.2)
    yield live_stack
    live_stack.manage("model", "schedule", "tiny", "--prefix-cache-mib", "none")


@pytest.fixture
def tenants(live_stack: LiveStack) -> Iterator[list[OpenAI]]:
    """A client of each of several tenants, which are archived in the end: the stack is everybody's."""
    with ExitStack() as stack:
        operator = stack.enter_context(client_of(live_stack, "operator"))
        projects = operator.admin.organization.projects
        clients = []
        for number in range(TENANTS):
            project = projects.create(name=f"Marked {number}")
            stack.callback(projects.archive, project.id)
            account = projects.service_accounts.create(project.id, name="app")
            assert account.api_key is not None
            clients.append(
                stack.enter_context(
                    OpenAI(api_key=account.api_key.value, base_url=live_stack.openai_url, max_retries=0)
                )
            )
        yield clients


def test_c1_no_answer_is_another_ones_however_many_run_and_whatever_the_cache_lets_go(
    tight_cache: LiveStack, tenants: list[OpenAI]
) -> None:
    words = markers()
    with OpenAI(api_key=tight_cache.api_key, base_url=tight_cache.openai_url, max_retries=0) as client:
        alone = {word: ask(client, number, word)[0] for number, word in enumerate(words)}
    assert len(set(alone.values())) == REQUESTS, "each answer tells which prompt it is of"
    before, found = figures(tight_cache), 0
    asked = [(tenants[number // 2 % TENANTS], number, word) for number, word in enumerate(words)]
    with ThreadPoolExecutor(REQUESTS) as pool:
        for round_ in range(ROUNDS):
            random.Random(round_).shuffle(asked)
            answers = list(pool.map(lambda one: ask(*one), asked))
            for (_, _, word), (answer, cached) in zip(asked, answers, strict=True):
                assert answer == alone[word], f"round {round_}"
                assert not [other for other in words if other != word and other in answer]
                found += cached
    # Both happened on the way: prompts were found in the cache, and others had to leave it for them.
    assert found > 0
    deadline = time.monotonic() + PATIENCE_S
    while figures(tight_cache)["prefix_evictions_total"] <= before["prefix_evictions_total"]:
        assert time.monotonic() < deadline, "nothing was evicted"
        time.sleep(0.2)
