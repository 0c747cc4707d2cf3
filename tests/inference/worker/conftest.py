"""A real worker for tests: driven tick by tick, in a thread, or as a process of its own."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import redis
from django import db

from inference.dispatch import claims, token_log
from inference.dispatch.claims import Claim
from inference.engine.engine import Engine
from inference.engine.results import StepResult
from inference.messages import Delta, End, LogEntry, Sampling
from inference.models import DrafterKind, LanguageModel
from inference.scheduler_settings import SchedulerSettings, SpeculationSettings
from inference.scheduling.speculation import SpeculationMode, Verdict
from inference.scheduling.tick import Action, PrefillLimits
from inference.worker.claim_thread import ClaimThread
from inference.worker.holdings import NOBODY, Holdings
from inference.worker.kv_memory import KvBudget, KvMemory
from inference.worker.loop import LoopEnd, TickLoop
from inference.worker.metrics import WorkerMetrics
from inference.worker.outbox import Outbox
from inference.worker.process import WorkerProcess, WorkerTimes
from inference.worker.progress import Progress
from inference.worker.publisher import TickPublisher
from inference.worker.requests import Admit, PlanRoom
from inference.worker.settlement_thread import SettlementThread
from inference.worker.speculation_profile import SpeculationProfile
from signalbox.configuration import configuration
from tests.factories import LanguageModelFactory
from tests.inference.dispatch.conftest import OwnValkey, own_valkey, wait_until
from tests.inference.doors import accepted
from tests.inference.engine.tiny_model import make_tiny_model

__all__ = ["own_valkey"]

LEASE_S = 30.0
CONTEXT_LENGTH = 8192
#: More tokens than any test waits for.
ENDLESS = 8000
SETTINGS = SchedulerSettings(
    slots=8,
    limits=PrefillLimits(chunk_tokens=16, interval=2),
    longest_stall_ms=None,
    itl_target=None,
    kv_budget_bytes=None,
    kv_watermark_percent=5,
    prefix_cache_bytes=0,
    preemption=True,
    lane_floor=4,
    # Ticks of a chunk at most, however fast this machine is: what a test says of chunks holds.
    quiet_tick_ms=0,
    speculation=SpeculationSettings(
        mode=SpeculationMode.ON,
        drafter=DrafterKind.NONE,
        draft_model=None,
        draft_model_dir=None,
        draft_tokens=4,
        grant_rounds=2,
        speculate_undecided=True,
    ),
)
GREEDY = Sampling(seed=0, temperature=0.0)
#: Token ids of no meaning; the tiny model's special ones are the first three.
PROMPT = list(range(40, 60))


@pytest.fixture(scope="session")
def roomy_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with a context that a text does not fill before a test has done something to it."""
    return make_tiny_model(tmp_path_factory.mktemp("roomy") / "model", context_length=CONTEXT_LENGTH)


@pytest.fixture
def model(transactional_db: None, valkey: redis.Redis, roomy_model_dir: Path) -> LanguageModel:
    """The tiny model, offered."""
    made: LanguageModel = LanguageModelFactory(
        name="tiny", directory=str(roomy_model_dir), context_length=CONTEXT_LENGTH, slots=4, drafter=""
    )
    return made


def no_others() -> None:
    """A look at the other workers, where there are none."""


def submit(model: LanguageModel, **changes: Any) -> str:
    """Accept one generation; its id."""
    fields = {"prompt": PROMPT, "max_tokens": 12, "sampling": GREEDY, **changes}
    return accepted(model, **fields).generation_id.hex


def text_of(log: list[LogEntry]) -> str:
    return "".join(entry.text for entry in log if isinstance(entry, Delta))


def tokens_of(log: list[LogEntry]) -> list[int]:
    return [token for entry in log if isinstance(entry, Delta) for token in entry.tokens]


def end_of(log: list[LogEntry]) -> End:
    assert log, "the log is empty"
    assert isinstance(log[-1], End), f"the log has no end: {log[-1]}"
    return log[-1]


def alone(engine: Engine, prompt: list[int], sampling: Sampling, tokens: int) -> list[int]:
    """What the model produces for this prompt with nothing beside it."""
    engine.admit("alone", prompt, sampling)
    produced: list[int] = []
    while engine.remaining("alone"):
        produced += [token for _, token in engine.prefill(["alone"], 4096).tokens]
    while len(produced) < tokens:
        produced += [token for _, token in engine.decode().tokens]
    engine.drop("alone")
    return produced[:tokens]


class GettingOn(Progress):
    """Of ticks that never stand still, however long the test takes in which there are none."""

    @property
    def age_s(self) -> float:
        return 0.0


class HandDrivenWorker:
    """Everything that a worker is on its tick thread, which is the test's: a tick runs when the test says so.

    Ended generations wait in ``settlements``, which is not started.
    """

    def __init__(
        self,
        engine: Engine,
        client: redis.Redis,
        model: str,
        *,
        name: str = "by-hand",
        lease_s: float = LEASE_S,
        settings: SchedulerSettings = SETTINGS,
    ) -> None:
        self.name = name
        self.engine = engine
        self.client = client
        self._model = model
        self._lease_s = lease_s
        self.metrics = WorkerMetrics()
        self.progress = Progress()
        self.settings = settings
        self.holdings = Holdings(settings.slots, lease_s)
        self.memory = KvMemory(
            self.holdings,
            KvBudget.of(settings, engine.device_cache_bytes, engine.kv_fixed_bytes),
            bytes_per_token=engine.kv_bytes_per_token,
            step=engine.kv_step,
        )
        self.settlements = SettlementThread(client, self.holdings, self.metrics)
        publisher = TickPublisher(client, name, self.holdings, self.metrics, self.progress)
        outbox = Outbox(publisher, self.settlements, self.holdings, self.metrics)
        self.verdicts: list[Verdict] = []
        self.loop = TickLoop(
            engine,
            client,
            self.holdings,
            outbox,
            self.metrics,
            self.progress,
            self.memory,
            settings,
            SpeculationProfile(settings.speculation, lambda _, verdict: self.verdicts.append(verdict)),
        )

    def claim_thread(
        self,
        ask: Callable[[Admit | PlanRoom], object],
        *,
        progress: Progress,
        look_around: Callable[[], object] = no_others,
    ) -> ClaimThread:
        """The thread that would claim for it, not started: what it passes on goes to ``ask``."""
        return ClaimThread(
            self.client,
            self.name,
            self._model,
            self._lease_s,
            self.holdings,
            self.memory,
            lambda: self.settings,
            self.settlements,
            self.metrics,
            ask,
            progress,
            look_around,
        )

    def claim(self, promised: str | None = None, instead_of: Mapping[str, int] = NOBODY) -> Claim:
        """Claim what is next (and fits), or what is promised the room of others, and leave it to the next tick to be
        admitted."""
        asked_at = time.monotonic()
        capacity = self.memory.capacity(leaving=instead_of)
        outcome = claims.claim(
            self.client, self.name, self._model, self._lease_s, capacity=capacity, promised=promised
        )
        claim, candidate = outcome.claim, outcome.candidate
        assert claim is not None, f"nothing waits, or nothing fits: {outcome.deferred}"
        assert candidate is not None
        self.holdings.add(
            claim.task.generation,
            claim.epoch,
            asked_at,
            lane_rank=claim.task.lane_rank,
            occupies_slot=True,
            bytes_=candidate.bytes,
            tenant=claim.task.tenant,
            awaits_room=bool(instead_of),
        )
        self.loop.ask(Admit(claim, instead_of=instead_of))
        return claim

    def turn(self) -> Action:
        return self.loop.turn()

    def turns(self, count: int) -> list[Action]:
        return [self.turn() for _ in range(count)]

    def turn_until(self, condition: Callable[[], bool]) -> None:
        for _ in range(2000):
            if condition():
                return
            self.turn()
        raise AssertionError("the condition did not become true within 2000 ticks")

    def run_dry(self) -> None:
        """Tick until nothing is left to do."""
        while self.turn() is not Action.IDLE:
            pass

    def log(self, generation: str) -> list[LogEntry]:
        return token_log.read(self.client, generation)


@pytest.fixture(scope="session")
def engine(roomy_model_dir: Path) -> Engine:
    """The tiny model on the test's thread. Tests leave it empty."""
    return Engine(roomy_model_dir)


@pytest.fixture
def worker(model: LanguageModel, engine: Engine, valkey: redis.Redis) -> Iterator[HandDrivenWorker]:
    yield HandDrivenWorker(engine, valkey, model.name)
    for key in engine.keys:
        engine.drop(key)


class WorkerInThread:
    """A whole worker with all its threads, its engine on a thread of its own."""

    def __init__(self, model: LanguageModel, times: WorkerTimes) -> None:
        self._model = model
        self._times = times
        self._made = threading.Event()
        self.process: WorkerProcess
        self.end: LoopEnd | None = None
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def start(self) -> None:
        self._thread.start()
        wait_until(lambda: self._made.is_set() or not self._thread.is_alive())
        assert self._made.is_set(), "the worker did not start"

    def _serve(self) -> None:
        try:
            self.process = WorkerProcess(
                Engine(self._model.path), self._model, self._times, configuration().pools_dir
            )
            self._made.set()
            self.end = self.process.run()
        finally:
            db.connections.close_all()

    def stop(self) -> None:
        if self._thread.is_alive():
            self.process.drain()
            self._thread.join(30)
            assert not self._thread.is_alive(), "the worker did not drain"


class DecodeSteps:
    """How many more steps all engines may decode: what a test does while there are none left comes before the next
    token, however fast this machine is."""

    def __init__(self) -> None:
        self._left = math.inf
        self._changed = threading.Condition()

    def only(self, steps: int) -> None:
        """So many from now on."""
        with self._changed:
            self._left = steps

    def more(self, steps: float = math.inf) -> None:
        """So many more, or as many as they like."""
        with self._changed:
            self._left += steps
            self._changed.notify_all()

    def take(self) -> None:
        """Wait for one. A test that has failed keeps no worker waiting for ever."""
        with self._changed:
            self._changed.wait_for(lambda: self._left > 0, 60)
            self._left -= 1


@pytest.fixture
def decode_steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[DecodeSteps]:
    """Of the workers in threads: as many as they like, until the test says otherwise."""
    steps, decode = DecodeSteps(), Engine.decode

    def counted(engine: Engine, *, more: bool = True) -> StepResult:
        steps.take()
        return decode(engine, more=more)

    monkeypatch.setattr(Engine, "decode", counted)
    yield steps
    steps.more()


TIMES = WorkerTimes(lease_s=LEASE_S, sweep_s=0.2, detach_grace_s=60, drain_s=0)


@pytest.fixture
def start_worker(model: LanguageModel) -> Iterator[Callable[..., WorkerInThread]]:
    """Starts workers in threads; they are drained when the test ends."""
    started: list[WorkerInThread] = []

    def start(times: WorkerTimes = TIMES) -> WorkerInThread:
        worker = WorkerInThread(model, times)
        worker.start()
        started.append(worker)
        return worker

    yield start
    for worker in started:
        worker.stop()


__all__ += ["OwnValkey", "wait_until"]
