"""Workers as processes, killed, stopped and told to end in the middle of a text.

Everything runs on MLX's stock BLAS, so that what another worker continues has to be the undisturbed text, token for
token.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from django.db import transaction

from inference.dispatch import token_log
from inference.dispatch.heartbeats import heartbeats
from inference.engine.engine import Engine
from inference.messages import Sampling
from inference.models import LanguageModel, Worker
from inference.models.generation import GenerationState
from signalbox import store
from signalbox.configuration import ROOT
from tests.fixtures.database import database_url
from tests.inference.doors import row
from tests.inference.worker.conftest import ENDLESS, PROMPT, alone, end_of, submit, text_of, tokens_of

pytestmark = pytest.mark.timeout(600)

#: Short enough to be waited for, long enough for the first ticks of a worker on a busy machine.
LEASE_S = 4.0
LENGTH = 1500
#: Drawn, but never an end of text.
SEEDED = Sampling(seed=11, temperature=0.9, logit_bias={0: -100.0, 1: -100.0, 2: -100.0})

#: A process that loads Django, MLX and a model takes its time on a busy machine.
DEADLINE_S = 240.0

StartProcess = Callable[..., "WorkerOfItsOwn"]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true in time"
        time.sleep(0.02)


class WorkerOfItsOwn:
    """``manage.py worker`` on the test's database and Valkey."""

    def __init__(self, *arguments: str, drain_s: float = 0) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(ROOT / "manage.py"), "worker", *arguments],
            cwd=ROOT,
            env={
                **os.environ,
                "DATABASE_URL": database_url(),
                "SIGNALBOX_BLAS": "stock",
                "SIGNALBOX_LEASE_SECONDS": str(LEASE_S),
                "SIGNALBOX_SWEEP_SECONDS": "0.5",
                "SIGNALBOX_DRAIN_SECONDS": str(drain_s),
                "SIGNALBOX_LOG_LEVEL": "INFO",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def serves(self) -> bool:
        assert self._process.poll() is None, self.output()
        return any(beat.pid == self.pid for beat in heartbeats(store.shared_client()))

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def stop(self) -> None:
        """SIGSTOP, and wait until it stands still; never with SQLite's write lock, which nobody would get any more."""
        with transaction.atomic():
            self.signal(signal.SIGSTOP)
            os.waitid(os.P_PID, self.pid, os.WSTOPPED)

    def wait(self) -> int:
        """Its exit status."""
        return self._process.wait(DEADLINE_S)

    def output(self) -> str:
        """Everything it wrote; waits for its end."""
        return self._process.communicate(timeout=DEADLINE_S)[0]

    def end(self) -> None:
        """Kill it. What it wrote is shown beside a failure."""
        self._process.kill()
        sys.stdout.write(self._process.communicate()[0] or "")


@pytest.fixture
def start_process() -> Iterator[StartProcess]:
    started: list[WorkerOfItsOwn] = []

    def start(*arguments: str, drain_s: float = 0) -> WorkerOfItsOwn:
        worker = WorkerOfItsOwn(*arguments, drain_s=drain_s)
        started.append(worker)
        return worker

    yield start
    for worker in started:
        worker.end()


@pytest.fixture
def expected(engine: Engine) -> list[int]:
    """The undisturbed text's tokens."""
    return alone(engine, PROMPT, SEEDED, LENGTH)


def begin(model: LanguageModel, client: redis.Redis, length: int = LENGTH) -> str:
    """A generation of so many tokens, of which some are there."""
    generation = submit(model, max_tokens=length, sampling=SEEDED, unattended=True)
    wait_until(lambda: len(token_log.read(client, generation)) >= 5)
    return generation


def assert_undisturbed(client: redis.Redis, generation: str, engine: Engine, expected: list[int]) -> None:
    wait_until(lambda: row(generation).state == GenerationState.COMPLETED)
    log = token_log.read(client, generation)
    assert tokens_of(log) == expected
    assert text_of(log) == engine.tokenizer.decode(expected)
    assert [entry.seq for entry in log] == list(range(1, len(log) + 1))
    assert end_of(log).usage.completion_tokens == row(generation).completion_tokens == LENGTH


@pytest.mark.slow
def test_a_killed_workers_text_is_continued_by_the_next_worker_to_the_token(
    start_process: StartProcess,
    model: LanguageModel,
    valkey: redis.Redis,
    engine: Engine,
    expected: list[int],
) -> None:
    first = start_process(model.name)
    generation = begin(model, valkey)
    first.signal(signal.SIGKILL)
    first.wait()
    before = len(token_log.read(valkey, generation))
    start_process(model.name)
    assert_undisturbed(valkey, generation, engine, expected)
    epochs = [entry.epoch for entry in token_log.read(valkey, generation)]
    assert epochs == [1] * before + [2] * (len(epochs) - before)
    settled = row(generation)
    assert settled.claimed_at is not None
    assert settled.first_token_at is not None
    assert settled.created_at < settled.first_token_at < settled.claimed_at, "of the worker that died"


@pytest.mark.slow
def test_a_worker_stopped_past_its_lease_and_continued_does_no_harm(
    start_process: StartProcess,
    model: LanguageModel,
    valkey: redis.Redis,
    engine: Engine,
    expected: list[int],
) -> None:
    first = start_process(model.name)
    generation = begin(model, valkey)
    first.stop()
    start_process(model.name)
    wait_until(lambda: row(generation).epoch == 2)
    first.signal(signal.SIGCONT)  # while the other one runs it
    assert_undisturbed(valkey, generation, engine, expected)
    another = submit(model, max_tokens=3)
    wait_until(lambda: row(another).state == GenerationState.COMPLETED)
    log = token_log.read(valkey, generation)
    assert len(log) == end_of(log).seq, "nothing was appended behind the end"
    first.signal(signal.SIGTERM)
    assert first.wait() == 0, "the one that was stopped went on to serve"


@pytest.mark.slow
def test_a_drained_worker_hands_over_and_exits_cleanly(
    start_process: StartProcess,
    model: LanguageModel,
    valkey: redis.Redis,
    engine: Engine,
    expected: list[int],
) -> None:
    first = start_process(model.name)
    generation = begin(model, valkey)
    first.signal(signal.SIGTERM)
    assert first.wait() == 0
    assert row(generation).state == GenerationState.RUNNING
    assert Worker.objects.get(pid=first.pid).stopped_at is not None
    start_process(model.name)
    assert_undisturbed(valkey, generation, engine, expected)


@pytest.mark.slow
def test_a_draining_worker_finishes_what_it_can_in_its_grace_period(
    start_process: StartProcess, model: LanguageModel, valkey: redis.Redis
) -> None:
    first = start_process(model.name, drain_s=60)
    generation = begin(model, valkey)
    first.signal(signal.SIGTERM)
    assert first.wait() == 0
    assert row(generation).state == GenerationState.COMPLETED
    assert row(generation).epoch == 1


@pytest.mark.slow
def test_a_second_signal_ends_a_draining_worker_at_once(
    start_process: StartProcess, model: LanguageModel, valkey: redis.Redis
) -> None:
    worker = start_process(model.name, drain_s=600)
    begin(model, valkey, ENDLESS)
    worker.signal(signal.SIGTERM)
    wait_until(lambda: any(beat.draining for beat in heartbeats(valkey)))
    worker.signal(signal.SIGTERM)
    assert worker.wait() == -signal.SIGTERM


def test_a_model_that_is_not_there_is_one_clear_line(
    start_process: StartProcess, model: LanguageModel
) -> None:
    worker = start_process("no-such-model")
    assert worker.output().strip() == (
        "CommandError: There is no model named 'no-such-model'. Known models: tiny. "
        "Add it with `manage.py model add`."
    )
    assert worker.wait() == 1


def test_a_model_that_is_not_prepared_is_one_clear_line(
    start_process: StartProcess, model: LanguageModel, tmp_path: Path
) -> None:
    LanguageModel.objects.update(directory=str(tmp_path))
    worker = start_process(model.name)
    [line] = worker.output().splitlines()
    assert line.startswith(f"CommandError: The model 'tiny' is not prepared: {tmp_path}")
    assert worker.wait() == 1


@pytest.mark.slow
def test_a_model_whose_files_are_damaged_is_one_clear_line(
    start_process: StartProcess, model: LanguageModel, tmp_path: Path
) -> None:
    damaged = shutil.copytree(model.path, tmp_path / "damaged")
    weights = damaged / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    LanguageModel.objects.update(directory=str(damaged))
    worker = start_process(model.name)
    assert worker.output().splitlines()[-1].startswith("CommandError: The model 'tiny' cannot be served: ")
    assert worker.wait() == 1


@pytest.mark.slow
def test_a_worker_says_with_what_it_multiplies(
    start_process: StartProcess, model: LanguageModel, valkey: redis.Redis
) -> None:
    worker = start_process(model.name)
    wait_until(worker.serves)
    registered = Worker.objects.get(pid=worker.pid)
    assert "reference BLAS" in registered.blas
    assert Path(f"/proc/{worker.pid}/comm").read_text().startswith("worker tiny")
    worker.signal(signal.SIGTERM)
    output = worker.output()
    assert "blas_loaded" in output
    assert f"worker={registered.id.hex}" in output
