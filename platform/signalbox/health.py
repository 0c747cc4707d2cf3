"""Whether this process lives, and whether the site can serve.

``live`` is for whoever restarts processes: load, a lost database or a lost store never make it false. ``ready`` is for
whoever sends requests here: it is false when the models' workers make no progress.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

import redis
import structlog
from asgiref.sync import sync_to_async
from django.db import DatabaseError
from django.http import HttpRequest, JsonResponse
from django.views.decorators.http import require_safe

from accounts.audit import triggers
from inference.dispatch.heartbeats import heartbeats
from inference.messages import Heartbeat
from inference.models import LanguageModel
from signalbox import store
from signalbox.configuration import configuration

_log = structlog.get_logger(__name__)


class NotReady(StrEnum):
    """Why the site cannot serve."""

    DATABASE_UNREACHABLE = "database_unreachable"
    STORE_UNREACHABLE = "store_unreachable"
    #: The database would let somebody change what the audit has chained.
    AUDIT_UNGUARDED = "audit_unguarded"
    #: No model has a worker.
    NOTHING_SERVED = "nothing_served"
    #: A model was being served, and its worker is gone.
    WORKER_GONE = "worker_gone"
    #: A model has workers, and none of them gets anywhere.
    NO_PROGRESS = "no_progress"


class Service(StrEnum):
    """How one model is served."""

    SERVED = "served"
    LOADING = "loading"
    DRAINING = "draining"
    STALLED = "stalled"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Readiness:
    """The verdict, its reason, and the state of each model that has or had a worker."""

    reason: NotReady | None
    models: dict[str, Service]


def judge(
    beats: Collection[Heartbeat], expected: Collection[str], *, now: float, progress_within_s: float
) -> Readiness:
    """Readiness from the workers' last words.

    ``expected`` are the models whose workers were not stopped in order. Times are Unix seconds; a worker makes progress
    when its last finished tick, or its decision that there is nothing to do, is at most ``progress_within_s`` old.
    """
    models = {
        model: _service([beat for beat in beats if beat.model == model], now - progress_within_s)
        for model in sorted({*expected, *(beat.model for beat in beats)})
    }
    if Service.GONE in models.values():
        return Readiness(NotReady.WORKER_GONE, models)
    if Service.STALLED in models.values():
        return Readiness(NotReady.NO_PROGRESS, models)
    if Service.SERVED not in models.values():
        return Readiness(NotReady.NOTHING_SERVED, models)
    return Readiness(None, models)


def _service(beats: list[Heartbeat], progressed_since: float) -> Service:
    if not beats:
        return Service.GONE
    serving = [beat for beat in beats if beat.ready and not beat.draining]
    if not serving:
        return Service.DRAINING if all(beat.draining for beat in beats) else Service.LOADING
    if all(beat.progressed_at < progressed_since for beat in serving):
        return Service.STALLED
    return Service.SERVED


@require_safe
async def live(request: HttpRequest) -> JsonResponse:
    """The process answers."""
    return JsonResponse({"status": "live"})


@require_safe
async def ready(request: HttpRequest) -> JsonResponse:
    """200 when requests can be served, else 503 with the reason."""
    readiness = await sync_to_async(_readiness)()
    body = {
        "status": "not_ready" if readiness.reason else "ready",
        "reason": readiness.reason,
        "models": readiness.models,
    }
    return JsonResponse(body, status=503 if readiness.reason else 200)


def expected_models() -> set[str]:
    """The models whose workers were not stopped in order."""
    served = LanguageModel.objects.filter(retired_at=None, workers__stopped_at=None, workers__isnull=False)
    return set(served.values_list("name", flat=True).distinct())


def _readiness() -> Readiness:
    try:
        expected = expected_models()
        unguarded = triggers.missing()
    except DatabaseError:
        _log.warning("not_ready", reason=NotReady.DATABASE_UNREACHABLE.value, exc_info=True)
        return Readiness(NotReady.DATABASE_UNREACHABLE, {})
    if unguarded:
        _log.error("not_ready", reason=NotReady.AUDIT_UNGUARDED.value, triggers=unguarded)
        return Readiness(NotReady.AUDIT_UNGUARDED, {})
    try:
        beats = heartbeats(store.shared_client())
    except redis.RedisError:
        _log.warning("not_ready", reason=NotReady.STORE_UNREACHABLE.value, exc_info=True)
        return Readiness(NotReady.STORE_UNREACHABLE, {})
    return judge(beats, expected, now=time.time(), progress_within_s=configuration().lease_seconds)
