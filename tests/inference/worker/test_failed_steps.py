"""Forward passes that fail, for one generation or for all: what that costs whom, in a worker driven by hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import redis

from inference.dispatch.queue import DispatchQueue
from inference.engine.engine import Engine
from inference.messages import EndState, Sampling
from inference.models import LanguageModel
from inference.scheduling.speculation import DeclineReason
from inference.scheduling.tick import DEFAULT_CHUNK_TOKENS, Action, PrefillLimits
from inference.worker.loop import LoopEnd
from inference.worker.metrics import Fault
from inference.worker.requests import Drain, Reconfigure
from inference.worker.sequences import INTERNAL_ERROR
from tests.inference.engine.speculating import ScriptedDrafter
from tests.inference.worker.conftest import (
    ENDLESS,
    GREEDY,
    PROMPT,
    SETTINGS,
    HandDrivenWorker,
    alone,
    end_of,
    submit,
    tokens_of,
)
from tests.inference.worker.forward_passes import POISON, ForwardPasses, forward_passes
from tests.inference.worker.test_slot import speculating

__all__ = ["forward_passes"]

CHUNK = SETTINGS.limits.chunk_tokens
SHORT = PROMPT[:4]
#: As long as a short one: both are run in one pass.
POISONED = [*PROMPT[:3], POISON]


def waits(worker: HandDrivenWorker, generation: str) -> bool:
    return DispatchQueue(worker.client).position(generation) is not None


def claim_all(worker: HandDrivenWorker) -> None:
    while any(DispatchQueue(worker.client).depths("tiny").values()):
        worker.claim()


def goes_on(worker: HandDrivenWorker) -> bool:
    """Whether the loop has not given its backend up: it drains when it is asked to."""
    worker.loop.ask(Drain(grace_s=0))
    return worker.loop.run() is LoopEnd.DRAINED


# A broken backend


def test_prompts_that_all_fail_together_go_back_until_the_backend_is_given_up(
    worker: HandDrivenWorker, model: LanguageModel, engine: Engine, forward_passes: ForwardPasses
) -> None:
    expected = alone(engine, SHORT, GREEDY, 12)
    generations = [submit(model, prompt=SHORT) for _ in range(3)]
    forward_passes.broken = True
    for failed in range(1, 5):
        claim_all(worker)
        worker.run_dry()
        assert worker.metrics.faults(Fault.BACKEND).value == failed, "one step for all of them"
        assert all(waits(worker, generation) for generation in generations)
    claim_all(worker)
    assert worker.loop.run() is LoopEnd.BACKEND_FAILED
    assert (engine.keys, worker.holdings.epochs()) == ((), {})
    forward_passes.broken = False
    other = HandDrivenWorker(engine, worker.client, model.name, name="other")
    claim_all(other)
    other.run_dry()
    assert [tokens_of(other.log(generation)) for generation in generations] == [expected] * 3


def test_streams_that_all_fail_together_go_on_elsewhere_where_they_were(
    worker: HandDrivenWorker, model: LanguageModel, engine: Engine, forward_passes: ForwardPasses
) -> None:
    expected = alone(engine, SHORT, GREEDY, 12)
    generations = [submit(model, prompt=SHORT) for _ in range(3)]
    claim_all(worker)
    worker.turn_until(lambda: worker.loop.roster.decoding_rows == 3)
    worker.turns(3)
    forward_passes.broken = True
    assert worker.turn() is Action.DECODE
    forward_passes.broken = False
    assert all(waits(worker, generation) for generation in generations)
    other = HandDrivenWorker(engine, worker.client, model.name, name="other")
    claim_all(other)
    other.run_dry()
    for generation in generations:
        log = other.log(generation)
        assert tokens_of(log) == expected
        assert {entry.epoch for entry in log} == {1, 2}


def test_a_lone_stream_that_failed_once_goes_on(
    worker: HandDrivenWorker, model: LanguageModel, engine: Engine, forward_passes: ForwardPasses
) -> None:
    expected = alone(engine, PROMPT, GREEDY, 12)
    generation = submit(model)
    worker.claim()
    worker.turn_until(lambda: len(worker.log(generation)) == 4)
    forward_passes.broken = True
    worker.run_dry()
    forward_passes.broken = False
    assert waits(worker, generation)
    worker.claim()
    worker.run_dry()
    assert tokens_of(worker.log(generation)) == expected


def test_only_steps_that_failed_count_against_a_generation_not_the_claims_that_it_had(
    worker: HandDrivenWorker, model: LanguageModel, engine: Engine, forward_passes: ForwardPasses
) -> None:
    expected = alone(engine, PROMPT, GREEDY, 12)
    generation = submit(model)
    for _ in range(3):
        worker.claim()
        worker.turns(3)
        worker.loop.hand_back()
    assert worker.claim().epoch == 4
    forward_passes.broken = True
    worker.run_dry()
    forward_passes.broken = False
    assert waits(worker, generation)
    worker.claim()
    worker.run_dry()
    assert tokens_of(worker.log(generation)) == expected


@pytest.mark.parametrize(
    ("shortest", "prompt"), [(2, PROMPT), (CHUNK, PROMPT * 3)], ids=["no stream goes on", "no prompt ends"]
)
def test_a_worker_that_only_runs_what_gives_no_token_is_given_up(
    worker: HandDrivenWorker,
    model: LanguageModel,
    forward_passes: ForwardPasses,
    shortest: int,
    prompt: list[int],
) -> None:
    forward_passes.shortest = shortest
    for _ in range(2):
        submit(model, prompt=prompt)
    for failed in range(1, 6):
        worker.claim()
        worker.run_dry()
        assert worker.metrics.faults(Fault.BACKEND).value == failed
    assert not goes_on(worker)


def test_streams_that_fail_one_by_one_as_they_are_run_again_go_back_together(
    worker: HandDrivenWorker, model: LanguageModel, engine: Engine, forward_passes: ForwardPasses
) -> None:
    expected = alone(engine, PROMPT, GREEDY, 40)
    generations = [submit(model, max_tokens=40) for _ in range(4)]
    claim_all(worker)
    worker.turn_until(lambda: worker.loop.roster.decoding_rows == 4)
    forward_passes.shortest = 2
    forward_passes.sizes.clear()
    while len(worker.loop.roster) == 4:
        assert worker.turn() is Action.DECODE
    forward_passes.shortest = 0
    assert forward_passes.sizes.count(1) == 1 + 4, "together, and each alone"
    assert all(waits(worker, generation) for generation in generations)
    assert worker.metrics.faults(Fault.BACKEND).value == 1
    assert worker.metrics.faults(Fault.SEQUENCE).value == 0
    claim_all(worker)
    worker.run_dry()
    assert [tokens_of(worker.log(generation)) for generation in generations] == [expected] * 4


# What is run again


def test_what_is_run_again_is_run_by_the_chunk_that_holds_now(
    worker: HandDrivenWorker, model: LanguageModel, forward_passes: ForwardPasses
) -> None:
    submit(model, prompt=PROMPT * 3)
    worker.claim()
    worker.turn_until(lambda: worker.loop.roster.decoding_rows == 1)
    worker.loop.ask(Reconfigure(replace(SETTINGS, limits=PrefillLimits(chunk_tokens=24, interval=2))))
    forward_passes.shortest = 2
    forward_passes.sizes.clear()
    worker.run_dry()
    step, *again, last = forward_passes.sizes
    assert (step, last) == (1, 1)
    assert again == [24, 24, 12]


def test_a_decode_tick_that_runs_something_again_does_not_tell_what_decoding_takes(
    worker: HandDrivenWorker, model: LanguageModel, forward_passes: ForwardPasses
) -> None:
    submit(model)
    worker.claim()
    worker.turn_until(lambda: worker.loop.roster.decoding_rows == 1)
    forward_passes.shortest = 2
    assert worker.turn() is Action.DECODE
    assert len(worker.loop.roster) == 1, "it is being run again"
    worker.run_dry()
    shown = worker.loop.board.latest
    assert shown is not None
    assert shown.decode_ms is None


@pytest.mark.parametrize("beside", [[], [SHORT]], ids=["alone", "beside another"])
def test_a_prompt_that_fails_at_once_does_not_tell_what_prompts_take(
    worker: HandDrivenWorker, model: LanguageModel, forward_passes: ForwardPasses, beside: list[list[int]]
) -> None:
    """It would seem to cost next to nothing, and the next chunk would be the largest that there is."""
    worker.loop.ask(Reconfigure(replace(SETTINGS, longest_stall_ms=100)))
    for prompt in [POISONED, *beside]:
        submit(model, prompt=prompt)
    claim_all(worker)
    assert worker.turn() is Action.PREFILL
    shown = worker.loop.board.latest
    assert shown is not None
    assert shown.chunk_ms is None
    assert worker.metrics.chunk_tokens.value == DEFAULT_CHUNK_TOKENS


# A poisoned generation


def test_what_fails_beside_others_that_get_on_ends_at_once(
    worker: HandDrivenWorker, model: LanguageModel, engine: Engine, forward_passes: ForwardPasses
) -> None:
    expected = alone(engine, SHORT, GREEDY, 12)
    good, bad = submit(model, prompt=SHORT), submit(model, prompt=POISONED)
    claim_all(worker)
    assert worker.turn() is Action.PREFILL
    end = end_of(worker.log(bad))
    assert (end.state, end.epoch, end.failure) == (EndState.FAILED, 1, INTERNAL_ERROR)
    worker.run_dry()
    assert tokens_of(worker.log(good)) == expected
    assert worker.metrics.faults(Fault.BACKEND).value == 0


def test_a_lone_prompt_that_always_fails_is_tried_three_times_and_costs_no_worker(
    worker: HandDrivenWorker, model: LanguageModel, forward_passes: ForwardPasses
) -> None:
    bad = submit(model, prompt=POISONED)
    for _ in range(2):
        worker.claim()
        worker.run_dry()
        assert waits(worker, bad)
        assert worker.log(bad) == []
    worker.claim()
    worker.run_dry()
    end = end_of(worker.log(bad))
    assert (end.state, end.epoch, end.failure) == (EndState.FAILED, 3, INTERNAL_ERROR)
    good = submit(model)
    worker.claim()
    worker.run_dry()
    assert end_of(worker.log(good)).state is EndState.COMPLETED
    assert goes_on(worker)


def test_a_token_with_which_a_text_always_fails_ends_it_too(
    worker: HandDrivenWorker, model: LanguageModel, forward_passes: ForwardPasses
) -> None:
    """It says the poison itself: it fails as a stream first, and then as a prompt."""
    bad = submit(model, sampling=Sampling(seed=0, temperature=0.0, logit_bias={POISON: 1e6}))
    for _ in range(3):
        worker.claim()
        worker.run_dry()
    end = end_of(worker.log(bad))
    assert (end.state, end.epoch) == (EndState.FAILED, 3)
    assert tokens_of(worker.log(bad)) == [POISON]
    assert goes_on(worker)


def test_what_failed_with_one_worker_is_known_to_the_next(
    worker: HandDrivenWorker, model: LanguageModel, engine: Engine, forward_passes: ForwardPasses
) -> None:
    bad = submit(model, prompt=POISONED)
    workers = [
        HandDrivenWorker(engine, worker.client, model.name, name=name) for name in ("one", "two", "three")
    ]
    for each in workers:
        assert each.claim().task.generation == bad
        each.run_dry()
    assert end_of(worker.log(bad)).state is EndState.FAILED


def test_poisoned_prompts_one_after_another_leave_a_worker_alone_that_streams(
    worker: HandDrivenWorker, model: LanguageModel, forward_passes: ForwardPasses
) -> None:
    stream = submit(model, max_tokens=ENDLESS)
    worker.claim()
    worker.turn_until(lambda: worker.loop.roster.decoding_rows == 1)
    for _ in range(3):
        bad = submit(model, prompt=POISONED)
        for _ in range(3):
            assert worker.claim().task.generation == bad
            worker.turn()
            worker.turn_until(lambda: len(worker.loop.roster) == 1)
        assert end_of(worker.log(bad)).state is EndState.FAILED
    assert worker.metrics.faults(Fault.BACKEND).value == 9
    assert worker.loop.roster.find(stream) is not None
    assert goes_on(worker)


# Speculation


@pytest.fixture
def speculative(model: LanguageModel, engine: Engine, valkey: redis.Redis) -> Iterator[HandDrivenWorker]:
    drafter = ScriptedDrafter()
    engine.set_drafter(lambda: drafter)
    yield HandDrivenWorker(engine, valkey, model.name, settings=speculating())
    for key in engine.keys:
        engine.drop(key)
    engine.set_drafter(None)


def test_what_failed_in_a_round_is_tried_again_without_speculation(
    speculative: HandDrivenWorker, model: LanguageModel, engine: Engine, forward_passes: ForwardPasses
) -> None:
    worker, slices = speculative, speculative.metrics.ticks[Action.SPECULATE]
    expected = alone(engine, SHORT, GREEDY, 12)
    generation = submit(model, prompt=SHORT)
    worker.claim()
    worker.turn_until(lambda: len(worker.log(generation)) == 3)
    forward_passes.broken = True
    assert worker.turn() is Action.SPECULATE
    forward_passes.broken = False
    assert waits(worker, generation)
    before = slices.value
    worker.claim()
    worker.run_dry()
    assert tokens_of(worker.log(generation)) == expected
    assert slices.value == before
    assert worker.metrics.declines(DeclineReason.SUSPECTED, "normal").value == 1
