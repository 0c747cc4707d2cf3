"""The tick thread, driven by hand: one real engine, real Valkey, and a tick when the test says so."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from inference.dispatch import claims, keys
from inference.dispatch.queue import DispatchQueue, WithdrawOutcome
from inference.engine.engine import Engine, StepResult
from inference.messages import (
    CancelReason,
    Delta,
    End,
    EndState,
    FinishReason,
    GenerationTask,
    PrefillProgress,
    Publication,
    Sampling,
    TickEntry,
    tick_entry_decoder,
)
from inference.models import LanguageModel
from inference.scheduling.tick import Action, PrefillLimits
from inference.worker.loop import LoopEnd
from inference.worker.requests import Cancel, Drain, Drop, Reconfigure
from signalbox import store
from tests.inference.dispatch.conftest import (
    OwnValkey,
    let_lease_lapse,
    let_time_pass,
    make_task,
    wait_until,
)
from tests.inference.worker.conftest import (
    GREEDY,
    PROMPT,
    SETTINGS,
    HandDrivenWorker,
    alone,
    end_of,
    submit,
    text_of,
    tokens_of,
)

LONG_PROMPT = [*PROMPT, *PROMPT, *PROMPT]


def stream_of(client: redis.Redis) -> list[TickEntry]:
    """Everything that was published, by tick."""
    return [tick_entry_decoder.decode(fields[b"tick"]) for _, fields in client.xrange(keys.STREAM)]


def published(client: redis.Redis) -> list[tuple[str, Publication]]:
    return [pair for tick in stream_of(client) for pair in tick.publications]


# Running


def test_a_generation_gives_what_the_model_gives_alone(
    worker: HandDrivenWorker, model: LanguageModel, engine: Engine
) -> None:
    expected = alone(engine, PROMPT, GREEDY, 12)
    generation = submit(model)
    worker.claim()
    worker.run_dry()
    log = worker.log(generation)
    assert tokens_of(log) == expected
    assert text_of(log) == engine.tokenizer.decode(expected)
    assert [entry.seq for entry in log] == list(range(1, 14))
    end = end_of(log)
    assert (end.state, end.finish_reason) == (EndState.COMPLETED, FinishReason.LENGTH)
    assert (end.usage.prompt_tokens, end.usage.completion_tokens) == (len(PROMPT), 12)
    assert engine.keys == ()


def test_generations_that_share_ticks_are_each_what_they_are_alone(
    worker: HandDrivenWorker, model: LanguageModel, engine: Engine
) -> None:
    samplings = [GREEDY, Sampling(seed=7, temperature=1.0), Sampling(seed=9, temperature=0.7, top_p=0.9)]
    prompts = [PROMPT, LONG_PROMPT[:50], PROMPT[:3]]
    expected = [alone(engine, *pair, 20) for pair in zip(prompts, samplings, strict=True)]
    generations = [
        submit(model, prompt=prompt, sampling=sampling, max_tokens=20)
        for prompt, sampling in zip(prompts, samplings, strict=True)
    ]
    for _ in generations:
        worker.claim()
        worker.turn()
    worker.run_dry()
    assert [tokens_of(worker.log(generation)) for generation in generations] == expected


def test_a_tick_publishes_one_delta_of_each_generation_in_one_entry(
    worker: HandDrivenWorker, model: LanguageModel, valkey: redis.Redis
) -> None:
    generations = {submit(model, prompt=PROMPT[:4]) for _ in range(3)}
    for _ in generations:
        worker.claim()
    worker.run_dry()
    for tick in stream_of(valkey):
        deltas = [key for key, publication in tick.publications if isinstance(publication, Delta)]
        assert len(set(deltas)) == len(deltas)
    full = [
        tick
        for tick in stream_of(valkey)
        if {key for key, publication in tick.publications if isinstance(publication, Delta)} == generations
    ]
    assert len(full) >= 10


def test_every_prefill_tick_tells_how_far_the_prompt_is(
    worker: HandDrivenWorker, model: LanguageModel, valkey: redis.Redis
) -> None:
    submit(model, prompt=LONG_PROMPT)  # 60 tokens, in chunks of 16
    worker.claim()
    assert worker.turns(4) == [Action.PREFILL] * 4
    *progress, first = [publication for _, publication in published(valkey)]
    assert progress == [PrefillProgress(done=done, total=60) for done in (16, 32, 48, 60)]
    assert isinstance(first, Delta), "the last chunk's tick emits the first token"


def test_prompts_beside_streams_run_as_the_tick_rule_says(
    worker: HandDrivenWorker, model: LanguageModel
) -> None:
    submit(model, max_tokens=200)
    worker.claim()
    worker.turn_until(lambda: worker.loop.roster.decoding_rows == 1)
    worker.turns(3)
    submit(model, prompt=LONG_PROMPT)
    worker.claim()
    # Chunks of 16 at interval 2, and a last one of 12 that is as long as its remainder.
    prefill, decode = Action.PREFILL, Action.DECODE
    assert worker.turns(10) == [prefill, decode, decode] * 3 + [prefill]
    assert worker.loop.roster.decoding_rows == 2
    lane = worker.metrics.prefill("normal")
    assert lane.chunks.value == lane.grants.value == 2 + 4
    assert lane.tokens.value == len(PROMPT) + len(LONG_PROMPT)
    assert lane.debt.value == len(LONG_PROMPT) * 2, "the first prompt ran while nothing streamed"
    assert worker.metrics.prefill_debt.value == 12 * 2
    assert (worker.metrics.chunk_tokens.value, worker.metrics.interval.value) == (16, 2)


def test_long_prompts_take_turns_and_a_short_one_passes_between_them(
    worker: HandDrivenWorker, model: LanguageModel, valkey: redis.Redis
) -> None:
    first, second = (submit(model, prompt=LONG_PROMPT) for _ in range(2))
    short = submit(model, prompt=PROMPT[:5])
    for _ in range(3):
        worker.claim()
    worker.turns(1)
    order = [key for key, publication in published(valkey) if isinstance(publication, PrefillProgress)]
    assert order == [short]
    worker.loop.ask(Reconfigure(replace(SETTINGS, limits=PrefillLimits(chunk_tokens=16, interval=1))))
    worker.turn_until(lambda: worker.loop.roster.prefills == 0)
    order = [key for key, publication in published(valkey) if isinstance(publication, PrefillProgress)]
    # The last 12 of the 60 tokens fit one chunk: by then each is a short prompt, and next in turn.
    assert order == [short, *[first, second] * 2, first, first, second, second]


def test_limits_that_change_apply_from_the_next_tick(worker: HandDrivenWorker, model: LanguageModel) -> None:
    submit(model, prompt=LONG_PROMPT)
    worker.claim()
    assert worker.turn() is Action.PREFILL
    worker.loop.ask(Reconfigure(replace(SETTINGS, limits=PrefillLimits(chunk_tokens=64, interval=2))))
    assert worker.turn() is Action.PREFILL
    assert worker.loop.roster.decoding_rows == 1, "the rest of the prompt fitted one chunk"


def test_ticks_tokens_and_latencies_are_counted(worker: HandDrivenWorker, model: LanguageModel) -> None:
    submit(model)
    worker.claim()
    worker.run_dry()
    series = worker.metrics.counters.snapshot()
    assert series['ticks_total{action="prefill"}'] == 2
    assert series['ticks_total{action="decode"}'] >= 11
    assert series['generated_tokens_total{lane="normal"}'] == 12
    assert series['prompt_tokens_total{lane="normal"}'] == len(PROMPT)
    assert series['generations_total{state="completed",lane="normal"}'] == 1
    assert series['time_to_first_token_seconds_count{lane="normal"}'] == 1
    assert series['inter_token_seconds_bucket{lane="normal",le="+Inf"}'] == 11
    assert series['queue_wait_seconds_count{lane="normal"}'] == 1
    for action in ("prefill", "decode"):
        assert series[f'tick_seconds_total{{action="{action}"}}'] > 0


# Cancelling


def tell_to_cancel(worker: HandDrivenWorker, generation: str) -> None:
    outcome = DispatchQueue(worker.client).withdraw(generation, CancelReason.CLIENT_REQUESTED).outcome
    assert outcome is WithdrawOutcome.RUNNING


@pytest.mark.parametrize("stage", ["claimed", "prefilling", "decoding"])
def test_a_cancel_ends_a_generation_within_one_tick_in_every_stage(
    worker: HandDrivenWorker, model: LanguageModel, engine: Engine, stage: str
) -> None:
    other, generation = submit(model, max_tokens=100), submit(model, prompt=LONG_PROMPT, max_tokens=100)
    worker.claim()
    worker.turn_until(lambda: worker.loop.roster.decoding_rows == 1)
    worker.claim()
    if stage != "claimed":
        worker.turn()
        worker.turn_until(lambda: stage == "prefilling" or worker.loop.roster.decoding_rows == 2)
    tell_to_cancel(worker, generation)
    worker.turn()  # its publishing brings the cancel
    before = len(worker.log(generation))
    worker.turn()
    end = end_of(worker.log(generation))
    assert (end.state, end.cancel_reason) == (EndState.CANCELLED, CancelReason.CLIENT_REQUESTED)
    assert end.seq == before + 1
    assert engine.keys == (other,)
    counted = "prefilling" if stage == "claimed" else stage
    series = worker.metrics.counters.snapshot()
    assert series[f'cancellations_total{{stage="{counted}",reason="client_requested",lane="normal"}}'] == 1


def test_a_cancel_that_came_before_the_claim_costs_nothing(
    worker: HandDrivenWorker, model: LanguageModel, engine: Engine
) -> None:
    generation = submit(model)
    ghost = claims.claim(worker.client, "gone", model.name, 60).claim
    assert ghost is not None
    tell_to_cancel(worker, generation)
    let_lease_lapse(worker.client, generation, model.name)
    worker.claim()
    worker.turn()
    end = end_of(worker.log(generation))
    assert (end.state, end.usage.prompt_tokens) == (EndState.CANCELLED, 0)
    assert engine.keys == ()
    series = worker.metrics.counters.snapshot()
    assert series['cancellations_total{stage="claimed",reason="client_requested",lane="normal"}'] == 1


def test_a_cancelled_prompt_costs_what_was_run_of_it(worker: HandDrivenWorker, model: LanguageModel) -> None:
    generation = submit(model, prompt=LONG_PROMPT)
    worker.claim()
    worker.turns(2)
    worker.loop.ask(Cancel({generation: CancelReason.DETACHED}))
    worker.turn()
    usage = end_of(worker.log(generation)).usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (32, 0)


def test_a_cancelled_stream_costs_its_prompt_and_exactly_the_tokens_produced(
    worker: HandDrivenWorker, model: LanguageModel
) -> None:
    generation = submit(model, max_tokens=100)
    worker.claim()
    worker.turn_until(lambda: len(worker.log(generation)) == 9)
    worker.loop.ask(Cancel({generation: CancelReason.CLIENT_DISCONNECTED}))
    worker.turn()
    usage = end_of(worker.log(generation)).usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(PROMPT), 9)


def test_a_cancel_of_what_is_not_here_is_nothing(worker: HandDrivenWorker) -> None:
    worker.loop.ask(Cancel({"f" * 32: CancelReason.DETACHED}))
    assert worker.turn() is Action.IDLE


# Resuming


def test_another_worker_goes_on_wherever_the_first_one_stopped(
    worker: HandDrivenWorker, model: LanguageModel, engine: Engine
) -> None:
    """Greedy and seeded, with a stop string that is being held back, after every possible number of ticks."""
    sampling = Sampling(seed=3, temperature=0.8, frequency_penalty=0.4)
    expected = alone(engine, PROMPT, sampling, 14)
    text = engine.tokenizer.decode(expected)
    for ticks in range(1, 17):
        generation = submit(model, sampling=sampling, max_tokens=14, stop=(text[-1] + "never",))
        worker.claim()
        worker.turns(ticks)
        for key in engine.keys:
            engine.drop(key)
        let_lease_lapse(worker.client, generation, model.name)
        second = HandDrivenWorker(engine, worker.client, model.name, name="second")
        second.claim()
        second.run_dry()
        log = second.log(generation)
        assert tokens_of(log) == expected
        assert text_of(log) == text
        assert [entry.seq for entry in log] == list(range(1, len(log) + 1))
        assert end_of(log).usage.completion_tokens == 14
        worker = HandDrivenWorker(engine, worker.client, model.name)


def test_a_worker_that_lost_its_lease_drops_the_generation_silently(
    worker: HandDrivenWorker, model: LanguageModel, engine: Engine
) -> None:
    generation = submit(model, max_tokens=30)
    worker.claim()
    worker.turns(4)
    let_lease_lapse(worker.client, generation, model.name)
    other = claims.claim(worker.client, "other", model.name, 60).claim
    assert other is not None
    before = worker.log(generation)
    worker.turn()
    assert worker.turn() is Action.IDLE
    assert worker.log(generation) == before
    assert engine.keys == ()
    assert worker.holdings.epochs() == {}
    assert worker.metrics.publish_refusals.value == 1


def test_a_worker_that_claims_its_own_lapsed_generation_again_runs_it_once(
    worker: HandDrivenWorker, model: LanguageModel, engine: Engine
) -> None:
    expected = alone(engine, PROMPT, GREEDY, 12)
    generation = submit(model)
    worker.claim()
    worker.turns(5)
    let_lease_lapse(worker.client, generation, model.name)
    assert worker.claim().epoch == 2
    worker.run_dry()
    log = worker.log(generation)
    assert tokens_of(log) == expected
    assert {entry.epoch for entry in log} == {1, 2}
    assert worker.metrics.publish_refusals.value == 0


def test_losing_an_earlier_claim_leaves_the_later_one_alone(
    worker: HandDrivenWorker, model: LanguageModel, engine: Engine
) -> None:
    generation = submit(model)
    worker.claim()
    worker.turns(3)
    let_lease_lapse(worker.client, generation, model.name)
    worker.claim()
    worker.turn()
    worker.loop.ask(Drop({generation: 1}))
    worker.run_dry()
    assert end_of(worker.log(generation)).state is EndState.COMPLETED


def test_a_claim_that_others_died_with_time_and_again_is_failed(
    worker: HandDrivenWorker, model: LanguageModel
) -> None:
    generation = submit(model)
    for _ in range(5):
        assert claims.claim(worker.client, "dying", model.name, 60).claim is not None
        let_lease_lapse(worker.client, generation, model.name)
    worker.claim()
    worker.turn()
    assert end_of(worker.log(generation)).state is EndState.FAILED


def test_the_pause_of_a_stream_that_had_to_be_resumed_is_one_between_two_tokens(
    worker: HandDrivenWorker, model: LanguageModel, engine: Engine
) -> None:
    """Given back, and left by a worker that died: of 12 tokens all but the first come after another."""
    for given_back in (True, False):
        generation = submit(model)
        worker.claim()
        worker.turn_until(lambda: len(worker.log(generation)) == 5)  # noqa: B023 (called at once)
        if given_back:
            worker.loop.hand_back()
        else:
            engine.drop(generation)
            let_lease_lapse(worker.client, generation, model.name)
        let_time_pass(worker.client, generation, seconds=40)
        before = worker.metrics.counters.snapshot()
        worker = HandDrivenWorker(engine, worker.client, model.name, name="second")
        worker.claim()
        worker.run_dry()
        after = worker.metrics.counters.snapshot()
        observed = [series['inter_token_seconds_count{lane="normal"}'] for series in (before, after)]
        assert observed == [4 if given_back else 4 + 7, 7]
        assert 40 <= after['inter_token_seconds_sum{lane="normal"}'] < 60
        assert after['time_to_first_token_seconds_count{lane="normal"}'] == 0


# Faults


class FaultyEngine(Engine):
    """The engine, with faults where a test wants them."""

    def __init__(self, model_dir: Path) -> None:
        super().__init__(model_dir)
        self.on_decode: Callable[[], None] = lambda: None
        self.faults: dict[str, Exception] = {}

    def decode(self, *, more: bool = True) -> StepResult:
        self.on_decode()
        result = super().decode(more=more)
        result.faults |= self.faults
        result.tokens = [pair for pair in result.tokens if pair[0] not in self.faults]
        self.faults = {}
        return result


@pytest.fixture
def faulty(model: LanguageModel, valkey: redis.Redis) -> HandDrivenWorker:
    return HandDrivenWorker(FaultyEngine(model.path), valkey, model.name)


def faults_of(worker: HandDrivenWorker) -> dict[str, float]:
    """How often what went wrong, by the metrics."""
    series = worker.metrics.counters.snapshot()
    return {name.split('"')[1]: count for name, count in series.items() if name.startswith("faults_total")}


def break_down() -> None:
    raise MemoryError("device")


def engine_of(worker: HandDrivenWorker) -> FaultyEngine:
    assert isinstance(worker.engine, FaultyEngine)
    return worker.engine


def test_a_fault_ends_its_own_generation_only(
    faulty: HandDrivenWorker, model: LanguageModel, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    expected = alone(engine, PROMPT, GREEDY, 12)
    bad, good = submit(model), submit(model)
    faulty.claim()
    faulty.claim()
    faulty.turn_until(lambda: len(faulty.log(bad)) == 4 and len(faulty.log(good)) > 0)
    engine_of(faulty).faults[bad] = RuntimeError("secret weights overheated")
    faulty.run_dry()
    end = end_of(faulty.log(bad))
    assert end.state is EndState.FAILED
    assert end.failure is not None
    assert end.failure.code == "internal_error"
    assert "secret" not in end.failure.message
    assert tokens_of(faulty.log(good)) == expected
    logged = [record for record in caplog.records if bad in record.getMessage()]
    assert len(logged) == 1
    assert faults_of(faulty) == {"sequence": 1}


def test_a_decode_tick_with_a_fault_does_not_tell_what_decoding_takes(
    faulty: HandDrivenWorker, model: LanguageModel
) -> None:
    bad, good = submit(model, prompt=PROMPT[:4]), submit(model, prompt=PROMPT[:4])
    faulty.claim()
    faulty.claim()
    assert faulty.turn() is Action.PREFILL
    engine_of(faulty).faults[bad] = RuntimeError("overheated")
    assert faulty.turn() is Action.DECODE
    assert end_of(faulty.log(bad)).state is EndState.FAILED
    faulty.loop.ask(Cancel({good: CancelReason.CLIENT_REQUESTED}))
    assert faulty.turn() is Action.IDLE
    shown = faulty.loop.board.latest
    assert shown is not None
    assert shown.decode_ms is None


def test_a_fault_in_a_generations_own_text_ends_it_only(
    worker: HandDrivenWorker, model: LanguageModel, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = alone(engine, PROMPT, GREEDY, 12)
    bad, good = submit(model), submit(model)
    worker.claim()
    worker.claim()
    worker.turn_until(lambda: worker.loop.roster.decoding_rows == 2)

    def breaks(token: int) -> str:
        raise UnicodeError(f"token {token}")

    monkeypatch.setattr(worker.loop.roster[bad]._detokenizer, "push", breaks)
    worker.run_dry()
    assert end_of(worker.log(bad)).state is EndState.FAILED
    assert tokens_of(worker.log(good)) == expected
    assert engine.keys == ()
    assert faults_of(worker) == {"text": 1}


def test_what_the_engine_refuses_is_failed_and_the_next_one_runs(
    worker: HandDrivenWorker, model: LanguageModel, engine: Engine
) -> None:
    bad = submit(model, sampling=Sampling(seed=1, logit_bias={10**6: 1.0}))
    good = submit(model)
    worker.claim()
    worker.claim()
    worker.run_dry()
    assert end_of(worker.log(bad)).state is EndState.FAILED
    assert end_of(worker.log(good)).state is EndState.COMPLETED
    assert engine.keys == ()
    assert faults_of(worker) == {"admission": 1}


def test_a_step_that_fails_for_everybody_sends_everybody_back_to_the_queue(
    faulty: HandDrivenWorker, model: LanguageModel, engine: Engine
) -> None:
    expected = alone(engine, PROMPT, GREEDY, 12)
    generations = [submit(model), submit(model)]
    for _ in generations:
        faulty.claim()
    faulty.turn_until(lambda: faulty.loop.roster.decoding_rows == 2)
    engine_of(faulty).on_decode = break_down
    faulty.turn()
    engine_of(faulty).on_decode = lambda: None
    assert faulty.engine.keys == ()
    assert faulty.holdings.epochs() == {}
    for _ in generations:
        faulty.claim()
    faulty.run_dry()
    assert [tokens_of(faulty.log(generation)) for generation in generations] == [expected] * 2
    assert faults_of(faulty) == {"backend": 1}


def test_a_generation_with_which_every_step_fails_is_failed_in_the_end(
    faulty: HandDrivenWorker, model: LanguageModel
) -> None:
    generation = submit(model)
    engine_of(faulty).on_decode = break_down
    for _ in range(3):
        faulty.claim()
        faulty.run_dry()
    assert end_of(faulty.log(generation)).state is EndState.FAILED


def test_a_backend_that_keeps_failing_ends_the_loop(faulty: HandDrivenWorker, model: LanguageModel) -> None:
    engine_of(faulty).on_decode = break_down
    generations = [submit(model) for _ in range(6)]
    for _ in range(4):
        faulty.claim()
        faulty.run_dry()
    faulty.claim()
    assert faulty.loop.run() is LoopEnd.BACKEND_FAILED
    waiting = [DispatchQueue(faulty.client).position(generation) for generation in generations]
    assert all(waiting), "what it could not run waits for another worker"


# Draining


def test_draining_lets_what_runs_finish(worker: HandDrivenWorker, model: LanguageModel) -> None:
    generation = submit(model)
    worker.claim()
    worker.turn()
    worker.loop.ask(Drain(grace_s=60))
    assert worker.loop.run() is LoopEnd.DRAINED
    assert end_of(worker.log(generation)).state is EndState.COMPLETED


def test_draining_gives_the_rest_back_first_in_line(
    worker: HandDrivenWorker, model: LanguageModel, engine: Engine
) -> None:
    expected = alone(engine, PROMPT, GREEDY, 40)
    generation, behind = submit(model, max_tokens=40), submit(model)
    worker.claim()
    worker.turns(6)
    worker.claim()  # asked for, but not admitted yet
    worker.loop.ask(Drain(grace_s=0))
    assert worker.loop.run() is LoopEnd.DRAINED
    worker.loop.hand_back()
    assert engine.keys == ()
    assert worker.holdings.epochs() == {}
    queue = DispatchQueue(worker.client)
    assert [queue.position(one) for one in (generation, behind)] == [1, 2]
    second = HandDrivenWorker(engine, worker.client, model.name, name="second")
    second.claim()
    second.claim()
    second.run_dry()
    assert tokens_of(second.log(generation)) == expected


# Valkey away


def put(client: redis.Redis, max_tokens: int = 30) -> GenerationTask:
    """A task in a queue, without a row in the database."""
    task = make_task(model="tiny", prompt_tokens=20, max_tokens=max_tokens)
    assert DispatchQueue(client).enqueue(task)
    return task


def test_an_outage_shorter_than_the_lease_only_delays_the_streams(
    own_valkey: OwnValkey, engine: Engine
) -> None:
    client = own_valkey.client()
    task = put(client)
    expected = alone(engine, task.prompt, task.sampling, 30)
    worker = HandDrivenWorker(engine, client, "tiny")
    worker.claim()
    worker.turns(5)
    own_valkey.crash()
    restart = threading.Thread(target=own_valkey.start)

    def bring_back() -> None:
        wait_until(lambda: worker.metrics.publish_retries.value > 0)
        restart.start()

    threading.Thread(target=bring_back).start()
    worker.run_dry()
    restart.join()
    assert worker.metrics.publish_retries.value > 0
    log = worker.log(task.generation)
    assert tokens_of(log) == expected
    assert [entry.seq for entry in log] == list(range(1, len(log) + 1))


def test_an_outage_longer_than_the_lease_ends_in_a_resumption(own_valkey: OwnValkey, engine: Engine) -> None:
    client = own_valkey.client()
    task = put(client)
    expected = alone(engine, task.prompt, task.sampling, 30)
    worker = HandDrivenWorker(engine, client, "tiny", lease_s=3.0)
    worker.claim()
    worker.turns(5)
    own_valkey.crash()
    worker.turn()  # retries until the lease has lapsed by the worker's own clock
    assert engine.keys == ()
    assert worker.holdings.epochs() == {}
    own_valkey.start()
    second = HandDrivenWorker(engine, client, "tiny", name="second")
    wait_until(lambda: DispatchQueue(client).position(task.generation) is None)
    second.claim()
    second.run_dry()
    assert tokens_of(second.log(task.generation)) == expected


# Anything at any time


@given(
    st.lists(
        st.sampled_from(["submit", "long", "claim", "turn", "cancel", "lapse", "drop"]),
        min_size=5,
        max_size=40,
    )
)
def test_whatever_happens_every_log_is_one_text_and_every_row_is_let_go(
    valkey_server: object, engine: Engine, events: list[str]
) -> None:
    """Random arrivals, cancels and lost leases: logs stay gapless, texts exact, and nothing stays behind."""
    client = store.sync_client()
    client.flushall()
    worker = HandDrivenWorker(engine, client, "tiny")
    queue, tasks = DispatchQueue(client), list[GenerationTask]()
    for number, event in enumerate(events):
        if event in ("submit", "long"):
            length = 40 if event == "long" else 3 + number % 5
            task = make_task(model="tiny", rank=number % 3, prompt_tokens=length, max_tokens=1 + number % 9)
            queue.enqueue(task)
            tasks.append(task)
        elif event == "claim" and any(queue.depths("tiny").values()):
            worker.claim()
        elif event == "turn":
            worker.turn()
        elif event == "cancel" and tasks:
            queue.withdraw(tasks[number % len(tasks)].generation, CancelReason.CLIENT_REQUESTED)
        elif event == "lapse" and engine.keys:
            client.zadd("dispatch:leases:tiny", {engine.keys[0]: 1}, xx=True)
        elif event == "drop" and engine.keys:
            key = engine.keys[0]
            worker.loop.ask(Drop({key: worker.holdings.epochs().get(key, 0)}))
    worker.run_dry()
    assert engine.keys == ()
    assert len(worker.loop.roster) == 0
    for task in tasks:
        log = worker.log(task.generation)
        assert [entry.seq for entry in log] == list(range(1, len(log) + 1))
        produced = tokens_of(log)
        if produced:
            assert produced == alone(engine, task.prompt, task.sampling, len(produced))
        if log and isinstance(log[-1], End):
            end = end_of(log)
            assert end.usage.completion_tokens == len(produced)
            assert end.state in (EndState.COMPLETED, EndState.CANCELLED)
