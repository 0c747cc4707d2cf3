"""What heals without anybody asking: sweeps over the live generations, each idempotent and safe beside itself.

A worker's housekeeping calls them all the time, so that healing needs no other process; every other caller may too.
"""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import structlog
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils import timezone

from accounts.models import Membership
from accounts.tenancy import every_tenant
from inference.cancellation import cancel, carry_out, end_unclaimed
from inference.dispatch.queue import dispatch_queue
from inference.messages import CancelReason, task_decoder
from inference.models import Generation, GenerationRequest
from inference.models.generation import LIVE_STATES, GenerationState
from inference.settlement import settle_from_log
from signalbox.configuration import configuration

_log = structlog.get_logger(__name__)


def sweep() -> int:
    """Put every accepted generation that is not in the queue back into it; repeat cancels that got lost.

    Returns how many needed it. Raises ``redis.RedisError`` when Valkey cannot be reached.
    """
    healed = 0
    with every_tenant("accepted work of every tenant must run"):
        live = _live().only("id", "epoch", "cancel_requested_at", "cancel_reason", "prompt_tokens")
        generations = list(live.order_by("created_at"))
        here = dispatch_queue().contains([generation.id.hex for generation in generations])
        for generation in generations:
            if generation.cancel_requested_at is not None:
                carry_out(generation)
                healed += 1
            elif generation.id.hex not in here:
                healed += _bring_back(generation)
    if healed:
        _log.info("swept", generations=healed)
    return healed


def cancel_revoked() -> int:
    """Cancel what runs for keys, members and tenants whose access has ended; returns how many."""
    with every_tenant("access may end in every tenant"):
        membership = Membership.objects.filter(
            tenant=OuterRef("tenant"), user=OuterRef("user"), ended_at=None
        )
        revoked = _live().filter(
            Q(api_key__revoked_at__isnull=False)
            | Q(tenant__closed_at__isnull=False)
            | Q(user__isnull=False)
            & (Q(user__is_active=False) | Q(user__must_change_password=True) | ~Exists(membership)),
        )
        return _cancel_all(revoked, CancelReason.ACCESS_REVOKED)


def expire_overdue() -> int:
    """Cancel what has waited or run for longer than ``generation_timeout_seconds``; returns how many."""
    oldest = timezone.now() - timedelta(seconds=configuration().generation_timeout_seconds)
    with every_tenant("the limit holds for every tenant"):
        return _cancel_all(_live().filter(created_at__lt=oldest), CancelReason.TIMED_OUT)


def end_waits() -> int:
    """End what has waited for longer than its entitlement lets it (``queue_deadline``); returns how many.

    Only what no worker has ever claimed: whatever runs, or ran until it was preempted or its worker died, goes on.
    Raises ``redis.RedisError`` when Valkey cannot be reached.
    """
    with every_tenant("the waits of every tenant end"):
        overdue = list(
            _live().filter(
                state=GenerationState.QUEUED, queue_deadline__lte=timezone.now(), cancel_requested_at=None
            )
        )
        ended = sum(end_unclaimed(generation, CancelReason.QUEUE_WAIT_EXCEEDED) for generation in overdue)
    if ended:
        _log.info("waits_ended", generations=ended)
    return ended


def _live() -> QuerySet[Generation]:
    live: QuerySet[Generation] = Generation.objects.filter(state__in=LIVE_STATES)
    return live


def _cancel_all(generations: QuerySet[Generation], reason: CancelReason) -> int:
    ids: list[UUID] = list(generations.filter(cancel_requested_at=None).values_list("id", flat=True))
    for generation_id in ids:
        cancel(generation_id, reason)
    return len(ids)


def _bring_back(generation: Generation) -> bool:
    request = GenerationRequest.objects.filter(generation=generation).first()
    if request is None:
        _log.error("live_generation_without_request", generation=generation.id.hex)
        return False
    task = task_decoder.decode(request.task)
    return dispatch_queue().enqueue(task, generation.epoch) or settle_from_log(generation.id)
