"""How a generation is ended before its own end, by whoever may: idempotent, and lost by no crash.

The database is told first. If this process dies before Valkey is told, the sweep (``inference.recovery``) repeats it.
"""

from __future__ import annotations

import time
from uuid import UUID

import redis
import structlog
from django.utils import timezone

from accounts.tenancy import every_tenant
from inference.dispatch import publishing, token_log
from inference.dispatch.queue import Withdrawal, WithdrawOutcome, dispatch_queue
from inference.messages import CancelReason, End, produced_usage
from inference.models import Generation, RunOutcome
from inference.models.generation import LIVE_STATES
from inference.runs import EventKind, RunRecord
from inference.settlement import settle, settle_from_log
from signalbox import store
from signalbox.write_transactions import write_transaction

_log = structlog.get_logger(__name__)


def cancel(generation_id: UUID, reason: CancelReason) -> None:
    """End the generation: at once while it is queued, within a tick of its worker while it runs.

    Authorization is the caller's. Does nothing to a generation that has ended. The first reason given stays.
    """
    with every_tenant("the caller has authorized this generation"):
        live = Generation.objects.filter(id=generation_id, state__in=LIVE_STATES)
        with write_transaction():  # a crowd's clients may all leave at once
            requested = live.filter(cancel_requested_at=None).update(
                cancel_requested_at=timezone.now(), cancel_reason=reason.value
            )
        if not requested:
            return
        generation: Generation = Generation.objects.get(id=generation_id)
    try:
        carry_out(generation)
    except redis.RedisError:
        _log.warning("cancel_left_to_sweep", generation=generation_id.hex, exc_info=True)


def end_unclaimed(generation: Generation, reason: CancelReason) -> bool:
    """End the generation if no worker has ever claimed it: it is taken out of the queue first, so that none can.

    False: one has it, or had it, or it has ended. May be repeated, which also finishes what a crash left half done.
    Raises ``redis.RedisError`` when Valkey cannot be reached.
    """
    withdrawal = dispatch_queue().withdraw(generation.id.hex, reason, generation.epoch, never_claimed=True)
    match withdrawal.outcome:
        case WithdrawOutcome.QUEUED | WithdrawOutcome.UNKNOWN:
            return _end_withdrawn(generation, reason, withdrawal)
        case WithdrawOutcome.ENDED:
            return settle_from_log(generation.id)
        case WithdrawOutcome.RUNNING:
            return False


def carry_out(generation: Generation) -> None:
    """Do what a cancel that the database knows of asks for: take it out of the queue and settle it, or tell its worker.

    May be repeated. Raises ``redis.RedisError`` when Valkey cannot be reached.
    """
    reason = CancelReason(generation.cancel_reason)
    withdrawal = dispatch_queue().withdraw(generation.id.hex, reason, generation.epoch)
    match withdrawal.outcome:
        case WithdrawOutcome.QUEUED | WithdrawOutcome.UNKNOWN:
            _end_withdrawn(generation, reason, withdrawal)
        case WithdrawOutcome.ENDED:
            settle_from_log(generation.id)
        case WithdrawOutcome.RUNNING:
            pass


def _end_withdrawn(generation: Generation, reason: CancelReason, withdrawal: Withdrawal) -> bool:
    """Write its end and settle it. False: somebody else has settled it."""
    client = store.shared_client()
    entries = token_log.read(client, generation.id.hex)
    end = End(
        seq=withdrawal.last_seq + 1,
        epoch=withdrawal.epoch,
        state=reason.end_state,
        # A prompt that was never run costs nothing; one that was (before its worker died) costs what it made.
        usage=produced_usage(generation.prompt_tokens, entries),
        cancel_reason=reason,
    )
    if publishing.append_end(client, generation.id.hex, withdrawal.epoch, end):
        return settle(
            generation.id, withdrawal.epoch, end, run=_withdrawn(generation, withdrawal.epoch, reason)
        )
    return settle_from_log(generation.id)


def _withdrawn(generation: Generation, epoch: int, reason: CancelReason) -> RunRecord:
    """What stands for the epoch that no worker ran."""
    now = time.time()
    waited_s = round(max(0.0, now - generation.created_at.timestamp()), 4)
    return RunRecord(
        generation=generation.id,
        epoch=epoch,
        claimed_at=now,
        ended_at=now,
        outcome=RunOutcome.WITHDRAWN,
        events=[(waited_s, EventKind.CANCELLED, {"reason": reason.value})],
    )
