"""What was used: one entry per generation, written at its settlement. Every other view of usage is a sum of them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final

from django.db import transaction
from django.db.models import BigIntegerField, Count, F, Max, Min, Sum, Value
from django.db.models.expressions import Combinable
from django.db.models.functions import Cast, Coalesce, Round, TruncHour

from accounts import prices, reservations
from accounts.models import LedgerEntry, UsageRollup
from accounts.tenancy import every_tenant, tenant_scope

_ROLLUP_NAMESPACE = uuid.UUID("5b0e7a52-3f43-4a3c-9d6c-2f2f4b8f9d11")
#: What a sum of usage is for: entries that differ in any of these are summed apart.
_SUMMED_BY = ("hour", "tenant_id", "api_key_id", "model", "lane", "currency")
#: What is summed of the ledger's entries, beside their number and their cost; all are tokens.
TOKEN_COUNTS: Final = (
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "accepted_prediction_tokens",
    "rejected_prediction_tokens",
)
#: The ledger is summed in steps of so long, so that neither memory nor a transaction grows with it.
STEP: Final = timedelta(days=1)


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
    """Write a generation's entry, with its cost, and let its reservation go, in the transaction that settles it.

    Raises ``IntegrityError`` if it has one: settling twice is a bug of the caller's, and must not add up.
    """
    # Read anew each time: a price holds from its moment on, in every process. Before the allowances are locked.
    price = prices.price_at(model, lane, at)
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
            cost=None
            if price is None
            else prices.cost_of(
                price,
                prompt_tokens=prompt_tokens,
                cached_tokens=cached_tokens,
                completion_tokens=completion_tokens,
            ),
            currency="" if price is None else price.currency,
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
            start = LedgerEntry.objects.aggregate(first=Min("settled_at"))["first"]
        else:
            start = min(last, hour_of(now)) - timedelta(hours=1)
        end = LedgerEntry.objects.aggregate(last=Max("settled_at"))["last"]
        if start is None or end is None:
            return 0
        return sum(_write(since, until) for since, until in steps(hour_of(start), end))


def rebuild() -> int:
    """Throw all sums away and make them anew from the ledger, day by day; returns how many there are."""
    with every_tenant("usage is summed for every tenant"):
        extent = extent_of_usage()
        return sum(resum(since, until) for since, until in steps(*extent)) if extent else 0


def resum(since: datetime, until: datetime) -> int:
    """Make the sums of the hours from ``since`` to before ``until`` anew, in one transaction; returns how many."""
    with every_tenant("usage is summed for every tenant"), transaction.atomic():
        UsageRollup.objects.filter(hour__gte=since, hour__lt=until).delete()
        return _write(since, until)


def extent_of_usage() -> tuple[datetime, datetime] | None:
    """From the hour of the first entry or sum to the time of the last one; None: there is neither."""
    entries = LedgerEntry.objects.aggregate(first=Min("settled_at"), last=Max("settled_at"))
    sums = UsageRollup.objects.aggregate(first=Min("hour"), last=Max("hour"))
    first = [at for at in (entries["first"], sums["first"]) if at is not None]
    last = [at for at in (entries["last"], sums["last"]) if at is not None]
    return (hour_of(min(first)), max(last)) if first else None


def steps(first: datetime, last: datetime) -> Iterator[tuple[datetime, datetime]]:
    """The time from ``first`` to ``last``, that one included, in parts of ``STEP``: each from, and to before."""
    while first <= last:
        yield first, first + STEP
        first += STEP


def hourly_sums(since: datetime, until: datetime) -> Iterator[UsageRollup]:
    """The sums of the hours from ``since`` to before ``until`` as the ledger has them now; none is saved."""
    sums = (
        LedgerEntry.objects.filter(settled_at__gte=since, settled_at__lt=until)
        .annotate(hour=TruncHour("settled_at", tzinfo=UTC))
        .values(*_SUMMED_BY)
        .annotate(
            generations=Count("generation_id"),
            nano_cost=sum_of_cost(),
            **{f"sum_of_{name}": Sum(name) for name in TOKEN_COUNTS},
        )
        .order_by("hour")
    )
    for row in sums:
        by = {name: row[name] for name in _SUMMED_BY}
        yield UsageRollup(
            id=_rollup_id(**by),
            **by,
            generations=row["generations"],
            cost=cost_from(row["nano_cost"]),
            **{name: row[f"sum_of_{name}"] for name in TOKEN_COUNTS},
        )


def sum_of_cost() -> Combinable:
    """The sum of ``cost``, in billionths of a currency's unit: whole numbers, which every database adds up exactly.

    SQLite keeps decimals as floating-point numbers, whose sums would depend on the order of the rows.
    """
    nano = Cast(Round(F("cost") * Value(10**prices.COST_PLACES)), BigIntegerField())
    return Coalesce(Sum(nano), 0)


def cost_from(nano: int) -> Decimal:
    """A cost from what ``sum_of_cost`` gives."""
    return Decimal(nano).scaleb(-prices.COST_PLACES)


def hour_of(at: datetime) -> datetime:
    """When the hour of ``at`` began, in UTC: the hours that usage is summed in."""
    return at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def _write(since: datetime, until: datetime) -> int:
    rows = list(hourly_sums(since, until))
    UsageRollup.objects.bulk_create(
        rows,
        update_conflicts=True,
        unique_fields=["id"],
        update_fields=["generations", *TOKEN_COUNTS, "cost"],
        batch_size=500,
    )
    return len(rows)


def _rollup_id(
    *,
    hour: datetime,
    tenant_id: uuid.UUID,
    api_key_id: uuid.UUID | None,
    model: str,
    lane: str,
    currency: str,
) -> uuid.UUID:
    # Without a currency the id is what it was before there were any: sums of that time are replaced like others.
    parts = [hour, tenant_id, api_key_id, model, lane, *filter(None, [currency])]
    return uuid.uuid5(_ROLLUP_NAMESPACE, "\n".join(str(part) for part in parts))
