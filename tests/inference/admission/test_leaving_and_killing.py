"""Whoever dies or leaves in the middle of a generation, what it held back is settled or let go, and nothing else is.

The whole product runs, in processes of its own. What its books say is read from its database, in one statement, so that
it is one moment's: at every such moment what is reserved is what the live generations may use.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from inference.dispatch import token_log
from inference.messages import Delta
from tests.fixtures.event_stream import EventStream, chat_stream
from tests.fixtures.live_stack import LEASE_S, LONG_CONTEXT, Installation, LiveStack, running_stack
from tests.inference.admission.stack_books import SLACK_S, books, wait, wait_until_nothing_is_live

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

#: Long enough that no generation ends while a test gets its hands on a process.
MAX_TOKENS = LONG_CONTEXT - 200
#: Of an answer that is read to its end.
READ_WHOLE = 1500
PROMPT = "Who was given priority, when, and why?"
#: How long a generation runs on without a reader: long enough for a web process that has to wait for a processor.
DETACH_GRACE_S = 4.0


@pytest.fixture(scope="module")
def stack(long_installation: Installation) -> Iterator[LiveStack]:
    """One stack for the module: every test leaves it with its three processes running."""
    settings = {"SIGNALBOX_DRAIN_SECONDS": "0", "SIGNALBOX_DETACH_GRACE_SECONDS": str(DETACH_GRACE_S)}
    with running_stack(long_installation, settings) as stack:
        yield stack


def _streams(stack: LiveStack, *lengths: int) -> list[EventStream]:
    """Streams under way, of so many tokens each."""
    streams = [chat_stream(stack, PROMPT, max_tokens=length) for length in lengths]
    return [stream.read(5) for stream in streams]


def test_q5_of_a_killed_client_nothing_stays_reserved(stack: LiveStack) -> None:
    streams = _streams(stack, *[MAX_TOKENS] * 3)
    before = books(stack)
    assert before.live == 3
    assert before.reserved > 3 * MAX_TOKENS
    for stream in streams:
        stream.close()
    after = wait_until_nothing_is_live(stack, SLACK_S)
    states = [stack.generation(stream.generation) for stream in streams]
    assert {state["state"] for state in states} == {"cancelled"}
    assert after.used - before.used == sum(state["usage"]["total_tokens"] for state in states)


def test_q5_of_a_killed_web_process_nothing_stays_reserved(stack: LiveStack) -> None:
    streams = _streams(stack, *[MAX_TOKENS] * 3)
    before = books(stack)
    stack.web.kill()
    for stream in streams:
        with pytest.raises(ConnectionError):
            stream.read_to_end()
    # Nobody comes back to read, and no web process is needed for what follows.
    after = wait_until_nothing_is_live(stack, DETACH_GRACE_S + SLACK_S)
    stack.web.start()
    states = [stack.generation(stream.generation) for stream in streams]
    assert after.used - before.used == sum(state["usage"]["total_tokens"] for state in states)


def test_q5_of_a_killed_worker_every_reservation_is_settled_or_let_go(stack: LiveStack) -> None:
    leaves, goes_on = _streams(stack, MAX_TOKENS, READ_WHOLE)
    before = books(stack)
    other = stack.add_worker("other")
    stack.worker.kill()
    leaves.close()
    # The other worker has both as soon as the lease has lapsed. Which of them ends first is a matter of its speed.
    wait(
        stack,
        lambda _: stack.generation(leaves.generation)["state"] not in ("queued", "running"),
        LEASE_S + SLACK_S,
    )
    assert stack.generation(leaves.generation)["state"] == "cancelled"
    goes_on.read_to_end()
    after = wait_until_nothing_is_live(stack, SLACK_S)
    assert goes_on.usage is not None
    assert goes_on.usage["completion_tokens"] == READ_WHOLE
    states = [stack.generation(stream.generation) for stream in (goes_on, leaves)]
    assert after.used - before.used == sum(state["usage"]["total_tokens"] for state in states)
    stack.worker.start()
    other.terminate()


def test_q5_of_all_killed_at_once_nothing_stays_reserved(stack: LiveStack) -> None:
    streams = _streams(stack, *[MAX_TOKENS] * 2)
    stack.stop_worker()  # nothing ends while the others come
    # More than the worker runs at once: some wait. Their answers begin with the place in the queue.
    told = {"include_progress": True}
    streams += [chat_stream(stack, PROMPT, max_tokens=MAX_TOKENS, stream_options=told) for _ in range(8)]
    assert books(stack).live == 10
    for process in (stack.web, stack.worker, stack.valkey):
        process.kill()
    assert books(stack).live == 10, "what was accepted is kept"
    for stream in streams:
        with pytest.raises(ConnectionError):
            stream.read_to_end()
    stack.valkey.start()
    stack.worker.start(wait=False)
    stack.web.start()
    wait_until_nothing_is_live(stack, LEASE_S + DETACH_GRACE_S + 3 * SLACK_S)


@pytest.mark.parametrize("tokens", [1, 7, 25])
def test_q14_who_leaves_after_k_tokens_pays_for_the_prompt_and_exactly_what_was_produced(
    stack: LiveStack, tokens: int
) -> None:
    before = wait_until_nothing_is_live(stack, SLACK_S)
    stream = chat_stream(stack, PROMPT, max_tokens=MAX_TOKENS)
    stream.read(tokens).close()
    after = wait_until_nothing_is_live(stack, SLACK_S)
    ended = stack.generation(stream.generation)
    with redis.Redis(unix_socket_path=str(stack.configuration.valkey_socket)) as client:
        log = token_log.read(client, stream.generation.removeprefix("gen_"))
    produced = sum(len(entry.tokens) for entry in log if isinstance(entry, Delta))
    assert ended["state"] == "cancelled"
    assert tokens <= produced < MAX_TOKENS
    assert ended["usage"]["completion_tokens"] == produced
    assert after.used - before.used == ended["usage"]["prompt_tokens"] + produced
    assert ended["usage"]["prompt_tokens"] > 0
