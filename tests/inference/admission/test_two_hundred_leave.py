"""F16 over HTTP: two hundred clients hang up while queued, in prefill, decoding, and at the speculative slot."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
from prometheus_client.parser import text_string_to_metric_families

from tests.fixtures.event_stream import EventStream, chat_stream
from tests.fixtures.live_stack import Installation, LiveStack, running_stack
from tests.inference.admission.stack_books import SLACK_S, books, wait_until_nothing_is_live

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

_CLIENTS, _AT_ONCE = 200, 40
#: Long enough that no generation ends before its client leaves.
_MAX_TOKENS = 1500
_SHORT = "Who was given priority, when, and why?"
_LONG = "Who was given priority, when, and why? " * 60
#: Everybody speculates, in short turns, so that the slot is contended all the time.
_CONTENDED = """
from inference.models import LanguageModel
LanguageModel.objects.update(speculation="on", grant_rounds=2)
"""


@pytest.fixture(scope="module")
def stack(long_installation: Installation) -> Iterator[LiveStack]:
    with running_stack(long_installation, {"SIGNALBOX_DRAIN_SECONDS": "0"}) as stack:
        stack.python(_CONTENDED)
        yield stack


def _come_and_go(stack: LiveStack, number: int) -> EventStream:
    """One client: a long prompt or a short one, and it reads from nothing to some ten pieces of the answer."""
    prompt = _LONG if number % 4 == 0 else _SHORT
    told = {"include_progress": True}
    stream = chat_stream(stack, prompt, max_tokens=_MAX_TOKENS, stream_options=told)
    stream.read((number // 4) % 12)
    stream.close()
    return stream


def _cancelled_at(stack: LiveStack) -> dict[str, int]:
    """How many generations were cancelled at which stage because their client had left, by the worker's metrics."""
    token = (stack.state_dir / "secrets" / "metrics_token").read_text().strip()
    request = urllib.request.Request(
        stack.base_url + "/metrics", headers={"Authorization": f"Bearer {token}"}
    )
    with urllib.request.urlopen(request, timeout=10) as response:
        text = response.read().decode()
    return {
        sample.labels["stage"]: int(sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "signalbox_worker_cancellations_total"
        and sample.labels["reason"] == "client_disconnected"
    }


def _left_in_dispatch(stack: LiveStack) -> list[bytes]:
    """What the queue still has of anybody."""
    with redis.Redis(unix_socket_path=str(stack.configuration.valkey_socket)) as client:
        kinds = ("places", "queue", "fifo", "leases", "cancels")
        return [key for kind in kinds for key in client.keys(f"dispatch:{kind}:*")]


def test_f16_two_hundred_clients_that_leave_at_any_stage_leave_nothing_behind(stack: LiveStack) -> None:
    before = books(stack)
    with ThreadPoolExecutor(_AT_ONCE) as clients:
        streams = list(clients.map(lambda number: _come_and_go(stack, number), range(_CLIENTS)))
    after = wait_until_nothing_is_live(stack, 2 * SLACK_S)
    states = [stack.generation(stream.generation) for stream in streams]
    assert {state["state"] for state in states} == {"cancelled"}
    assert after.used - before.used == sum(state["usage"]["total_tokens"] for state in states)
    deadline = time.monotonic() + SLACK_S
    while _left_in_dispatch(stack):
        assert time.monotonic() < deadline, stack.logs()
        time.sleep(0.1)
    stages = _cancelled_at(stack)
    assert {"decoding", "parked"} <= stages.keys(), json.dumps(stages)
    stream = chat_stream(stack, _SHORT, max_tokens=8).read_to_end()
    assert stream.usage is not None
    assert stream.usage["completion_tokens"] == 8, "and the next one is served as ever"
