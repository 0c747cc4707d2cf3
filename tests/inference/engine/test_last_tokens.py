"""A decode step after which nobody asks for more computes nothing ahead, and costs nobody a token who does ask."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.messages import Sampling
from tests.inference.engine.driving import GREEDY, Drive, alone, each_alone, prompts_of
from tests.inference.engine.test_faults import FailAt, ProcessorFaultError
from tests.inference.engine.test_halves import passes_of

SAMPLED = Sampling(seed=9, temperature=0.9, presence_penalty=0.5)


def test_an_answer_takes_a_pass_for_each_of_its_tokens_and_none_for_what_would_follow(
    tiny_model: Path,
) -> None:
    drive = Drive(tiny_model)
    drive.admit("g", [10, 11, 12])
    passes = passes_of(drive)
    drive.prefill("g")
    drive.decode()  # fills the pipeline: the first token is out already
    drive.decode()
    assert len(drive.decode(more=False).tokens) == 1
    assert len(drive.tokens["g"]) == 3
    assert passes == [(1, 3), (1, 1), (1, 1)]


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
@pytest.mark.parametrize("mistaken_every", [1, 2, 3])
def test_who_is_asked_for_more_all_the_same_gets_what_it_gets_alone(
    any_tiny_model: Path, sampling: Sampling, mistaken_every: int
) -> None:
    drive = Drive(any_tiny_model)
    prompts = prompts_of(drive)
    for key, prompt in prompts.items():
        drive.admit(key, prompt, sampling)
    drive.prefill(*prompts)
    number = 0
    while any(len(tokens) < 24 for tokens in drive.tokens.values()):
        drive.decode(more=number % mistaken_every != 0)
        number += 1
    got = {key: tokens[:24] for key, tokens in drive.tokens.items()}
    assert got == each_alone(any_tiny_model, prompts, dict.fromkeys(prompts, sampling))


def test_rows_that_join_and_leave_in_between_change_nothing(any_tiny_model: Path) -> None:
    drive = Drive(any_tiny_model)
    prompts = prompts_of(drive)
    (first, second, third, *_) = prompts
    for key in (first, second):
        drive.admit(key, prompts[key])
    drive.prefill(first, second)
    drive.decode(3)
    drive.decode(more=False)
    drive.admit(third, prompts[third])
    drive.prefill(third)
    drive.engine.drop(second)
    stopped = drive.tokens.pop(second)
    assert stopped == alone(any_tiny_model, prompts[second], count=len(stopped))
    assert drive.decode_until(24) == each_alone(any_tiny_model, {key: prompts[key] for key in (first, third)})


def test_a_fault_in_a_token_that_nobody_asks_for_does_not_happen(tiny_model: Path) -> None:
    prompt = [10, 11, 12]
    for more, faults in ((False, set()), (True, {"g"})):
        drive = Drive(tiny_model)
        drive.admit("g", prompt, processors=[FailAt(len(prompt) + 3)])
        drive.prefill("g")
        drive.decode(2)
        assert len(drive.decode(more=more).tokens) == 1
        if more:
            drive.decode()
        assert drive.faults.keys() == faults
        assert all(isinstance(fault, ProcessorFaultError) for fault in drive.faults.values())


def test_what_was_handed_out_and_not_run_is_not_kept_as_a_prefix(any_tiny_model: Path) -> None:
    drive = Drive(any_tiny_model, prefix_cache_bytes=1 << 24)
    prompt = prompts_of(drive)["g0"]
    drive.admit("first", prompt, namespace="a")
    drive.prefill("first")
    drive.decode(3)
    drive.decode(more=False)
    drive.engine.drop("first")
    said = drive.tokens.pop("first")
    again = [*prompt, *said, 9, 8, 7]
    drive.admit("again", again, namespace="a")
    assert drive.engine.cached_tokens("again") in (0, len(prompt) + len(said) - 1), (
        "0: a window's cannot be cut"
    )
    drive.prefill("again")
    assert drive.decode_until(24)["again"] == alone(any_tiny_model, again)
