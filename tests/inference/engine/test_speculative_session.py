"""Speculation changes how fast tokens come, and not which."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import mlx.core as mx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mlx_lm.models.cache import make_prompt_cache

from inference.engine.drafting.drafter import DraftContext
from inference.messages import Sampling
from tests.inference.engine.driving import TEXTS, Drive, alone, prompts_of
from tests.inference.engine.speculating import (
    PENALISED,
    SAMPLINGS,
    ScriptedDrafter,
    SpeculativeDrive,
    knowing,
)

#: Tokens that each sequence is compared over.
COUNT = 40


class Ascending:
    """A logits processor that looks at all tokens before it: never the same three times, and a taste for the next."""

    def __call__(self, tokens: mx.array, logits: mx.array) -> mx.array:
        last = cast("int", tokens[-1].item())
        return logits.at[:, last].add(-5.0).at[:, (last + len(tokens)) % logits.shape[-1]].add(2.0)


@pytest.fixture(scope="module")
def drive(tiny_model: Path) -> SpeculativeDrive:
    return SpeculativeDrive(tiny_model)


@pytest.fixture(scope="module")
def prompt(drive: SpeculativeDrive) -> list[int]:
    return drive.engine.tokenizer.encode(TEXTS[2])


@pytest.fixture(scope="module")
def plain(tiny_model: Path, prompt: list[int]) -> dict[str, list[int]]:
    """What plain decoding says, for each way of drawing."""
    said = {name: alone(tiny_model, prompt, sampling, COUNT) for name, sampling in SAMPLINGS.items()}
    said["processors"] = alone(tiny_model, prompt, SAMPLINGS["top_p"], COUNT, processors=[Ascending()])
    return said


@pytest.mark.parametrize("wrong_every", [1, 2, 3, 7, 0], ids=lambda every: f"wrong every {every}")
@pytest.mark.parametrize("name", [*SAMPLINGS, "processors"])
def test_a_sequence_says_what_it_would_say_without_speculation(
    drive: SpeculativeDrive, prompt: list[int], plain: dict[str, list[int]], name: str, wrong_every: int
) -> None:
    drive.drafter.script = knowing(
        [*prompt, *plain[name]], lambda position: bool(wrong_every) and position % wrong_every == 0
    )
    processors = [Ascending()] if name == "processors" else []
    drive.start("g", prompt, SAMPLINGS.get(name, SAMPLINGS["top_p"]), processors=processors)
    assert drive.rounds("g", COUNT) == plain[name]
    drive.engine.drop("g")


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from([*SAMPLINGS]),
    rounds=st.lists(
        st.tuples(
            st.integers(0, 6),
            st.sampled_from(["right", "wrong at", "anything", "too many", "none"]),
            st.lists(st.integers(0, 300), min_size=8, max_size=8),
        ),
        min_size=3,
        max_size=14,
    ),
)
def test_whatever_is_guessed_the_text_is_the_same(
    drive: SpeculativeDrive,
    prompt: list[int],
    plain: dict[str, list[int]],
    name: str,
    rounds: list[tuple[int, str, list[int]]],
) -> None:
    text = [*prompt, *plain[name]]
    drive.start("g", prompt, SAMPLINGS[name])
    for k, kind, noise in rounds:

        def guess(context: DraftContext, k: int, kind: str = kind, noise: list[int] = noise) -> list[int]:
            begin = len(context.tokens)
            right = text[begin : begin + k]
            match kind:
                case "right":
                    return right
                case "wrong at":
                    cut = noise[0] % (k + 1)
                    return [*right[:cut], *noise[cut:k]]
                case "too many":
                    return [*text[begin : begin + 8], *noise]
                case "anything":
                    return noise[:k]
                case _:
                    return []

        drive.drafter.script = guess
        result = drive.round("g", k)
        assert result.fault is result.drafter_fault is None
        assert result.proposed <= k
        assert result.accepted in (len(result.tokens) - 1, 0)
        if kind == "right" and len(drive.tokens["g"]) <= COUNT:
            assert result.accepted == result.proposed == k
    said = drive.tokens["g"][:COUNT]
    drive.engine.drop("g")
    assert said == plain[name][: len(said)]


def test_a_right_guess_saves_a_step_and_a_wrong_one_costs_none(
    drive: SpeculativeDrive, prompt: list[int], plain: dict[str, list[int]]
) -> None:
    text = [*prompt, *plain["greedy"]]
    drive.start("g", prompt)
    drive.drafter.script = knowing(text)
    assert drive.round("g", 4).tokens == plain["greedy"][1:6]
    drive.drafter.script = knowing(text, lambda position: True)
    result = drive.round("g", 4)
    assert (result.tokens, result.proposed, result.accepted) == (plain["greedy"][6:7], 4, 0)
    drive.drafter.script = knowing(text, lambda position: position == len(prompt) + 9)
    result = drive.round("g", 4)
    assert (result.tokens, result.proposed, result.accepted) == (plain["greedy"][7:10], 4, 2)
    assert result.draft_ms >= 0
    assert result.verify_ms > 0
    drive.engine.drop("g")


def test_a_probe_asks_no_drafter(tiny_model: Path, prompt: list[int], plain: dict[str, list[int]]) -> None:
    drive = SpeculativeDrive(tiny_model, drafter=False)
    drive.start("g", prompt, PENALISED)
    assert drive.rounds("g", COUNT, iter([0] * COUNT)) == plain["penalties"]
    assert not drive.engine.take_drafter("g")


def test_the_drafter_is_bound_to_all_that_was_said_and_told_what_became_of_it(
    tiny_model: Path, prompt: list[int], plain: dict[str, list[int]]
) -> None:
    text = [*prompt, *plain["greedy"]]
    seen: list[list[int]] = []

    def guess(context: DraftContext, k: int) -> list[int]:
        seen.append(list(context.tokens))
        assert (context.key, context.prompt_length) == ("g", len(prompt))
        assert (context.namespace, context.learns) == ("tenant", True)
        return knowing(text)(context, k)

    drive = SpeculativeDrive(tiny_model, guess)
    drive.start("g", prompt, draft_pool="tenant", teaches=True)
    assert drive.engine.take_drafter("g")
    drive.engine.speculate("g", 2)
    drive.engine.speculate("g", 0)
    drive.engine.speculate("g", 3)
    drive.engine.learn_from("g", emitted=7)
    drive.engine.drop("g")
    said = plain["greedy"]
    assert seen == [text[: len(prompt) + 1], text[: len(prompt) + 5]]
    assert drive.drafter.told == [
        ("bind", "g"),
        ("bind", "g"),
        ("observe", (said[1:4], 2, 2)),
        ("bind", "g"),
        ("observe", (said[5:9], 3, 3)),
        ("finish", text[: len(prompt) + 7]),
        ("release", None),
    ]


class Rememberer(ScriptedDrafter):
    """Proposes from what it was told last, and would mix up sequences that it is not bound anew for."""

    def __init__(self) -> None:
        super().__init__(self.repeat)
        self.recent: list[int] = []
        self.proposed: dict[str, list[list[int]]] = {}

    def bind(self, context: DraftContext) -> None:
        super().bind(context)
        self.recent = list(context.tokens[-5:])

    def observe(self, committed: Sequence[int], proposed: int, accepted: int) -> None:
        self.recent += committed

    def repeat(self, context: DraftContext, k: int) -> list[int]:
        self.proposed.setdefault(context.key, []).append(self.recent[:k])
        return self.recent[:k]


def test_interleaved_sessions_propose_and_say_what_each_does_alone(tiny_model: Path) -> None:
    prompts = prompts_of(Drive(tiny_model))
    names = ["greedy", "top_k", "penalties"]
    samplings = dict(zip(("g0", "g2", "g4"), (SAMPLINGS[name] for name in names), strict=True))

    def run(*keys: str) -> tuple[dict[str, list[int]], dict[str, list[list[int]]]]:
        drive = SpeculativeDrive(tiny_model)
        drafter = Rememberer()
        drive.engine.set_drafter(lambda: drafter)
        for key in keys:
            drive.start(key, prompts[key], samplings[key])
        for _ in range(14):
            for key in keys:
                drive.round(key)
        return drive.tokens, drafter.proposed

    together, proposed_together = run(*samplings)
    for key in samplings:
        said, proposed = run(key)
        assert together[key] == said[key]
        assert proposed_together[key] == proposed[key]


def test_a_session_that_waits_goes_on_as_if_it_had_not(any_tiny_model: Path, prompt: list[int]) -> None:
    short = prompt[:5]
    expected = alone(any_tiny_model, short, PENALISED, 20)
    drive = SpeculativeDrive(any_tiny_model, knowing([*short, *expected], lambda position: position % 3 == 0))
    drive.start("waits", short, PENALISED)
    drive.start("other", prompt)
    drive.admit("decodes", prompt)
    drive.finish_prefill("decodes")
    for _ in range(6):
        drive.round("waits")
        drive.decode()
        drive.rounds("other", len(drive.tokens["other"]) + 3)
    assert drive.rounds("waits", 20) == expected
    assert drive.tokens["decodes"] == alone(any_tiny_model, prompt)[: len(drive.tokens["decodes"])]


@pytest.mark.parametrize("left", [1, 2, 7])
def test_slice_zero_runs_what_is_left_and_gives_the_first_token(
    any_tiny_model: Path, prompt: list[int], left: int
) -> None:
    drive = SpeculativeDrive(any_tiny_model)
    drive.admit("g", prompt)
    while drive.engine.remaining("g") > left:
        drive.prefill("g", chunk=min(9, drive.engine.remaining("g") - left))
    assert drive.engine.remaining("g") == left
    assert len(drive.slice_zero("g", chunk=left).tokens) == 1
    assert drive.engine.remaining("g") == 0
    assert drive.engine.decoding == 0
    assert drive.decode().tokens == []
    assert drive.rounds("g") == alone(any_tiny_model, prompt)


def test_a_prompt_of_one_token_has_a_slice_zero(tiny_model: Path) -> None:
    drive = SpeculativeDrive(tiny_model)
    drive.start("g", [7])
    assert drive.rounds("g") == alone(tiny_model, [7])


def test_a_slice_zero_that_is_longer_than_a_chunk_takes_several(tiny_model: Path, prompt: list[int]) -> None:
    drive = SpeculativeDrive(tiny_model)
    drive.admit("g", prompt)
    ticks = -(-len(prompt) // 16)
    for _ in range(ticks - 1):
        assert drive.slice_zero("g", chunk=16).tokens == []
    assert len(drive.slice_zero("g", chunk=16).tokens) == 1
    assert drive.rounds("g") == alone(tiny_model, prompt)


def test_what_is_not_possible_is_said(tiny_model: Path, prompt: list[int]) -> None:
    drive = SpeculativeDrive(tiny_model)
    drive.admit("parked", prompt)
    for action in (lambda: drive.engine.speculate("parked", 0), lambda: drive.engine.into_classic("parked")):
        with pytest.raises(ValueError, match="'parked' is parked, not speculating"):
            action()
    drive.start("g", prompt)
    with pytest.raises(ValueError, match="'g' is speculating, not parked"):
        drive.slice_zero("g")
    with pytest.raises(RuntimeError, match="'g' drafts while None has"):
        drive.engine.speculate("g", 2)
    drive.start("h", prompt)
    assert drive.engine.take_drafter("g")
    with pytest.raises(RuntimeError, match="'h' takes the drafter while 'g' has it"):
        drive.engine.take_drafter("h")


def test_sampled_tokens_come_as_often_as_the_model_says(tiny_model: Path, prompt: list[int]) -> None:
    """Chi-square against the model's own probabilities, of pairs that a round confirms or corrects."""
    drive = SpeculativeDrive(tiny_model)
    prompt, width, runs = prompt[:3], 3, 300

    def distribution(tokens: list[int]) -> dict[int, float]:
        caches = make_prompt_cache(drive.engine.model)
        logits = drive.engine.model(mx.array([tokens]), cache=caches)[0, -1]
        best = mx.argsort(-logits)[:width]
        chances = cast("list[float]", mx.softmax(logits[best]).tolist())
        return dict(zip(cast("list[int]", best.tolist()), chances, strict=True))

    expected: dict[tuple[int, ...], float] = {}
    first = distribution(prompt)
    for one, chance in first.items():
        for two, share in distribution([*prompt, one]).items():
            expected[one, two] = chance * share * runs
    likeliest = max(expected, key=expected.__getitem__)
    # Always the same guess, right for one first token only: half of what is drawn has to be a correction.
    drive.drafter.script = lambda context, k: [likeliest[1]]
    observed: Counter[tuple[int, ...]] = Counter()
    accepted = 0
    for seed in range(runs):
        drive.start("g", prompt, Sampling(seed=seed, temperature=1.0, top_k=width))
        accepted += drive.round("g", 1).accepted
        observed[tuple(drive.tokens["g"][:2])] += 1
        drive.engine.drop("g")
    assert observed.keys() <= expected.keys()
    assert 0 < accepted < runs
    assert min(expected.values()) > 1
    statistic = sum((observed[pair] - count) ** 2 / count for pair, count in expected.items())
    # The 99.9th percentile of chi-square with 8 degrees of freedom.
    assert statistic < 26.1


def test_a_preempted_session_goes_on_elsewhere(
    tiny_model: Path, prompt: list[int], plain: dict[str, list[int]]
) -> None:
    text = [*prompt, *plain["penalties"]]
    drive = SpeculativeDrive(tiny_model, knowing(text, lambda position: position % 4 == 0))
    drive.start("g", prompt, PENALISED)
    drive.rounds("g", 9)
    drive.engine.drop("g")
    emitted = drive.tokens["g"]
    elsewhere = SpeculativeDrive(tiny_model, knowing(text))
    elsewhere.start("g", prompt, PENALISED, emitted=emitted)
    assert [*emitted, *elsewhere.rounds("g", COUNT - len(emitted))] == plain["penalties"]
    assert (
        alone(tiny_model, prompt, PENALISED, 10, emitted=emitted) == plain["penalties"][len(emitted) :][:10]
    )
