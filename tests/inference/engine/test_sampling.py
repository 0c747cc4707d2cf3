from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.engine.penalties import Penalties
from inference.engine.sampling import RowSampler, draw
from inference.messages import Sampling
from tests.inference.engine.driving import Drive, alone, each_alone, prompts_of, run_alone

VOCABULARY = 200

samplings = st.builds(
    Sampling,
    seed=st.integers(-(2**63), 2**64),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 1.7]),
    top_p=st.sampled_from([0.1, 0.9, 1.0]),
    top_k=st.sampled_from([0, 1, 3, 65, VOCABULARY, 1000]),
    min_p=st.sampled_from([0.0, 0.1]),
)


def logits_of(rows: int, seed: int = 0) -> mx.array:
    return mx.random.normal((rows, VOCABULARY), key=mx.random.key(seed)) * 2


def drawn(sampling: Sampling, logits: mx.array, times: int) -> list[int]:
    """``times`` tokens from the same logits, at growing positions."""
    sampler = RowSampler(sampling, VOCABULARY)
    return [drawn_once(logits, [sampler])[0] for _ in range(times)]


def drawn_once(logits: mx.array, rows: list[RowSampler]) -> list[int]:
    return [int(token) for token in np.asarray(draw(logits, rows))]


@given(samplings=st.lists(samplings, min_size=1, max_size=6), seed=st.integers(0, 1000))
def test_a_row_draws_the_same_whoever_else_is_in_the_batch(samplings: list[Sampling], seed: int) -> None:
    logits = logits_of(len(samplings), seed)
    together = drawn_once(logits, [RowSampler(sampling, VOCABULARY) for sampling in samplings])
    for index, sampling in enumerate(samplings):
        alone_ = drawn_once(logits[index : index + 1], [RowSampler(sampling, VOCABULARY)])
        assert alone_ == [together[index]]


def test_a_seeded_sequence_is_the_same_alone_and_in_a_busy_batch(tiny_model: Path) -> None:
    drive = Drive(tiny_model)
    prompts = prompts_of(drive)
    mix = (
        Sampling(seed=1),
        Sampling(seed=1, temperature=0),
        Sampling(seed=2, temperature=0.7, top_p=0.9),
        Sampling(seed=3, temperature=1.2, top_k=20, min_p=0.02, frequency_penalty=0.4),
        Sampling(seed=1, repetition_penalty=1.3, logit_bias={40: 2.0}),
    )
    chosen = dict(zip(prompts, mix, strict=True))
    for key, prompt in prompts.items():
        drive.admit(key, prompt, chosen[key])
        drive.finish_prefill(key, chunk=7)
        drive.decode(2)
    assert drive.decode_until(24) == each_alone(tiny_model, prompts, chosen)


def test_the_seed_decides(tiny_model: Path) -> None:
    prompt = [20, 21, 22]
    first = run_alone(tiny_model, prompt, Sampling(seed=1))
    assert run_alone(tiny_model, prompt, Sampling(seed=1)) == first
    assert alone(tiny_model, prompt, Sampling(seed=2)) != first


def test_every_position_has_a_key_of_its_own() -> None:
    def keys(seed: int, start: int) -> list[tuple[int, int]]:
        sampler = RowSampler(Sampling(seed=seed), VOCABULARY, emitted=[0] * start)
        return [sampler.next_key() for _ in range(50)]

    assert keys(1, start=0)[10:] == keys(1, start=10)[:40]
    assert len({key for seed in range(20) for key in keys(seed, start=0)}) == 20 * 50


def test_tokens_come_as_often_as_their_probability_says() -> None:
    logits = mx.array([[2.0, 1.0, 0.0, -1.0] + [-math.inf] * (VOCABULARY - 4)])
    probabilities = np.exp([1.0, 0.5, 0.0, -0.5])
    probabilities /= probabilities.sum()
    times = 2000
    counts = Counter(drawn(Sampling(seed=5, temperature=2.0), logits, times))
    assert set(counts) <= set(range(4))
    for token, probability in enumerate(probabilities):
        spread = math.sqrt(times * probability * (1 - probability))
        assert abs(counts[token] - times * probability) < 4 * spread


#: Probabilities 0.5, 0.25, 0.125, … from token 7 downwards.
HALVING = mx.where(mx.arange(VOCABULARY) <= 7, (mx.arange(VOCABULARY) - 7) * math.log(2), -math.inf)[None]


@pytest.mark.parametrize(
    ("sampling", "possible"),
    [
        (Sampling(seed=1, temperature=0), {7}),
        (Sampling(seed=1, temperature=1e-4), {7}),
        (Sampling(seed=1, temperature=1e-40), {7}),
        (Sampling(seed=1, top_k=1), {7}),
        (Sampling(seed=1, top_k=3), {7, 6, 5}),
        (Sampling(seed=1, top_p=0.01), {7}),
        (Sampling(seed=1, top_p=0.0), {7}),
        (Sampling(seed=1, top_p=0.6), {7, 6}),
        (Sampling(seed=1, top_p=0.8), {7, 6, 5}),
        (Sampling(seed=1, top_k=2, top_p=0.8), {7, 6}),  # of the two, 0.67 and 0.33
        (Sampling(seed=1, top_k=2, top_p=0.6), {7}),
        (Sampling(seed=1, min_p=0.2), {7, 6, 5}),
        (Sampling(seed=1, min_p=1.0), {7}),
        (Sampling(seed=1, min_p=0.2, top_k=2), {7, 6}),
        (Sampling(seed=1, temperature=2.0, min_p=0.45), {7, 6, 5}),  # ratios 1, 0.71, 0.5, 0.35
        (Sampling(seed=1, top_k=VOCABULARY, top_p=1.0), set(range(8))),
    ],
)
def test_only_what_the_filters_leave_is_drawn(sampling: Sampling, possible: set[int]) -> None:
    assert set(drawn(sampling, HALVING, 300 if len(possible) < 8 else 2000)) == possible


def adjusted(sampling: Sampling, logits: list[float], prompt: list[int], emitted: list[int]) -> list[float]:
    penalties = Penalties(sampling, len(logits), prompt, emitted)
    penalties.observe(mx.array([(prompt + emitted)[-1]]))
    return [round(float(value), 4) for value in np.asarray(penalties.apply(mx.array([logits])))[0]]


def test_presence_and_frequency_look_at_what_was_produced() -> None:
    logits, prompt, emitted = [1.0, 1.0, 1.0, 1.0], [0, 0, 1], [1, 1, 2]
    assert adjusted(Sampling(seed=0, presence_penalty=0.5), logits, prompt, emitted) == [1.0, 0.5, 0.5, 1.0]
    assert adjusted(Sampling(seed=0, frequency_penalty=0.5), logits, prompt, emitted) == [1.0, 0.0, 0.5, 1.0]


def test_repetition_looks_at_the_prompt_too_and_always_lowers() -> None:
    sampling = Sampling(seed=0, repetition_penalty=2.0)
    assert adjusted(sampling, [1.0, -1.0, 1.0, -1.0], [0], [1]) == [0.5, -2.0, 1.0, -1.0]


def test_a_bias_comes_last_and_decides() -> None:
    sampling = Sampling(seed=0, repetition_penalty=2.0, logit_bias={0: 100.0, 2: -100.0})
    assert adjusted(sampling, [1.0, 1.0, 1.0], [0], []) == [100.5, 1.0, -99.0]


def test_every_produced_token_counts_once() -> None:
    penalties = Penalties(Sampling(seed=0, frequency_penalty=1.0), 4, [3], [2])
    for token in (2, 0, 0, 1):  # the first was given with ``emitted``
        penalties.observe(mx.array([token]))
    assert penalties.apply(mx.zeros((1, 4))).tolist() == [[-2.0, -1.0, -1.0, 0.0]]


def test_a_bias_can_force_the_end_of_a_text(tiny_model: Path) -> None:
    [end, *_] = sorted(Drive(tiny_model).engine.tokenizer.eos_ids)
    assert alone(tiny_model, [20], Sampling(seed=0, logit_bias={end: 1000.0}), count=2) == [end, end]
