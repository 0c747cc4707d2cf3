"""Accepted work is not lost, and no client sees a character twice or misses one, whatever is killed.

Each test compares with an undisturbed run of the same request: greedy, on MLX's stock BLAS, where the bits do not
depend on the batch, so that any difference is a bug.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator

import pytest
import redis

from inference.dispatch import keys
from inference.worker import arrivals
from tests.fixtures.event_stream import EventStream, chat_stream
from tests.fixtures.live_stack import LONG_CONTEXT, Installation, LiveStack, running_stack

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

#: Long enough that no generation ends while a test gets its hands on a process.
MAX_TOKENS = 1500
PROMPT = "Who was given priority, when, and why?"
#: What the worker runs at once, as an operator finds it set.
SLOTS = 8
#: More than any test waits for.
ENDLESS = LONG_CONTEXT - 200
#: So many events that the web process cannot hand all of them to a client that does not read.
UNREAD = 1200


@pytest.fixture(scope="module")
def stack(long_installation: Installation) -> Iterator[LiveStack]:
    """One stack for the module: every test leaves it with its three processes running."""
    settings = {"SIGNALBOX_BLAS": "stock", "SIGNALBOX_DRAIN_SECONDS": "0"}
    with running_stack(long_installation, settings) as stack:
        yield stack


@pytest.fixture(scope="module")
def undisturbed(stack: LiveStack) -> EventStream:
    """What the request's stream is when nothing happens to it."""
    return chat_stream(stack, PROMPT, max_tokens=MAX_TOKENS).read_to_end()


def epoch(stack: LiveStack, stream: EventStream) -> int:
    """How often the stream's generation was claimed."""
    code = (
        "from accounts.tenancy import every_tenant\n"
        "from inference.models import Generation\n"
        "with every_tenant('a test looks'):\n"
        f"    print(Generation.objects.get(pk='{stream.generation.removeprefix('gen_')}').epoch)"
    )
    return int(stack.python(code))


def counted(stream: EventStream) -> tuple[int, int]:
    """Prompt and completion tokens. What was found in the prefix cache depends on what ran before."""
    assert stream.usage is not None
    return stream.usage["prompt_tokens"], stream.usage["completion_tokens"]


def assert_whole(stream: EventStream, undisturbed: EventStream) -> None:
    """The stream ended as if nothing had happened: same text, every event once and in order, exact usage."""
    assert stream.error is None
    assert stream.text == undisturbed.text
    assert counted(stream) == counted(undisturbed)
    assert stream.seqs == sorted(set(stream.seqs))


def have_cost_workers(stack: LiveStack, streams: list[EventStream]) -> None:
    """Of each of these generations so many workers have died that it is given up with the next one."""
    with redis.Redis(unix_socket_path=str(stack.configuration.valkey_socket)) as client:
        for stream in streams:
            key = keys.generation(stream.generation.removeprefix("gen_"))
            client.hset(key, "lapses", arrivals._MOST_LAPSES - 1)


def test_a_killed_workers_stream_goes_on_unharmed_and_s9_one_that_cannot_be_resumed_ends_in_an_error(
    stack: LiveStack, undisturbed: EventStream
) -> None:
    text = {"model": stack.model, "prompt": PROMPT, "max_tokens": ENDLESS, "temperature": 0, "stream": True}
    lost = [
        chat_stream(stack, PROMPT, max_tokens=ENDLESS).read(1),
        EventStream(stack, "POST", "/v1/completions", text).open().read(1),
    ]
    have_cost_workers(stack, lost)
    stream = chat_stream(stack, PROMPT, max_tokens=MAX_TOKENS).read(20)
    stack.worker.kill()
    stack.worker.start()
    stream.read_to_end()
    assert_whole(stream, undisturbed)
    assert epoch(stack, stream) == 2
    for one in lost:
        one.read(ENDLESS)
        assert one.error is not None
        assert (one.error["code"], one.error["type"]) == ("internal_error", "server_error")
        assert one.rest() == b"", "nothing comes behind the error, and no [DONE]"
        assert not one.done
        while stack.generation(one.generation)["state"] == "running":
            time.sleep(0.1)
        record = stack.generation(one.generation)
        assert record["state"] == "failed"
        assert 0 < record["usage"]["completion_tokens"] < ENDLESS


def test_a_worker_stopped_past_its_lease_and_continued_does_no_harm(
    stack: LiveStack, undisturbed: EventStream
) -> None:
    stream = chat_stream(stack, PROMPT, max_tokens=MAX_TOKENS).read(20)
    stack.stop_worker()
    other = stack.add_worker("other")
    # Events that were sent before the stop may still be unread: reading some shows nothing.
    while epoch(stack, stream) < 2:
        time.sleep(0.1)
    stack.worker.resume()
    stream.read_to_end()
    assert_whole(stream, undisturbed)
    assert epoch(stack, stream) == 2
    other.terminate()
    after = chat_stream(stack, PROMPT, max_tokens=MAX_TOKENS).read_to_end()
    assert_whole(after, undisturbed)


def test_running_and_queued_work_survives_a_kill_of_valkey(
    stack: LiveStack, undisturbed: EventStream
) -> None:
    # More than the worker runs at once: the last ones wait. Who may resume is answered at once, and not only when its
    # first text is there: by then nobody would wait any more.
    options = {"include_usage": True, "resumable": True}
    streams = [
        chat_stream(stack, PROMPT, max_tokens=MAX_TOKENS, stream_options=options) for _ in range(SLOTS + 2)
    ]
    streams[0].read(10)
    stack.valkey.kill()
    stack.valkey.start()
    for stream in streams:
        stream.read_to_end()
        assert_whole(stream, undisturbed)


def test_a_client_resumes_behind_its_last_event_when_the_web_process_was_killed(
    stack: LiveStack, undisturbed: EventStream
) -> None:
    stream = chat_stream(stack, PROMPT, max_tokens=MAX_TOKENS).read(20)
    stack.web.kill()
    with pytest.raises(ConnectionError):
        stream.read_to_end()
    stack.web.start()
    rest = stream.resumed().read_to_end()
    assert stream.text + rest.text == undisturbed.text
    assert counted(rest) == counted(undisturbed)
    assert rest.seqs[0] > stream.seqs[-1]
    assert epoch(stack, stream) == 1


def test_a_client_that_does_not_read_is_cut_off_and_resumes_without_a_lost_or_repeated_character(
    stack: LiveStack,
) -> None:
    impatient = stack.add_web("web-2", [sys.executable, "-m", "tests.signalbox.impatient_web"])
    stream = chat_stream(impatient, PROMPT, max_tokens=UNREAD, receive_buffer=4096).read(20)
    impatient.web.wait_for(" slow_reader ", timeout_s=120)
    with pytest.raises(ConnectionError):
        stream.read_to_end()
    rest = stream.resumed().read_to_end()
    path = f"/v1/generations/{stream.generation}/events?include_usage=true"
    whole = EventStream(stack, "GET", path).open().read_to_end()
    assert stream.text + rest.text == whole.text
    assert stream.seqs + rest.seqs == whole.seqs
    assert counted(rest) == counted(whole)
    assert counted(whole)[1] == UNREAD, "its generation went on to its end"
    assert rest.error is None
    assert len(stream.seqs) < len(rest.seqs)
    assert epoch(stack, stream) == 1
    impatient.web.kill()


def test_a_draining_web_process_cuts_long_streams_and_ends_no_generation(
    stack: LiveStack, undisturbed: EventStream
) -> None:
    stream = chat_stream(stack, PROMPT, max_tokens=MAX_TOKENS).read(5)
    stack.stop_worker()  # nothing ends while the web process waits for answers under way
    try:
        assert stack.web.terminate() == 0
    finally:
        stack.worker.resume()
    with pytest.raises(ConnectionError):
        stream.read_to_end()
    stack.web.start()
    rest = stream.resumed().read_to_end()
    assert stream.text + rest.text == undisturbed.text


def test_a_draining_worker_gives_its_generations_back_and_loses_nothing(
    stack: LiveStack, undisturbed: EventStream
) -> None:
    stream = chat_stream(stack, PROMPT, max_tokens=MAX_TOKENS).read(20)
    assert stack.worker.terminate() == 0
    stack.worker.start(wait=False)
    stream.read_to_end()
    assert_whole(stream, undisturbed)
    assert epoch(stack, stream) == 2


def test_everything_killed_at_once_still_finishes_what_was_accepted(
    stack: LiveStack, undisturbed: EventStream
) -> None:
    stream = chat_stream(stack, PROMPT, max_tokens=MAX_TOKENS).read(20)
    for process in (stack.web, stack.worker, stack.valkey):
        process.send_signal(signal.SIGKILL)
        process.kill()
    stack.valkey.start()
    stack.worker.start(wait=False)
    stack.web.start()
    with pytest.raises(ConnectionError):
        stream.read_to_end()
    rest = stream.resumed().read_to_end()
    assert stream.text + rest.text == undisturbed.text
    assert counted(rest) == counted(undisturbed)


def test_accepted_work_is_put_back_in_the_queue_when_the_stores_data_is_lost(
    stack: LiveStack, undisturbed: EventStream
) -> None:
    stack.worker.kill()
    stream = chat_stream(stack, PROMPT, max_tokens=MAX_TOKENS, stream_options={"resumable": True})
    stack.valkey.kill()
    for file in stack.configuration.valkey_dir.rglob("*.aof"):
        file.unlink()
    for file in stack.configuration.valkey_dir.rglob("*.manifest"):
        file.unlink()
    stack.valkey.start()
    stack.worker.start(wait=False)
    stream.read_to_end()
    while stack.generation(stream.generation)["state"] in ("queued", "running"):
        time.sleep(0.1)
    events = EventStream(
        stack, "GET", f"/v1/generations/{stream.generation}/events?include_usage=true"
    ).open()
    assert_whole(events.read_to_end(), undisturbed)
