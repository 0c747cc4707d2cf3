"""C8 and S6 with drafts: where a text ends does not depend on what was guessed of it, nor on where a round is cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any, cast

import mlx.core as mx
import msgspec
import pytest
import redis
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from inference.dispatch.queue import DispatchQueue
from inference.engine.engine import Engine
from inference.messages import Delta, End, EndState, FinishReason, LogEntry, Sampling, Usage
from inference.runs import EventKind
from inference.tokenization.tokenizer import Tokenizer
from inference.worker.sequences import RunningSequence
from signalbox import store
from tests.inference.dispatch.conftest import make_task
from tests.inference.engine.speculating import Script, ScriptedDrafter, knowing
from tests.inference.tokenization.test_stop_strings import expected, stops_and_text
from tests.inference.worker.conftest import (
    GREEDY,
    PROMPT,
    HandDrivenWorker,
    alone,
    end_of,
    text_of,
    tokens_of,
)
from tests.inference.worker.test_sequences import claim
from tests.inference.worker.test_slot import speculating

#: Ends fall among so many tokens, each of which some round may begin or end with.
TOKENS = 14
#: Those behind an end may be guessed too.
KNOWN = TOKENS + 10


@dataclass(frozen=True)
class Text:
    """A greedy text of the tiny model, and what ends it. ``said``: how it would go on without an end."""

    prompt: list[int]
    said: list[int]
    sampling: Sampling = GREEDY
    max_tokens: int = TOKENS
    stop: tuple[str, ...] = ()

    def task(self) -> Any:
        return msgspec.structs.replace(
            make_task(model="tiny"),
            lane="normal",
            prompt=self.prompt,
            sampling=self.sampling,
            max_tokens=self.max_tokens,
            stop=list(self.stop),
            speculation=True,
        )


@pytest.fixture(scope="module")
def said(engine: Engine) -> list[int]:
    """What the tiny model says to the prompt."""
    return alone(engine, PROMPT[:8], GREEDY, KNOWN)


@pytest.fixture(scope="module")
def ended(engine: Engine) -> dict[int, Text]:
    """Texts that the model ends itself, by the index of their end token.

    An end token is raised to just above the best logit of a position, where no position before it has a lower one.
    """
    end_token = max(engine.tokenizer.eos_ids)
    found: dict[int, Text] = {}
    for length in range(6, 16):
        prompt = PROMPT[:length]
        tokens = alone(engine, prompt, GREEDY, TOKENS)
        logits = cast("mx.array", engine.model(mx.array([[*prompt, *tokens[:-1]]])))
        lowest = float("inf")
        for at, best in enumerate(cast("list[float]", logits[0, length - 1 :].max(axis=-1).tolist())):
            if best < lowest and at not in found:
                bias = best + min(0.01, (lowest - best) / 2)
                sampling = msgspec.structs.replace(GREEDY, logit_bias={end_token: bias})
                found[at] = Text(prompt, alone(engine, prompt, sampling, KNOWN), sampling)
                assert found[at].said.index(end_token) == at
            lowest = min(lowest, best)
    return found


@pytest.fixture(scope="module")
def client(valkey_server: object) -> Iterator[redis.Redis]:
    client = store.sync_client()
    yield client
    client.close()


def plainly(engine: Engine, client: redis.Redis, text: Text) -> list[LogEntry]:
    return _run(HandDrivenWorker(engine, client, "tiny"), text)


def guessed(engine: Engine, client: redis.Redis, text: Text, script: Script, most: int) -> list[LogEntry]:
    """The log of a text whose tokens are guessed by ``script``, at most so many at a time."""
    drafter = ScriptedDrafter(script)
    engine.set_drafter(lambda: drafter)
    try:
        worker = HandDrivenWorker(engine, client, "tiny", settings=speculating(draft_tokens=most))
        log = _run(worker, text)
        assert engine.drafter.holder is None
    finally:
        engine.set_drafter(None)
    assert_told(worker, end_of(log).usage)
    return log


def _run(worker: HandDrivenWorker, text: Text) -> list[LogEntry]:
    worker.client.flushall()  # what ended before is never settled here: its lease would lapse
    task = text.task()
    assert DispatchQueue(worker.client).enqueue(task)
    worker.claim()
    worker.run_dry()
    assert worker.engine.keys == ()
    return worker.log(task.generation)


def seen(log: list[LogEntry]) -> tuple[object, ...]:
    """All that a client can tell one answer from another by, but for its speed."""
    end = end_of(log)
    counts = (end.usage.prompt_tokens, end.usage.completion_tokens, end.usage.cached_tokens)
    return tokens_of(log), text_of(log), end.state, end.finish_reason, end.failure, counts


def assert_told(worker: HandDrivenWorker, usage: Usage) -> None:
    """Metrics, the live page and the run's timeline say of drafted tokens what the answer's usage says."""
    accepted, rejected = usage.accepted_prediction_tokens, usage.rejected_prediction_tokens
    lane, snapshot = worker.metrics.slot("normal"), worker.loop.board.latest
    assert (lane.accepted.value, lane.rejected.value) == (accepted, rejected)
    assert lane.proposed.value == accepted + rejected
    assert snapshot is not None
    assert snapshot.slot is not None
    assert (snapshot.slot.accepted, snapshot.slot.proposed) == (accepted, accepted + rejected)
    [run] = [item.run for _, _, item in worker.settlements._waiting]
    assert run is not None
    grants = [details for _, kind, details in run.events if kind is EventKind.SLOT_GRANT]
    assert sum(grant["accepted"] for grant in grants) == accepted
    assert sum(grant["proposed"] for grant in grants) == accepted + rejected
    assert sum(grant["rounds"] for grant in grants) == lane.rounds.value


def assert_counted(log: list[LogEntry]) -> None:
    """Every drafted token is counted once, and none as accepted that is not in the answer."""
    deltas = [entry for entry in log if isinstance(entry, Delta)]
    usage = end_of(log).usage
    assert all(delta.accepted <= min(delta.proposed, len(delta.tokens)) for delta in deltas)
    assert sum(delta.accepted for delta in deltas) == usage.accepted_prediction_tokens
    assert sum(delta.proposed - delta.accepted for delta in deltas) == usage.rejected_prediction_tokens


examples = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
#: Which guesses are right, by position; repeated.
rights = st.lists(st.booleans(), min_size=1, max_size=7)


def guessing(text: Text, rights: list[bool]) -> Script:
    return knowing([*text.prompt, *text.said], lambda at: not rights[at % len(rights)])


@settings(examples, max_examples=25)
@given(
    at=st.integers(0, TOKENS - 1),
    lengths=st.tuples(*[st.integers(1, 20)] * 2),
    rights=rights,
    most=st.integers(1, 8),
)
def test_c8_a_text_ends_at_a_stop_string_as_it_does_without_a_drafter(
    engine: Engine,
    client: redis.Redis,
    said: list[int],
    at: int,
    lengths: tuple[int, int],
    rights: list[bool],
    most: int,
) -> None:
    """The second stop string may overlap the first, and be the one that is complete first."""
    until = engine.tokenizer.decode(said[: at + 1])
    beyond = engine.tokenizer.decode(said[: at + 2])
    text = Text(PROMPT[:8], said, stop=(until[-lengths[0] :], beyond[-lengths[1] :]))
    plain = plainly(engine, client, text)
    log = guessed(engine, client, text, guessing(text, rights), most)
    assert seen(log) == seen(plain)
    assert_counted(log)
    assert not any(stop in text_of(log) for stop in text.stop)


@settings(examples, max_examples=15)
@given(max_tokens=st.integers(1, TOKENS), rights=rights, most=st.integers(1, 8))
def test_c8_a_text_ends_at_max_tokens_as_it_does_without_a_drafter(
    engine: Engine, client: redis.Redis, said: list[int], max_tokens: int, rights: list[bool], most: int
) -> None:
    text = Text(PROMPT[:8], said, max_tokens=max_tokens)
    log = guessed(engine, client, text, guessing(text, rights), most)
    assert seen(log) == seen(plainly(engine, client, text))
    assert (tokens_of(log), end_of(log).finish_reason) == (said[:max_tokens], FinishReason.LENGTH)
    assert_counted(log)


@settings(examples, max_examples=15)
@given(which=st.integers(0, 1000), rights=rights, most=st.integers(1, 8))
def test_c8_a_text_that_the_model_ends_ends_as_it_does_without_a_drafter(
    engine: Engine, client: redis.Redis, ended: dict[int, Text], which: int, rights: list[bool], most: int
) -> None:
    at = sorted(ended)[which % len(ended)]
    text = ended[at]
    log = guessed(engine, client, text, guessing(text, rights), most)
    assert seen(log) == seen(plainly(engine, client, text))
    assert (tokens_of(log), end_of(log).finish_reason) == (text.said[: at + 1], FinishReason.STOP)
    assert_counted(log)


def test_c8_what_was_guessed_behind_an_end_inside_a_round_is_in_no_answer_and_counts_as_rejected(
    engine: Engine, client: redis.Redis, ended: dict[int, Text]
) -> None:
    at = max(ended)
    text = replace(ended[at], max_tokens=KNOWN)
    knows, begin = guessing(text, [True]), len(text.prompt) + at
    log = guessed(
        engine,
        client,
        text,
        lambda context, k: knows(context, k) if len(context.tokens) == begin else [],
        4,
    )
    *_, last = [entry for entry in log if isinstance(entry, Delta)]
    assert last.tokens == text.said[at : at + 1]
    assert last.proposed > last.accepted == 1
    assert end_of(log).usage.completion_tokens == at + 1
    assert_counted(log)


# S6


def in_rounds(
    tokenizer: Tokenizer, ids: Sequence[int], stops: Sequence[str], sizes: Sequence[int]
) -> list[LogEntry]:
    """The log of a text whose rounds commit so many tokens each, all but the last of each drafted."""
    sequence = RunningSequence(claim(stop=list(stops), max_tokens=len(ids)), 1, tokenizer)
    log: list[LogEntry] = []
    begin = 0
    for size in cycle(sizes):
        tokens = ids[begin : begin + size]
        log += sequence.commit(tokens, proposed=size, accepted=len(tokens) - 1)
        begin += size
        if isinstance(log[-1], End):
            return log
    raise AssertionError("sizes are empty")


def assert_stopped(
    tokenizer: Tokenizer, text: str, ids: Sequence[int], stops: Sequence[str], sizes: Sequence[int]
) -> None:
    """Nothing of a stop string or behind it is ever shown, and the text is the one of single tokens."""
    log = in_rounds(tokenizer, ids, stops, sizes)
    shown, hit = expected(text, list(stops))
    assert text_of(log) == shown
    assert end_of(log).state is EndState.COMPLETED
    assert (end_of(log).finish_reason is FinishReason.STOP) == hit
    assert seen(log) == seen(in_rounds(tokenizer, ids, stops, [1]))
    assert_counted(log)


@given(case=stops_and_text(), sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_s6_rounds_end_before_the_first_complete_stop_string_wherever_they_are_cut(
    engine: Engine, case: tuple[list[str], str], sizes: list[int]
) -> None:
    stops, text = case
    ids = engine.tokenizer.encode(text)
    assume(ids)
    assert_stopped(engine.tokenizer, text, ids, stops, sizes)


@pytest.mark.parametrize("length", [1, 2, 3, 7, 20])
def test_s6_a_stop_string_that_ends_at_any_character_of_a_round_ends_it_there(
    engine: Engine, length: int
) -> None:
    text = "Grüße: 信号箱 admits one train at a time. 👍🏽 One, one, one."
    ids = engine.tokenizer.encode(text)
    for end in range(1, len(text) + 1):
        stop = text[max(0, end - length) : end]
        longer = text[max(0, end - length - 2) : end + 1]
        assert_stopped(engine.tokenizer, text, ids, [longer, stop], [len(ids)])
        assert_stopped(engine.tokenizer, text, ids, [longer, stop], [4])
