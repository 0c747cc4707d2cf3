"""Periodic tasks of inference. Each may run late, twice, or beside itself."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

import structlog
from celery import shared_task
from django.db.models import QuerySet
from django.utils import timezone

from accounts.tenancy import every_tenant
from inference.models import GenerationOutput, GenerationRequest, GenerationRun
from inference.models.generation import TERMINAL_STATES
from signalbox.configuration import configuration

#: Rows deleted in one transaction, so that requests never wait long for the database's write lock.
BATCH: Final = 500

_log = structlog.get_logger(__name__)


@shared_task
def delete_old_requests() -> int:
    """Delete prompts, outputs and runs of generations that ended more than ``request_retention_days`` ago.

    The generation itself stays, with its usage and lane: it says that something ran, not what. How many rows.
    """
    before = timezone.now() - timedelta(days=configuration().request_retention_days)
    old = {"generation__state__in": TERMINAL_STATES, "generation__ended_at__lt": before}
    with every_tenant("retention is the same for every tenant"):
        deleted = sum(
            _delete(model.objects.filter(**old))
            for model in (GenerationRequest, GenerationOutput, GenerationRun)
        )
    if deleted:
        _log.info("old_requests_deleted", rows=deleted, ended_before=before.isoformat())
    return deleted


def _delete(rows: QuerySet[Any]) -> int:
    deleted = 0
    while batch := list(rows.order_by("pk").values_list("pk", flat=True)[:BATCH]):
        deleted += rows.model.objects.filter(pk__in=batch).delete()[0]
    return deleted
