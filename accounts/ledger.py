"""What was used: one entry per generation, written at its settlement. Every other view of usage is a sum of them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.db import transaction
from django.db.models import Count, Max, Min, Sum
from django.db.models.functions import Coalesce, TruncHour

from accounts import reservations
from accounts.models import LedgerEntry, UsageRollup
from accounts.tenancy import every_tenant, tenant_scope

_ROLLUP_NAMESPACE = uuid.UUID("5b0e7a52-3f43-4a3c-9d6c-2f2f4b8f9d11")
_COUNTS = (
    "generations",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "accepted_prediction_tokens",
    "rejected_prediction_tokens",
)


@dataclass(frozen=True, slots=True)
class TokenTotals:
    """Tokens of a set of ledger entries. ``cached`` ones are part of ``prompt``."""

    generations: int
    prompt: int
    cached: int
    completion: int


def settle(
    *,
    generation_id: uuid.UUID,
    tenant_id: uuid.UUID,
    api_key_id: uuid.UUID | None,
    user_id: uuid.UUID | None,
    model: str,
    lane: str,
    prompt_tokens: int,
    cached_tokens: int,
    completion_tokens: int,
    accepted_prediction_tokens: int,
    rejected_prediction_tokens: int,
    at: datetime,
) -> LedgerEntry:
    """Write a generation's entry and let its reservation go, in the transaction that settles it.

    Raises ``IntegrityError`` if it has one: settling twice is a bug of the caller's, and must not add up.
    """
    with tenant_scope(tenant_id):
        reservations.settle(generation_id, prompt_tokens + completion_tokens, at)
        entry: LedgerEntry = LedgerEntry.objects.create(
            generation_id=generation_id,
            tenant_id=tenant_id,
            api_key_id=api_key_id,
            user_id=user_id,
            model=model,
            lane=lane,
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
            completion_tokens=completion_tokens,
            accepted_prediction_tokens=accepted_prediction_tokens,
            rejected_prediction_tokens=rejected_prediction_tokens,
            settled_at=at,
        )
    return entry


def totals(*, since: datetime) -> TokenTotals:
    """What the tenants in scope used since then, from the ledger itself."""
    sums = LedgerEntry.objects.filter(settled_at__gte=since).aggregate(
        generations=Count("generation_id"),
        prompt=Coalesce(Sum("prompt_tokens"), 0),
        cached=Coalesce(Sum("cached_tokens"), 0),
        completion=Coalesce(Sum("completion_tokens"), 0),
    )
    return TokenTotals(**sums)


def roll_up(now: datetime) -> int:
    """Sum the ledger into hours, from the last hour that was summed up to now; returns how many sums were written.

    The hour before the last one is summed again: a settlement may have been committed after it was read. Sums
    are replaced, never added to, and a row's id follows from what it sums: this may be repeated, and run beside itself.
    """
    with every_tenant("usage is summed for every tenant"):
        last = UsageRollup.objects.aggregate(last=Max("hour"))["last"]
        if last is None:
            return _sum_from(LedgerEntry.objects.aggregate(first=Min("settled_at"))["first"])
        return _sum_from(min(last, _hour_of(now)) - timedelta(hours=1))


def rebuild() -> int:
    """Throw all sums away and make them anew from the ledger; returns how many there are."""
    with every_tenant("usage is summed for every tenant"), transaction.atomic():
        UsageRollup.objects.all().delete()
        return _sum_from(LedgerEntry.objects.aggregate(first=Min("settled_at"))["first"])


def _sum_from(start: datetime | None) -> int:
    if start is None:
        return 0
    sums = (
        LedgerEntry.objects.filter(settled_at__gte=_hour_of(start))
        .annotate(hour=TruncHour("settled_at", tzinfo=UTC))
        .values("hour", "tenant_id", "api_key_id", "model", "lane")
        .annotate(
            generations=Count("generation_id"),
            prompt=Sum("prompt_tokens"),
            cached=Sum("cached_tokens"),
            completion=Sum("completion_tokens"),
            accepted=Sum("accepted_prediction_tokens"),
            rejected=Sum("rejected_prediction_tokens"),
        )
        .order_by("hour")
    )
    rows = [
        UsageRollup(
            id=_rollup_id(row),
            hour=row["hour"],
            tenant_id=row["tenant_id"],
            api_key_id=row["api_key_id"],
            model=row["model"],
            lane=row["lane"],
            generations=row["generations"],
            prompt_tokens=row["prompt"],
            cached_tokens=row["cached"],
            completion_tokens=row["completion"],
            accepted_prediction_tokens=row["accepted"],
            rejected_prediction_tokens=row["rejected"],
        )
        for row in sums
    ]
    UsageRollup.objects.bulk_create(
        rows, update_conflicts=True, unique_fields=["id"], update_fields=list(_COUNTS), batch_size=500
    )
    return len(rows)


def _rollup_id(row: Mapping[str, object]) -> uuid.UUID:
    parts = [str(row[name]) for name in ("hour", "tenant_id", "api_key_id", "model", "lane")]
    return uuid.uuid5(_ROLLUP_NAMESPACE, "\n".join(parts))


def _hour_of(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
