"""Periodic tasks of inference. Each may run late, twice, or beside itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Final

import structlog
from celery import shared_task
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from accounts import audit
from accounts.ledger_findings import Finding
from accounts.principal import Actor
from accounts.tenancy import every_tenant
from inference import idempotency, ledger_check, recovery
from inference.models import GenerationOutput, GenerationRequest, GenerationRun
from inference.models.generation import TERMINAL_STATES
from signalbox.configuration import configuration

#: Rows deleted in one transaction, so that requests never wait long for the database's write lock.
BATCH: Final = 500
#: Findings of one check of the ledger that are logged one by one; the last line has their number.
MOST_TOLD: Final = 100

_log = structlog.get_logger(__name__)


@shared_task
def delete_old_requests() -> int:
    """Delete prompts, outputs and runs of generations that ended more than ``request_retention_days`` ago.

    The generation itself stays, with its usage and lane: it says that something ran, not what. How many rows.
    """
    days = configuration().request_retention_days
    before = timezone.now() - timedelta(days=days)
    old = {"generation__state__in": TERMINAL_STATES, "generation__ended_at__lt": before}
    with every_tenant("retention is the same for every tenant"):
        deleted = _delete(
            [model.objects.filter(**old) for model in (GenerationRequest, GenerationOutput, GenerationRun)],
            {"request_retention_days": days, "ended_before": before},
        )
    if deleted:
        _log.info("old_requests_deleted", rows=deleted, ended_before=before.isoformat())
    return deleted


@shared_task
def verify_ledger() -> int:
    """Prove that the books hold, and tell in the log and the metrics where they do not; how many findings.

    It repairs nothing: that is an operator's to decide (``manage.py ledger verify --repair``).
    """
    told = 0

    def tell(finding: Finding) -> None:
        nonlocal told
        told += 1
        if told <= MOST_TOLD:
            _log.error(
                "ledger_finding",
                code=finding.code.value,
                kind=finding.subject.kind,
                id=finding.subject.id,
                tenant=str(finding.tenant_id),
                found=dict(finding.found),
                expected=dict(finding.expected),
            )

    report = ledger_check.verify(tell)
    ledger_check.keep(report)
    if told:
        _log.error("ledger_does_not_hold", findings={code.value: n for code, n in report.found.items()})
    return told


@shared_task
def delete_old_idempotency_keys() -> int:
    """Delete the names of requests that stand for nothing any more; how many."""
    with every_tenant("names are kept equally long for every tenant"):
        return idempotency.delete_old()


@shared_task
def end_overdue() -> int:
    """End what has waited or run for too long, or for whom access has ended; how many.

    Workers do this too, and sooner, while any live: without one, what waits would hold its budget for ever.
    """
    return recovery.end_waits() + recovery.expire_overdue() + recovery.cancel_revoked()


def _delete(kinds: Iterable[QuerySet[Any]], by_rule: Mapping[str, Any]) -> int:
    """Delete all of ``kinds``, in batches; how many rows. The first one records that it is done, and ``by_rule``."""
    deleted = 0
    for rows in kinds:
        while batch := list(rows.order_by("pk").values_list("pk", flat=True)[:BATCH]):
            with transaction.atomic():
                first = not deleted
                deleted += rows.model.objects.filter(pk__in=batch).delete()[0]
                if first:
                    kept = audit.ObjectRef("retention", "requests", "prompts, answers and runs")
                    audit.record(Actor.system("retention"), "retention.apply", kept, None, by_rule)
    return deleted
