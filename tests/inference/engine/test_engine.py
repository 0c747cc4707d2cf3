from __future__ import annotations

import threading
from pathlib import Path

import mlx.core as mx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mlx_lm.generate import generate_step
from mlx_lm.utils import load_model

from inference.engine.engine import Engine
from inference.messages import Sampling
from tests.inference.engine.driving import GREEDY, TEXTS, Drive, alone, each_alone, prompts_of
from tests.inference.engine.tiny_model import CONTEXT_LENGTH


def test_a_sequence_gets_the_tokens_that_mlx_lm_gives_it(any_tiny_model: Path) -> None:
    model, _ = load_model(any_tiny_model)
    for prompt in prompts_of(Drive(any_tiny_model)).values():
        expected = [int(token) for token, _ in generate_step(mx.array(prompt), model, max_tokens=24)]
        assert alone(any_tiny_model, prompt) == expected


def test_a_ragged_batch_gives_each_sequence_what_it_gets_alone(any_tiny_model: Path) -> None:
    drive = Drive(any_tiny_model)
    prompts = prompts_of(drive)
    for key, prompt in prompts.items():
        drive.admit(key, prompt)
    drive.prefill(*prompts)
    assert drive.decode_until(24) == each_alone(any_tiny_model, prompts)


@pytest.mark.parametrize("chunk", [1, 2, 5, 16, 64])
def test_a_prompt_in_chunks_gives_what_it_gives_in_one_piece(any_tiny_model: Path, chunk: int) -> None:
    drive = Drive(any_tiny_model)
    prompts = prompts_of(drive)
    for key, prompt in prompts.items():
        drive.admit(key, prompt)
        drive.finish_prefill(key, chunk=chunk)
        drive.decode()
    assert drive.decode_until(24) == each_alone(any_tiny_model, prompts)


def test_several_parked_prompts_take_turns(any_tiny_model: Path) -> None:
    drive = Drive(any_tiny_model)
    prompts = prompts_of(drive)
    for key, prompt in prompts.items():
        drive.admit(key, prompt)
    while parked := [key for key in prompts if drive.engine.remaining(key)]:
        drive.prefill(*parked, chunk=6)
    assert drive.decode_until(24) == each_alone(any_tiny_model, prompts)


#: A worker's life: sequences come, are prefilled in pieces or together, decode, and leave, in any order.
actions = st.lists(
    st.one_of(
        st.tuples(st.just("admit"), st.integers(0, len(TEXTS) - 1)),
        st.tuples(st.just("prefill"), st.integers(1, 24)),
        st.tuples(st.just("prefill together"), st.integers(1, 24)),
        st.tuples(st.just("decode"), st.integers(1, 3)),
        st.tuples(st.just("decode the last"), st.just(1)),
        st.tuples(st.just("drop"), st.integers(0, 3)),
    ),
    min_size=6,
    max_size=30,
)


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(actions=actions)
def test_whatever_else_happens_a_sequence_gets_what_it_gets_alone(
    any_tiny_model: Path, reference: dict[int, list[int]], actions: list[tuple[str, int]]
) -> None:
    drive = Drive(any_tiny_model)
    texts: dict[str, int] = {}
    for number, (action, argument) in enumerate(actions):
        parked = [key for key in drive.engine.keys if drive.engine.remaining(key)]
        if action == "admit":
            key = f"{number}"
            texts[key] = argument
            drive.admit(key, drive.engine.tokenizer.encode(TEXTS[argument]))
        elif action == "prefill" and parked:
            drive.prefill(parked[argument % len(parked)], chunk=argument)
        elif action == "prefill together" and parked:
            drive.prefill(*parked, chunk=argument)
        elif action == "decode":
            drive.decode(argument)
        elif action == "decode the last":
            drive.decode(more=False)
        elif action == "drop" and drive.engine.keys:
            drive.engine.drop(drive.engine.keys[argument % len(drive.engine.keys)])
    for key, tokens in drive.tokens.items():
        assert tokens == reference[texts[key]][: len(tokens)]
    assert not drive.faults


@pytest.fixture(scope="module")
def reference(any_tiny_model: Path) -> dict[int, list[int]]:
    prompts = prompts_of(Drive(any_tiny_model))
    return dict(enumerate(each_alone(any_tiny_model, prompts, count=100).values()))


def test_the_last_chunk_emits_the_first_token(tiny_model: Path) -> None:
    drive = Drive(tiny_model)
    drive.admit("g", range(10, 20))
    assert drive.engine.remaining("g") == 10
    assert drive.prefill("g", chunk=4).tokens == []
    assert drive.engine.remaining("g") == 6
    assert drive.prefill("g", chunk=4).tokens == []
    assert drive.engine.decoding == 0
    assert len(drive.prefill("g", chunk=4).tokens) == 1
    assert drive.engine.remaining("g") == 0
    assert drive.engine.decoding == 1


def test_a_decode_step_gives_every_row_one_token(tiny_model: Path) -> None:
    drive = Drive(tiny_model)
    for key in ("a", "b"):
        drive.admit(key, [10, 11])
        drive.finish_prefill(key)
    drive.decode()  # fills the pipeline: both have their first token already
    for _ in range(5):
        assert [key for key, _ in drive.decode().tokens] == ["a", "b"]


def test_a_resumed_sequence_goes_on_as_if_undisturbed(any_tiny_model: Path) -> None:
    prompt = prompts_of(Drive(any_tiny_model))["g0"]
    sampled = Sampling(seed=9, temperature=0.9, top_p=0.9, presence_penalty=0.5, repetition_penalty=1.1)
    for sampling in (GREEDY, sampled):
        undisturbed = alone(any_tiny_model, prompt, sampling)
        for cut in (1, 2, 11):
            resumed = alone(any_tiny_model, prompt, sampling, 24 - cut, emitted=undisturbed[:cut])
            assert resumed == undisturbed[cut:]


def test_a_dropped_sequence_frees_its_place_and_its_key(tiny_model: Path) -> None:
    drive = Drive(tiny_model)
    prompts = prompts_of(drive)
    for key, prompt in prompts.items():
        drive.admit(key, prompt)
    drive.prefill("g0", "g1", "g2")
    drive.decode(3)
    drive.engine.drop("g1")  # decoding
    drive.engine.drop("g3")  # parked
    assert drive.engine.keys == ("g0", "g2", "g4")
    assert drive.engine.decoding == 2
    with pytest.raises(KeyError):
        drive.engine.drop("g1")
    drive.admit("g1", prompts["g2"])
    drive.finish_prefill("g1", "g4")
    del drive.tokens["g3"]
    expected = each_alone(tiny_model, {**prompts, "g1": prompts["g2"]})
    del expected["g3"]
    assert drive.decode_until(24) == expected


def test_an_engine_without_rows_decodes_nothing(tiny_model: Path) -> None:
    drive = Drive(tiny_model)
    assert drive.decode().tokens == []
    drive.admit("g", [5])
    drive.finish_prefill("g")
    drive.engine.drop("g")
    assert drive.engine.decoding == 0
    assert drive.decode().tokens == []


def test_what_cannot_run_is_refused_at_admission(tiny_model: Path) -> None:
    drive = Drive(tiny_model)
    engine = drive.engine
    vocabulary = engine.record.vocab_size
    drive.admit("taken", [1])
    for key, prompt, sampling, complaint in (
        ("taken", [1], GREEDY, "already"),
        ("g", [], GREEDY, "at least one"),
        ("g", [1] * CONTEXT_LENGTH, GREEDY, str(CONTEXT_LENGTH)),
        ("g", [vocabulary], GREEDY, str(vocabulary)),
        ("g", [-1], GREEDY, str(vocabulary)),
        ("g", [1], Sampling(seed=0, logit_bias={vocabulary: 1.0}), str(vocabulary)),
    ):
        with pytest.raises(ValueError, match=complaint):
            engine.admit(key, prompt, sampling)
    assert engine.keys == ("taken",)


def test_a_sequence_that_decodes_cannot_be_prefilled(tiny_model: Path) -> None:
    drive = Drive(tiny_model)
    drive.admit("g", [5])
    drive.finish_prefill("g")
    with pytest.raises(ValueError, match="not parked"):
        drive.prefill("g")


def test_another_thread_is_turned_away(tiny_model: Path) -> None:
    engine = Engine(tiny_model)
    caught: list[RuntimeError] = []

    def decode() -> None:
        try:
            engine.decode()
        except RuntimeError as error:
            caught.append(error)

    thread = threading.Thread(target=decode)
    thread.start()
    thread.join()
    assert "thread" in str(caught[0])


def test_an_engine_says_what_it_is(tiny_model: Path) -> None:
    engine = Engine(tiny_model)
    assert engine.context_length == CONTEXT_LENGTH
    assert engine.device.startswith(("cpu: ", "gpu: "))
    assert engine.blas
    assert engine.tokenizer.vocab_size == engine.record.vocab_size
