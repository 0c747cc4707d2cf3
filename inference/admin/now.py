"""What is running now: the admin's landing page. A few queries and one look at the heartbeats, whatever the load."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

import redis
import structlog
from django.db.models import Count
from django.http import HttpRequest
from django.utils import timezone

from accounts import ledger
from accounts.ledger import TokenTotals
from accounts.models import Lane
from inference.admin.kv_alarm import kv_alarm
from inference.admin.missing_workers import missing
from inference.admin.running import Doing, RunningNow, still_running, told_by, without_ended
from inference.dispatch import heartbeats
from inference.messages import Heartbeat
from inference.models import Generation, GenerationState, LanguageModel, Worker
from inference.models.generation import LIVE_STATES
from signalbox import store
from signalbox.configuration import configuration

_RUNNING_SHOWN = 12
_FAILURES_SHOWN = 6
_FAILURES_OF = timedelta(hours=24)

_log = structlog.get_logger(__name__)


class WorkerState(StrEnum):
    """What a worker does, as far as it can be told from outside."""

    SERVING = "serving"
    IDLE = "idle"
    STARTING = "starting"
    DRAINING = "draining"
    STUCK = "stuck"
    SILENT = "silent"
    #: Nobody was heard, because Valkey cannot be asked: it may be silent, or not.
    UNKNOWN = "unknown"
    STOPPED = "stopped"
    #: It ended without a word, and nobody misses it: another took its place, or it was long ago.
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class WorkerNow:
    """One living worker: how many of its slots are taken, by what, and what it has done since it started."""

    heartbeat: Heartbeat
    state: WorkerState
    progress_age_s: float
    generated_tokens: int

    @property
    def taken(self) -> int:
        return self.heartbeat.decoding + self.heartbeat.prefilling

    @property
    def free(self) -> int:
        return max(0, self.heartbeat.slots - self.taken)


@dataclass(frozen=True, slots=True)
class LaneNow:
    """How many generations of a lane wait and run."""

    name: str
    queued: int
    running: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """The whole page. ``workers`` is None when Valkey cannot be asked; nobody knows then who is ``missing``.

    ``alarms``: models whose settings have their requests refused.
    """

    alarms: list[str]
    workers: list[WorkerNow] | None
    missing: list[Worker]
    lanes: list[LaneNow]
    running: list[RunningNow]
    failures: list[Generation]
    hour: TokenTotals

    @property
    def queued_total(self) -> int:
        return sum(lane.queued for lane in self.lanes)

    @property
    def running_total(self) -> int:
        return sum(lane.running for lane in self.lanes)


def dashboard(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """The landing page's context, as django-unfold asks for it."""
    return {**context, "now": now()}


def now() -> Now:
    """Look at everything once. First at the heartbeats: what they tell of is then listed, or known to have ended."""
    at = timezone.now()
    beats = living()
    live = Generation.objects.filter(state__in=LIVE_STATES)
    counts = {
        (row["lane_id"], row["state"]): row["n"]
        for row in live.order_by().values("lane_id", "state").annotate(n=Count("id"))
    }
    failed = Generation.objects.filter(state=GenerationState.FAILED, created_at__gte=at - _FAILURES_OF)
    running = list(
        live.filter(state=GenerationState.RUNNING)
        .select_related("tenant", "model")
        .order_by("created_at")[:_RUNNING_SHOWN]
    )
    still = still_running(beats or ())
    doing = {generation: done for beat in beats or () for generation, done in told_by(beat).items()}
    return Now(
        alarms=[kv_alarm(model, beats) for model in LanguageModel.objects.all() if model.lacks_kv_memory],
        workers=None if beats is None else [_worker_now(beat, still, at.timestamp()) for beat in beats],
        missing=[] if beats is None else missing({beat.worker for beat in beats}, at),
        lanes=[
            LaneNow(
                name,
                counts.get((name, GenerationState.QUEUED), 0),
                counts.get((name, GenerationState.RUNNING), 0),
            )
            for name in Lane.objects.values_list("name", flat=True)
        ],
        running=[RunningNow(one, doing[one.id] if one.id in still else Doing.NOTHING) for one in running],
        failures=list(failed.select_related("tenant", "model").order_by("-created_at")[:_FAILURES_SHOWN]),
        hour=ledger.totals(since=at - timedelta(hours=1)),
    )


def living() -> list[Heartbeat] | None:
    """The heartbeats of the living workers, or None when Valkey cannot be asked."""
    try:
        return heartbeats.heartbeats(store.shared_client())
    except redis.RedisError:
        _log.warning("heartbeats_unavailable", exc_info=True)
        return None


def state_of(beat: Heartbeat, at: float) -> WorkerState:
    """What a worker with this heartbeat does. ``at`` in Unix seconds."""
    if at - beat.progressed_at > configuration().lease_seconds:
        return WorkerState.STUCK
    if beat.draining:
        return WorkerState.DRAINING
    if not beat.ready:
        return WorkerState.STARTING
    return WorkerState.SERVING if beat.decoding or beat.prefilling else WorkerState.IDLE


def _worker_now(beat: Heartbeat, running: Collection[UUID], at: float) -> WorkerNow:
    beat = without_ended(beat, running)
    generated = sum(n for name, n in beat.counters.items() if name.startswith("generated_tokens_total"))
    return WorkerNow(
        heartbeat=beat,
        state=state_of(beat, at),
        progress_age_s=max(0.0, at - beat.progressed_at),
        generated_tokens=int(generated),
    )
