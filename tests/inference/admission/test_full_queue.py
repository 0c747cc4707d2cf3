"""F13: a queue of four, a busy worker, and ten requests at the same instant: exactly the excess is refused, at once.

The whole product runs, in processes of its own, with the limit that its operator set.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
import redis

from inference.dispatch import keys as dispatch_keys
from inference.dispatch.queue import DispatchQueue
from tests.fixtures.event_stream import EventStream, chat_stream
from tests.fixtures.live_stack import LONG_CONTEXT, Installation, LiveStack, running_stack
from tests.inference.admission.stack_books import SLACK_S, books, wait_until_nothing_is_live
from tests.inference.admission.stampede import Ask, stampede

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

QUEUE_LIMIT, AT_ONCE = 4, 10
#: What the worker runs at once, as an operator finds it set.
SLOTS = 8
#: So many that no stream ends before the test does.
LONG_ANSWER = LONG_CONTEXT - 200
PROMPT, ANSWER = 7, 33


@pytest.fixture(scope="module")
def stack(long_installation: Installation) -> Iterator[LiveStack]:
    settings = {"SIGNALBOX_QUEUE_LIMIT": str(QUEUE_LIMIT), "SIGNALBOX_DRAIN_SECONDS": "0"}
    with running_stack(long_installation, settings) as stack:
        yield stack


@pytest.fixture
def busy(stack: LiveStack) -> Iterator[list[EventStream]]:
    """Streams that take every slot of the worker."""
    streams = [
        chat_stream(stack, "Who was given priority?", max_tokens=LONG_ANSWER).read(1) for _ in range(SLOTS)
    ]
    yield streams
    for stream in streams:
        stream.close()


def _waiting(stack: LiveStack) -> tuple[int, int]:
    """Generations in the queue, and places that are held for some that are being accepted."""
    with redis.Redis(unix_socket_path=str(stack.configuration.valkey_socket)) as client:
        queued = sum(DispatchQueue(client).depths(stack.model).values())
        return queued, client.zcard(dispatch_keys.places(stack.model))


def test_f13_of_ten_at_once_a_full_queue_refuses_exactly_the_excess_at_once_and_reserves_nothing_for_it(
    stack: LiveStack, busy: list[EventStream]
) -> None:
    before = books(stack)
    assert before.live == SLOTS
    ask = Ask(stack.api_key, stack.model, PROMPT, ANSWER)
    answers = stampede([stack.port], [ask] * AT_ONCE)
    after = books(stack)
    assert Counter(answer.status for answer in answers) == {200: QUEUE_LIMIT, 429: AT_ONCE - QUEUE_LIMIT}
    for answer in answers:
        if answer.error is not None:
            assert (answer.code, answer.error["type"]) == ("queue_full", "rate_limit_error")
            assert f"{QUEUE_LIMIT} generations already wait" in answer.error["message"]
            assert int(answer.headers["retry-after"]) >= 1
            assert int(answer.headers["retry-after-ms"]) >= 1
    # At once: nothing has ended since, so that nobody was refused, or let in, only after a wait for room.
    assert after.live == before.live + QUEUE_LIMIT
    assert after.reserved == before.reserved + QUEUE_LIMIT * ask.tokens
    assert after.used == before.used
    assert _waiting(stack) == (QUEUE_LIMIT, 0)

    for stream in busy:
        stream.close()
    ended = wait_until_nothing_is_live(stack, SLACK_S)
    assert ended.reserved == 0
    assert [answer.code for answer in stampede([stack.port], [ask])] == ["accepted"], "and now there is room"
    wait_until_nothing_is_live(stack, SLACK_S)
