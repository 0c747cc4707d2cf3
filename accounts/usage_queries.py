"""What was used, summed from the ledger over any time: exact to the token, in buckets of any zone's calendar.

The hourly sums (``UsageRollup``) begin with the hours of UTC, so that the days of half the world cannot be made of
them. Here the entries themselves are summed, by the database: every view that is not by those hours comes from here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import StrEnum
from itertools import groupby, pairwise
from typing import Any, Final
from uuid import UUID
from zoneinfo import ZoneInfo

from django.db.models import Count, QuerySet, Sum
from django.db.models.functions import Trunc

from accounts.budget_windows import Period, window_at
from accounts.ledger import TOKEN_COUNTS, cost_from, sum_of_cost
from accounts.models import LedgerEntry
from accounts.tenancy import every_tenant

#: Offsets from UTC are whole minutes everywhere from then on; no ledger is older.
EARLIEST: Final = datetime(2000, 1, 1, tzinfo=UTC)


class Bucket(StrEnum):
    """The pieces of time that usage is summed in. ``ALL``: one for the whole time that is asked for."""

    MINUTE = "minute"
    HOUR = "hour"
    DAY = "day"
    ALL = "all"


class Group(StrEnum):
    """What else usage is summed by."""

    TENANT = "tenant"
    API_KEY = "api_key"
    USER = "user"
    MODEL = "model"
    LANE = "lane"

    @property
    def column(self) -> str:
        """The field of a ledger entry, and of a ``UsageRow``, that it is."""
        return self.value if self in (Group.MODEL, Group.LANE) else f"{self.value}_id"


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRow:
    """What was used in one bucket, by one of each group that was asked for; fields of others are None.

    ``cached_tokens`` are part of ``prompt_tokens``, ``accepted_prediction_tokens`` of ``completion_tokens``;
    ``rejected_prediction_tokens`` are part of neither. ``costs`` is by currency: what had no price has no part in it.
    """

    bucket_start: datetime
    bucket_end: datetime
    tenant_id: UUID | None = None
    api_key_id: UUID | None = None
    user_id: UUID | None = None
    model: str | None = None
    lane: str | None = None
    generations: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0
    costs: dict[str, Decimal] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Span:
    """From ``start`` until just before ``end``, in UTC: the part of a calendar's bucket that was asked for.

    ``begins`` is when that bucket itself began.
    """

    begins: datetime
    start: datetime
    end: datetime


def spans(bucket: Bucket, since: datetime, until: datetime, zone: ZoneInfo) -> list[Span]:
    """The buckets from ``since`` to before ``until``, empty ones too, without gaps. Pure.

    Days are of the calendar of ``zone``: where its clocks change they have 23 or 25 hours. Hours and minutes are
    counted from its midnight. The first and the last bucket are cut to what was asked for.
    """
    if since >= until:
        return []
    since, until = since.astimezone(UTC), until.astimezone(UTC)
    if bucket is Bucket.ALL:
        return [Span(since, since, until)]
    starts = [*_starts(bucket, since, until, zone), until]
    return [
        Span(begins, max(begins, since), min(end, until)) for begins, end in pairwise(starts) if end > since
    ]


def usage(
    *,
    tenant_ids: Collection[UUID] | None,
    since: datetime,
    until: datetime,
    bucket: Bucket,
    zone: ZoneInfo,
    group_by: frozenset[Group],
) -> list[UsageRow]:
    """What those tenants used (``None``: all of them), by when it was settled: from ``since`` to before ``until``.

    Sorted by time, then by the groups in the order of ``Group``. Where nothing was used there is no row. One query, and
    one more for each change of the clocks. Who may see which tenants is the caller's to decide.
    """
    asked = spans(bucket, max(since, EARLIEST), until, zone)
    columns = [group.column for group in Group if group in group_by]
    sums: dict[tuple[Any, ...], _Sum] = {}
    with every_tenant("usage of the tenants that the caller may see"):
        entries = LedgerEntry.objects.all()
        if tenant_ids is not None:
            entries = entries.filter(tenant_id__in=list(tenant_ids))
        for span, row in _summed(entries, bucket, asked, columns):
            key = (span.start, *(row[column] for column in columns))
            sums.setdefault(key, _Sum(span)).add(row)
    rows = [one.row(dict(zip(columns, key[1:], strict=True))) for key, one in sums.items()]
    return sorted(
        rows, key=lambda row: (row.bucket_start, *(str(getattr(row, name) or "") for name in columns))
    )


class _Sum:
    """What the database's rows of one bucket and group come to: one for each currency, and more around a change of the
    clocks."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self._counts: dict[str, Any] = dict.fromkeys(("generations", *TOKEN_COUNTS), 0)
        self._nano_costs: dict[str, int] = {}

    def add(self, row: dict[str, Any]) -> None:
        for name in self._counts:
            self._counts[name] += row[f"sum_of_{name}"]
        if currency := row["currency"]:
            self._nano_costs[currency] = self._nano_costs.get(currency, 0) + row["nano_cost"]

    def row(self, groups: dict[str, Any]) -> UsageRow:
        costs = {currency: cost_from(nano) for currency, nano in sorted(self._nano_costs.items())}
        return UsageRow(
            bucket_start=self._span.start, bucket_end=self._span.end, **groups, **self._counts, costs=costs
        )


_LENGTHS: Final = {
    Bucket.MINUTE: timedelta(minutes=1),
    Bucket.HOUR: timedelta(hours=1),
    Bucket.DAY: timedelta(days=1),
}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _starts(bucket: Bucket, since: datetime, until: datetime, zone: ZoneInfo) -> Iterator[datetime]:
    """When the buckets begin, from the one that ``since`` lies in on."""
    day = window_at(Period.DAY, since, zone)
    while day.starts_at < until:
        if bucket is Bucket.DAY:
            yield day.starts_at
        else:
            start = day.starts_at
            while start < min(day.ends_at, until):
                if start + _LENGTHS[bucket] > since:
                    yield start
                start += _LENGTHS[bucket]
        day = window_at(Period.DAY, day.ends_at, zone)


def _summed(
    entries: QuerySet[LedgerEntry], bucket: Bucket, asked: list[Span], columns: list[str]
) -> Iterator[tuple[Span, dict[str, Any]]]:
    """The database's sums, each with the bucket that it belongs to.

    Buckets that begin at the same time of a day (of an hour, of a minute) are summed in one query, as those of a zone
    whose distance from UTC never changes.
    """
    if bucket is Bucket.ALL:
        for span in asked:
            for row in _sums(entries, [span], columns):
                yield span, row
        return
    length = _LENGTHS[bucket]
    for phase, run in groupby(asked, key=lambda span: (span.begins - _EPOCH) % length):
        together = list(run)
        begins = [span.begins for span in together]
        at = Trunc("settled_at", bucket.value, tzinfo=_zone_of(phase, length))
        for row in _sums(entries.annotate(at=at), together, ["at", *columns]):
            # A day of 25 hours is longer than the database takes days to be: its last hour belongs to it all the same.
            yield together[bisect_right(begins, row["at"]) - 1], row


def _sums(entries: QuerySet[LedgerEntry], run: list[Span], columns: list[str]) -> QuerySet[Any]:
    sums: QuerySet[Any] = (
        entries.filter(settled_at__gte=run[0].start, settled_at__lt=run[-1].end)
        .values(*columns, "currency")
        .annotate(
            sum_of_generations=Count("generation_id"),
            nano_cost=sum_of_cost(),
            **{f"sum_of_{name}": Sum(name) for name in TOKEN_COUNTS},
        )
        .order_by()
    )
    return sums


def _zone_of(phase: timedelta, length: timedelta) -> timezone:
    """The zone, always as far from UTC, in which buckets of ``length`` begin ``phase`` after UTC's."""
    offset = -phase % length
    return timezone(offset if offset <= timedelta(hours=12) else offset - timedelta(days=1))
