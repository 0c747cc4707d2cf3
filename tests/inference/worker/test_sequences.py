"""Text, ends and counts of one sequence, and its restoration from a log cut anywhere."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.dispatch.claims import Claim
from inference.messages import (
    CancelReason,
    Delta,
    End,
    EndState,
    FinishReason,
    GenerationTask,
    LogEntry,
    Sampling,
)
from inference.tokenization import tokenizer
from inference.tokenization.tokenizer import Tokenizer
from inference.worker.sequences import ReplayMismatchError, RunningSequence, failed_end
from tests.inference.worker.conftest import end_of, text_of, tokens_of

TEXT = "Grüße 👩‍👩‍👧 信号箱: one token admits one train at a time. 👍🏽"


@pytest.fixture(scope="session")
def tokens(tiny_model_dir: Path) -> Tokenizer:
    return tokenizer.load(tiny_model_dir)


def claim(
    log: list[LogEntry] | None = None, *, stop: list[str] | None = None, max_tokens: int = 500, epoch: int = 1
) -> Claim:
    task = GenerationTask(
        generation="0" * 32,
        tenant="acme",
        model="tiny",
        lane="normal",
        lane_rank=1,
        weight=1,
        prompt=[5, 6, 7],
        max_tokens=max_tokens,
        sampling=Sampling(seed=1),
        stop=stop or [],
        accepted_at=0.0,
    )
    return Claim(
        task=task,
        epoch=epoch,
        log=log or [],
        log_lost=False,
        cancel=None,
        lapses=0,
        preemptions=0,
        suspicion=0,
    )


def run(sequence: RunningSequence, ids: list[int]) -> list[LogEntry]:
    """Commit token by token until the sequence ends, as ticks do."""
    log: list[LogEntry] = []
    for token in ids:
        log += sequence.commit((token,))
        if isinstance(log[-1], End):
            break
    return log


def test_streamed_text_is_the_decoding_of_all_its_tokens(tokens: Tokenizer) -> None:
    ids = tokens.encode(TEXT)
    log = run(RunningSequence(claim(max_tokens=len(ids)), 1, tokens), ids)
    assert text_of(log) == TEXT
    assert tokens_of(log) == ids
    assert [entry.seq for entry in log] == list(range(1, len(log) + 1))
    assert end_of(log).finish_reason is FinishReason.LENGTH
    assert end_of(log).usage.completion_tokens == len(ids)
    assert end_of(log).usage.prompt_tokens == 3


def run_in_rounds(sequence: RunningSequence, ids: list[int], cuts: set[int]) -> list[LogEntry]:
    """Commit what lies between ``cuts`` at once, as speculative rounds do that draft all but the last of it."""
    log: list[LogEntry] = []
    edges = sorted({0, len(ids), *(cut for cut in cuts if cut < len(ids))})
    for start, end in pairwise(edges):
        drafted = end - start - 1
        log += sequence.commit(ids[start:end], proposed=drafted, accepted=drafted)
        if isinstance(log[-1], End):
            break
    return log


def outcome(log: list[LogEntry]) -> tuple[str, list[int], FinishReason | None, int, int]:
    """All that a client can tell of a log whoever produced it, however many tokens came at once."""
    end = end_of(log)
    return (
        text_of(log),
        tokens_of(log),
        end.finish_reason,
        end.usage.prompt_tokens,
        end.usage.completion_tokens,
    )


def test_an_end_token_ends_the_text_and_is_counted(tokens: Tokenizer) -> None:
    ids = tokens.encode("one train")
    eos = min(tokens.eos_ids)
    log = run(RunningSequence(claim(), 1, tokens), [*ids, eos, *ids])
    assert text_of(log) == "one train"
    assert tokens_of(log) == [*ids, eos]
    assert end_of(log).finish_reason is FinishReason.STOP
    assert end_of(log).usage.completion_tokens == len(ids) + 1


def test_an_end_token_that_is_also_the_last_one_allowed_is_a_stop(tokens: Tokenizer) -> None:
    ids = tokens.encode("one")
    log = run(RunningSequence(claim(max_tokens=len(ids) + 1), 1, tokens), [*ids, min(tokens.eos_ids)])
    assert end_of(log).finish_reason is FinishReason.STOP


def test_a_stop_string_ends_the_text_before_it(tokens: Tokenizer) -> None:
    log = run(RunningSequence(claim(stop=["admits"]), 1, tokens), tokens.encode(TEXT))
    assert text_of(log) == TEXT[: TEXT.index("admits")]
    assert end_of(log).state is EndState.COMPLETED
    assert end_of(log).finish_reason is FinishReason.STOP


def test_text_held_back_for_a_stop_string_is_released_when_tokens_run_out(tokens: Tokenizer) -> None:
    ids = tokens.encode("one train")
    log = run(RunningSequence(claim(stop=["trains are late"], max_tokens=len(ids)), 1, tokens), ids)
    assert text_of(log) == "one train"
    assert end_of(log).finish_reason is FinishReason.LENGTH


def test_an_unfinished_character_shows_at_the_end_only(tokens: Tokenizer) -> None:
    ids = next(
        cut for length in range(1, 40) if "\ufffd" in tokens.decode(cut := tokens.encode(TEXT)[:length])
    )
    log = run(RunningSequence(claim(max_tokens=len(ids)), 1, tokens), ids)
    assert text_of(log) == tokens.decode(ids)
    assert "\ufffd" not in "".join(entry.text for entry in log[:-2] if isinstance(entry, Delta))


def test_tokens_behind_the_end_of_the_text_are_not_taken(tokens: Tokenizer) -> None:
    ids = tokens.encode("one train")
    [delta, end] = RunningSequence(claim(max_tokens=2), 1, tokens).commit(ids)
    assert isinstance(delta, Delta)
    assert delta.tokens == ids[:2]
    assert isinstance(end, End)
    assert end.usage.completion_tokens == 2


@given(st.data())
def test_tokens_committed_at_once_end_as_if_one_by_one(tokens: Tokenizer, data: st.DataObject) -> None:
    ids = tokens.encode(data.draw(st.text("ab é👩", max_size=30)) or "a")
    if data.draw(st.booleans()):
        ids.insert(data.draw(st.integers(0, len(ids))), min(tokens.eos_ids))
    terms = claim(
        stop=data.draw(st.lists(st.text("ab é👩", min_size=1, max_size=4), max_size=3)),
        max_tokens=data.draw(st.integers(1, len(ids))),
    )
    cuts = data.draw(st.sets(st.integers(1, len(ids))))
    whole = run(RunningSequence(terms, 1, tokens), ids)
    assert outcome(run_in_rounds(RunningSequence(terms, 1, tokens), ids, cuts)) == outcome(whole)


@given(st.data())
def test_no_stop_string_leaks_across_the_tokens_of_a_round(tokens: Tokenizer, data: st.DataObject) -> None:
    text = data.draw(st.text("ab ", min_size=20, max_size=60)).strip() or "ab"
    spans = data.draw(
        st.lists(st.tuples(st.integers(0, len(text) - 1), st.integers(1, 20)), min_size=1, max_size=4)
    )
    stops = [text[start : start + length] for start, length in spans]
    ids = tokens.encode(text)
    cuts = data.draw(st.sets(st.integers(1, len(ids))))
    log = run_in_rounds(RunningSequence(claim(stop=stops, max_tokens=len(ids)), 1, tokens), ids, cuts)
    first_complete = min(text.index(stop) + len(stop) for stop in stops)
    longest = max(len(stop) for stop in stops if text[:first_complete].endswith(stop))
    assert text_of(log) == text[: first_complete - longest]
    assert end_of(log).finish_reason is FinishReason.STOP


def test_a_stop_string_is_found_wherever_a_round_cuts_it(tokens: Tokenizer) -> None:
    ids = tokens.encode(TEXT)
    stops = ["one token admits one", "admits one", "token admits"]
    for start in range(len(ids)):
        for end in range(start + 1, len(ids)):
            sequence = RunningSequence(claim(stop=stops, max_tokens=len(ids)), 1, tokens)
            log = run_in_rounds(sequence, ids, {start, end} - {0})
            assert text_of(log) == TEXT[: TEXT.index("token admits")]


def test_drafted_tokens_count_as_accepted_only_where_they_are_in_the_answer(tokens: Tokenizer) -> None:
    ids = tokens.encode("one train at a time")
    sequence = RunningSequence(claim(max_tokens=5), 1, tokens)
    [first] = sequence.commit(ids[:1])
    [second] = sequence.commit(ids[1:3], proposed=4, accepted=1)
    [third, end] = sequence.commit([*ids[3:], *ids], proposed=8, accepted=7)
    assert [
        (delta.proposed, delta.accepted) for delta in (first, second, third) if isinstance(delta, Delta)
    ] == [
        (0, 0),
        (4, 1),
        (8, 2),
    ]
    assert isinstance(end, End)
    assert end.usage.completion_tokens == 5
    assert (end.usage.accepted_prediction_tokens, end.usage.rejected_prediction_tokens) == (3, 9)


def test_a_resumed_sequence_goes_on_counting_what_was_drafted_before(tokens: Tokenizer) -> None:
    ids = tokens.encode("one train at a time")
    log = RunningSequence(claim(), 1, tokens).commit(ids[:3], proposed=4, accepted=2)
    resumed = RunningSequence(claim(log, epoch=2), 1, tokens)
    resumed.commit(ids[3:5], proposed=2, accepted=1)
    usage = end_of(resumed.cancel(CancelReason.CLIENT_REQUESTED, 3)).usage
    assert (usage.accepted_prediction_tokens, usage.rejected_prediction_tokens) == (3, 3)
    lost = failed_end(claim(log, epoch=3)).usage
    assert (lost.accepted_prediction_tokens, lost.rejected_prediction_tokens) == (2, 2)


def test_a_cancelled_text_keeps_what_a_stop_string_held_back(tokens: Tokenizer) -> None:
    sequence = RunningSequence(claim(stop=["trains"]), 1, tokens)
    log = run(sequence, tokens.encode("one train"))
    log += sequence.cancel(CancelReason.CLIENT_REQUESTED, 3)
    assert text_of(log) == "one train"
    end = end_of(log)
    assert (end.state, end.cancel_reason) == (EndState.CANCELLED, CancelReason.CLIENT_REQUESTED)
    assert end.finish_reason is None


def test_running_out_of_time_ends_as_expired(tokens: Tokenizer) -> None:
    [end] = RunningSequence(claim(), 1, tokens).cancel(CancelReason.TIMED_OUT, 0)
    assert isinstance(end, End)
    assert end.state is EndState.EXPIRED


def test_a_failure_tells_nothing_of_our_insides(tokens: Tokenizer) -> None:
    for end in (*RunningSequence(claim(), 1, tokens).fail(0), failed_end(claim())):
        assert isinstance(end, End)
        assert (end.seq, end.state) == (1, EndState.FAILED)
        assert end.failure is not None
        assert end.failure.code == "internal_error"
        assert "Traceback" not in end.failure.message


@pytest.mark.parametrize("stop", [[], ["admits"], ["time. 👍"], ["zebra"]])
def test_a_sequence_goes_on_from_a_log_cut_anywhere(tokens: Tokenizer, stop: list[str]) -> None:
    ids = tokens.encode(TEXT)
    whole = run(RunningSequence(claim(stop=stop, max_tokens=len(ids)), 1, tokens), ids)
    for cut in range(len(whole) - 1):  # before the entry that brings the end along
        first = whole[:cut]
        resumed = RunningSequence(claim(first, stop=stop, max_tokens=len(ids), epoch=2), 1, tokens)
        assert resumed.replay() == []
        assert resumed.emitted == tokens_of(first)
        log = first + run(resumed, ids[len(resumed.emitted) :])
        assert text_of(log) == text_of(whole)
        assert tokens_of(log) == tokens_of(whole)
        assert [entry.seq for entry in log] == [entry.seq for entry in whole]
        assert end_of(log).usage == end_of(whole).usage
        assert {entry.epoch for entry in log[cut:]} == {2}
        told = [bool(entry.at) for entry in log if isinstance(entry, Delta)]
        assert told == [True, *[False] * (len(told) - 1)], "the first entry says when the answer began"


@given(
    st.lists(st.integers(3, 400), min_size=1, max_size=60), st.lists(st.text("abct ", min_size=1), max_size=2)
)
def test_any_tokens_resume_to_the_same_text(tokens: Tokenizer, ids: list[int], stop: list[str]) -> None:
    whole = run(RunningSequence(claim(stop=stop, max_tokens=len(ids)), 1, tokens), ids)
    first = whole[: len(whole) // 2]
    resumed = RunningSequence(claim(first, stop=stop, max_tokens=len(ids)), 1, tokens)
    log = first + resumed.replay()
    if log != whole:  # the half did not happen to lack the end only
        log += run(resumed, ids[len(resumed.emitted) :])
    assert log == whole


def test_a_text_that_was_complete_but_for_its_end_gets_the_end_only(tokens: Tokenizer) -> None:
    ids = tokens.encode("one train")
    whole = run(RunningSequence(claim(max_tokens=len(ids)), 1, tokens), ids)
    resumed = RunningSequence(claim(whole[:-1], max_tokens=len(ids), epoch=2), 1, tokens)
    [end] = resumed.replay()
    assert isinstance(end, End)
    assert (end.seq, end.finish_reason) == (len(whole), FinishReason.LENGTH)
    assert end.usage.completion_tokens == len(ids)


def test_a_log_that_its_tokens_do_not_give_is_never_continued(tokens: Tokenizer) -> None:
    log: list[LogEntry] = [Delta(seq=1, epoch=1, tokens=tokens.encode("one"), text="two")]
    with pytest.raises(ReplayMismatchError):
        RunningSequence(claim(log), 1, tokens).replay()
    assert failed_end(claim(log)).seq == 2
