"""Periodic tasks of accounts. Each may run late, twice, or beside itself."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import structlog
from celery import shared_task
from django.utils import timezone

from accounts import budget_telling, last_used, ledger, log_ins
from accounts.audit import anchors, archives, checkpoints, sealing, verification
from accounts.audit.archives import ArchiveRefused
from accounts.audit.checkpoints import CheckpointRefused
from accounts.audit.signing_keys import SigningKeyMissing
from accounts.models import AuditVerification
from accounts.sole_passes import sole_pass
from accounts.webhooks import deliveries

_SUNDAY: Final = 6
#: A walk from the first event on is made at least this often, also where Sundays were missed.
_FROM_SCRATCH_AFTER: Final = timedelta(days=8)
#: A walk that takes longer is taken to be dead; a second one beside it does no harm.
_LONGEST_WALK_S: Final = 6 * 3600

_log = structlog.get_logger(__name__)


@shared_task
def roll_up_usage() -> int:
    """Bring the hourly sums of usage up to the ledger; how many sums were written."""
    return ledger.roll_up(timezone.now())


@shared_task
def stamp_last_used() -> int:
    """Carry the keys' stamps of last use into their rows; how many rows moved."""
    return last_used.collect()


@shared_task
def record_failed_log_ins() -> int:
    """Record as one event how many failed log-ins got none of their own; how many they were."""
    return log_ins.record_count()


@shared_task
def tell_budget_events() -> int:
    """Hand on what budgets have come to, by e-mail and to webhooks; how many events were told."""
    return budget_telling.tell()


@shared_task
def send_webhooks() -> int:
    """Send the webhook messages that are due; how many attempts were made."""
    return deliveries.send_due()


@shared_task
def seal_assignments() -> int:
    """Seal the lane assignments that wait for their batch; how many."""
    return sealing.seal_alone(timezone.now())


@shared_task
def checkpoint_audit() -> bool:
    """Sign the chain's head when that is due, and bring outside what is not there yet; whether one was made."""
    now = timezone.now()
    made = None
    try:
        made = checkpoints.make_when_due(now)
    except (CheckpointRefused, SigningKeyMissing) as error:
        _log.error("audit_checkpoint_not_made", problem=str(error))
    anchors.deliver(now)
    return made is not None


@shared_task
def verify_audit(from_scratch: bool | None = None) -> bool:
    """Walk the chain from where the last walk that held has ended, on Sundays from its beginning; whether it holds.

    ``from_scratch``: what somebody has asked for instead. The chain is compared with the file of checkpoints too, which
    nobody can change together with the database, if it is on another machine.
    """
    if from_scratch is None:
        from_scratch = _is_from_scratch_due()
    with sole_pass("audit-verification", at_most_s=_LONGEST_WALK_S) as alone:
        if not alone:
            return False
        stored = verification.verify_and_store(from_scratch=from_scratch)
    if stored.fault:
        _log.error("audit_does_not_hold", **stored.fault)
    return stored.fault is None


@shared_task
def archive_audit() -> int:
    """Move what is older than the audit's settings allow in the database to archive files; how many were written."""
    try:
        return len(archives.archive(timezone.now()))
    except ArchiveRefused as refused:
        _log.error("audit_not_archived", problem=str(refused))
        return 0


def _is_from_scratch_due() -> bool:
    now = timezone.now()
    recent = AuditVerification.objects.filter(first_sequence=1, started_at__gt=now - _FROM_SCRATCH_AFTER)
    return now.weekday() == _SUNDAY or not recent.exists()
