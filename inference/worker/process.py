"""One worker: its threads, from start to drain."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import redis
import structlog
from django import db
from django.utils import timezone

from inference import language_models
from inference.models import LanguageModel, Worker
from inference.scheduler_settings import SchedulerSettings, settings_of
from inference.worker.claim_thread import ClaimThread
from inference.worker.drafting import Drafting, drafts_otherwise
from inference.worker.heartbeat_thread import DetachedReaders, Pulse, heartbeat_thread
from inference.worker.holdings import Holdings
from inference.worker.housekeeping import SWEEP, SettingsWatch, housekeeping_thread
from inference.worker.kv_memory import KvBudget, KvMemory
from inference.worker.lease_thread import LeaseRenewal, lease_thread
from inference.worker.loop import LoopEnd, TickLoop
from inference.worker.metrics import WorkerMetrics
from inference.worker.neighbours import Neighbours
from inference.worker.outbox import Outbox
from inference.worker.progress import Progress
from inference.worker.published_watch import PublishedWatch
from inference.worker.publisher import TickPublisher
from inference.worker.requests import Drain, Publish, Reconfigure, Rule, UseDrafter
from inference.worker.settlement_thread import SettlementThread
from inference.worker.speculation_profile import SpeculationProfile
from inference.worker.verdict_watch import VerdictWatch
from signalbox import store

if TYPE_CHECKING:
    from inference.engine.engine import Engine

_log = structlog.get_logger(__name__)

#: How long a stopping worker waits for its last settlements. What is left then, the next owner settles.
_FLUSH_S: Final = 5.0
_JOIN_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTimes:
    """How long a worker waits for what, in seconds; named as in the configuration."""

    lease_s: float
    sweep_s: float
    detach_grace_s: float
    drain_s: float


class WorkerProcess:
    """Serves one model with one engine. Made and run on the engine's thread."""

    def __init__(self, engine: Engine, model: LanguageModel, times: WorkerTimes, pools_dir: Path) -> None:
        """Registers the worker, and makes its drafter. Its Valkey client and threads are its own."""
        self._model = model
        self._times = times
        settings = settings_of(model)
        self._engine = engine
        self._drafting = Drafting(model, engine.tokenizer, pools_dir)
        engine.set_drafter(self._drafting.factory(settings.speculation))
        self._holdings = Holdings(settings.slots, times.lease_s)
        self._memory = KvMemory(
            self._holdings,
            self._budget(settings),
            bytes_per_token=engine.kv_bytes_per_token,
            step=engine.kv_step,
        )
        self._row = Worker.objects.create(
            model=model,
            hostname=socket.gethostname(),
            pid=os.getpid(),
            device=engine.device,
            blas=engine.blas,
            started_at=timezone.now(),
            last_seen_at=timezone.now(),
        )
        self.id: Final = self._row.id.hex
        # Before the threads are made: they take the log's fields over.
        structlog.contextvars.bind_contextvars(worker=self.id, model=model.name)
        self.metrics: Final = WorkerMetrics()
        self._client = store.sync_client()
        self._neighbours = Neighbours(
            self._client,
            self.id,
            model.name,
            times.lease_s,
            self._memory,
            served_before=model.kv_capacity_tokens is not None,
        )
        self._settings = SettingsWatch(model.id, settings, self._reconfigure)
        self._verdicts = VerdictWatch(
            model.id,
            f"{engine.device}, {engine.blas}",
            lambda: self._settings.current.speculation,
            lambda: self.loop.batch_cost,
            lambda verdict: self.loop.ask(Rule(verdict)),
        )
        self._progress = progress = Progress()
        self._settlements = SettlementThread(self._client, self._holdings, self.metrics, self._row)
        publisher = TickPublisher(self._client, self.id, self._holdings, self.metrics, progress)
        self.loop: Final = TickLoop(
            engine,
            self._client,
            self._holdings,
            Outbox(publisher, self._settlements, self._holdings, self.metrics),
            self.metrics,
            progress,
            self._memory,
            settings,
            SpeculationProfile(settings.speculation, self._verdicts.settled),
        )
        self._verdicts()  # before the first tick: what is known is not measured again
        self._claims = ClaimThread(
            self._client,
            self.id,
            model.name,
            times.lease_s,
            self._holdings,
            self._memory,
            lambda: self._settings.current,
            self._settlements,
            self.metrics,
            self.loop.ask,
            progress,
            self._neighbours,
        )
        self._leases = lease_thread(
            LeaseRenewal(
                self._client, self.id, times.lease_s, self._holdings, progress, self.metrics, self.loop.ask
            ),
            times.lease_s,
        )
        self._pulse = Pulse(
            self._client,
            self.id,
            model.name,
            self.loop,
            self._holdings,
            progress,
            self.metrics,
            self._memory,
            slot_bytes=engine.kv_fixed_bytes,
            blas=engine.blas,
            device=engine.device,
        )
        published = PublishedWatch(model, engine.tokenizer, lambda prefixes: self.loop.ask(Publish(prefixes)))
        self._housekeeping = housekeeping_thread(
            self._row.id,
            self._settings,
            published,
            self._verdicts,
            self._drafting.pools.synchronise,
            self._follow_drafter,
            self._tell_capacity,
            times.sweep_s,
        )
        self._heartbeat = heartbeat_thread(
            self._pulse,
            self._neighbours,
            DetachedReaders(self._client, times.detach_grace_s, self.loop, self.loop.ask),
            recovered=lambda: self._housekeeping.hurry(SWEEP),
        )
        self._tell_capacity_if_possible()

    def run(self) -> LoopEnd:
        """Serve until drained, or until the backend is broken; then let go of everything in order."""
        db.connections.close_all()  # this thread needs none until the end
        threads = (self._settlements, self._leases, self._housekeeping, self._claims, self._heartbeat)
        for thread in threads:
            thread.start()
        _log.info("worker_serving", slots=self._holdings.slots)
        try:
            end = self.loop.run()
        finally:
            self._close()
        _log.info("worker_stopped", reason=end.value)
        return end

    def drain(self) -> None:
        """Claim nothing more; end when what runs has ended, or after the grace period. For any thread."""
        self._pulse.ready, self._pulse.draining = False, True
        self._claims.stop()
        self.loop.ask(Drain(self._times.drain_s))
        self._heartbeat.hurry("heartbeat")

    def _budget(self, settings: SchedulerSettings) -> KvBudget:
        beside = self._engine.device_cache_bytes - self._engine.drafter.memory_bytes
        return KvBudget.of(settings, max(0, beside), fixed_bytes=self._engine.kv_fixed_bytes)

    def _reconfigure(self, settings: SchedulerSettings, earlier: SchedulerSettings) -> None:
        """Room is what it is from now on; the ticks follow at the next safe point. On the housekeeping thread."""
        self._make_room(settings)
        self._holdings.resize(settings.slots)
        # Together, so that no more than a round between them is taken for the other drafter's.
        self.loop.ask(Reconfigure(settings))
        if drafts_otherwise(settings.speculation, earlier.speculation):
            self.loop.ask(UseDrafter(self._drafting.factory(settings.speculation)))

    def _follow_drafter(self) -> None:
        """What the drafter holds grows and shrinks, and room for caches with it. On the housekeeping thread."""
        settings = self._settings.current
        if self._budget(settings) != self._memory.budget:
            self._make_room(settings)

    def _make_room(self, settings: SchedulerSettings) -> None:
        self._memory.budget = self._budget(settings)
        self._tell_capacity_if_possible()

    def _tell_capacity_if_possible(self) -> None:
        """At once, unless Valkey is away: the housekeeping thread does it when it is back."""
        try:
            self._tell_capacity()
        except redis.RedisError as error:
            _log.warning("neighbours_unknown", error=str(error))

    def _tell_capacity(self) -> None:
        """The longest sequence that a worker of the model which takes work on can hold, for the door. While none does,
        what is known of those before holds.

        The heartbeat goes first: what is let in by this word may come to another worker at once, and that one is to
        know of whom it can be left to. Raises ``redis.RedisError`` if it cannot be told, or others cannot be asked.
        """
        self._pulse.beat()
        self._neighbours()
        gets_on = self._progress.age_s <= self._times.lease_s  # as the others reckon it by the heartbeat
        own = self._memory.longest_sequence() if self._pulse.ready and gets_on else None
        told = [tokens for tokens in (own, self._neighbours.longest_now()) if tokens is not None]
        if told:
            language_models.note_capacity(self._model.id, max(told))

    def _close(self) -> None:
        self._pulse.ready = False
        self._claims.stop()
        self._claims.join(_JOIN_S)
        self.loop.hand_back()
        self._drafting.pools.synchronise()
        if not self._settlements.flush(_FLUSH_S):
            _log.warning("settlements_left_to_the_next_owner")
        threads = (self._heartbeat, self._leases, self._housekeeping, self._settlements)
        for thread in threads:
            thread.stop()
        for thread in threads:
            thread.join(_JOIN_S)
        try:
            self._pulse.retire()
        except redis.RedisError as error:
            _log.warning("heartbeat_left_to_expire", error=str(error))
        try:
            Worker.objects.filter(id=self._row.id).update(stopped_at=timezone.now())
        except db.Error as error:
            _log.warning("worker_row_left_open", error=str(error))
        self._client.close()
