"""What a tenant has used: as a plot and a table, and as CSV to take along. All of it is summed from the ledger."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, time, timedelta
from enum import StrEnum
from typing import Self, TypeVar
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from accounts import usage_plot
from accounts.budget_windows import Period, window_at
from accounts.site.area import Area, in_area
from accounts.site.usage_table import Names, csv_of, table_of
from accounts.usage_plot import Amount
from accounts.usage_queries import Bucket, Group, UsageRow, spans, usage

_Choice = TypeVar("_Choice", bound=StrEnum)


class TimeRange(StrEnum):
    """The times that can be looked at, each until now."""

    DAY = "24h"
    WEEK = "7d"
    MONTH = "30d"
    QUARTER = "90d"

    @property
    def days(self) -> int:
        """How many days of the calendar it has, today included; of ``DAY``, 24 hours are meant."""
        return {TimeRange.DAY: 1, TimeRange.WEEK: 7, TimeRange.MONTH: 30, TimeRange.QUARTER: 90}[self]

    @property
    def words(self) -> str:
        """What it is called."""
        return "24 hours" if self is TimeRange.DAY else f"{self.days} days"

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """What it can be divided in: columns must be wide enough to be pointed at."""
        match self:
            case TimeRange.DAY:
                return (Bucket.HOUR,)
            case TimeRange.WEEK:
                return (Bucket.DAY, Bucket.HOUR)
            case _:
                return (Bucket.DAY,)


#: What usage can be told apart by, and what that is called.
GROUPS = {Group.LANE: "lane", Group.MODEL: "model", Group.API_KEY: "key"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a page of usage is to show."""

    time_range: TimeRange
    bucket: Bucket
    group: Group

    @classmethod
    def of(cls, request: HttpRequest) -> Self:
        """As the address says; what it does not say, or what there is not, is the usual."""
        time_range = _one_of(tuple(TimeRange), request.GET.get("range"), TimeRange.MONTH)
        return cls(
            time_range=time_range,
            bucket=_one_of(time_range.buckets, request.GET.get("bucket"), time_range.buckets[0]),
            group=_one_of(tuple(GROUPS), request.GET.get("group"), Group.LANE),
        )

    def times(self, now: datetime, zone: ZoneInfo) -> tuple[datetime, datetime]:
        """From when until when: whole days of the calendar of ``zone``, or whole hours of its clock."""
        today = window_at(Period.DAY, now, zone)
        if self.time_range is TimeRange.DAY:
            hours = spans(Bucket.HOUR, today.starts_at, today.ends_at, zone)
            until = next(span.end for span in hours if span.end > now)
            return until - timedelta(hours=24), until
        # Noon is in that day whatever its clocks do.
        first = now.astimezone(zone).date() - timedelta(days=self.time_range.days - 1)
        return window_at(Period.DAY, datetime.combine(first, time(12), zone), zone).starts_at, today.ends_at

    @property
    def values(self) -> dict[str, str]:
        """As the address has it."""
        return {"range": self.time_range.value, "bucket": self.bucket.value, "group": self.group.value}

    def query(self, **changes: str) -> str:
        """The address's query with ``changes``."""
        return urlencode({**self.values, **changes})


@in_area()
def usage_page(request: HttpRequest, area: Area) -> HttpResponse:
    """Usage as plot and table."""
    asked = Asked.of(request)
    since, until = asked.times(timezone.now(), area.zone)
    rows = _rows(area, asked, since, until, frozenset({asked.group}))
    names = Names.of(rows)
    amounts = [
        Amount(row.bucket_start, names.of_group(row, asked.group), row.prompt_tokens + row.completion_tokens)
        for row in rows
    ]
    plot = usage_plot.draw(
        amounts,
        starts=[span.start for span in spans(asked.bucket, since, until, area.zone)],
        until=until,
        zone=area.zone,
        title=f"Tokens by {asked.bucket.value} and {GROUPS[asked.group]}, {asked.time_range.words}",
    )
    return area.page(
        request,
        "usage",
        {
            "section": "usage",
            "plot": plot,
            "table": table_of(rows, names, asked.group),
            "group_title": GROUPS[asked.group].capitalize(),
            "ranges": _links(asked, "range", {one.value: one.words for one in TimeRange}),
            "buckets": _links(
                asked, "bucket", {one.value: f"by {one.value}" for one in asked.time_range.buckets}
            ),
            "groups": _links(asked, "group", {one.value: f"by {word}" for one, word in GROUPS.items()}),
            "csv_query": asked.query(),
        },
    )


@in_area()
def usage_csv(request: HttpRequest, area: Area) -> HttpResponse:
    """The same usage, by key, member, model and lane at once, for a spreadsheet."""
    asked = Asked.of(request)
    since, until = asked.times(timezone.now(), area.zone)
    groups = frozenset({Group.API_KEY, Group.USER, Group.MODEL, Group.LANE})
    rows = _rows(area, asked, since, until, groups)
    answer = HttpResponse(csv_of(rows, Names.of(rows), area.zone), content_type="text/csv; charset=utf-8")
    name = f"usage-{area.tenant.slug}-{asked.time_range.value}-by-{asked.bucket.value}.csv"
    answer["Content-Disposition"] = f'attachment; filename="{name}"'
    return answer


@dataclass(frozen=True, slots=True)
class Link:
    """One of several ways to look at usage."""

    query: str
    title: str
    is_current: bool


def _links(asked: Asked, name: str, titles: dict[str, str]) -> list[Link]:
    current = asked.values[name]
    return [Link(asked.query(**{name: value}), title, value == current) for value, title in titles.items()]


def _rows(
    area: Area, asked: Asked, since: datetime, until: datetime, groups: frozenset[Group]
) -> list[UsageRow]:
    return usage(
        tenant_ids=[area.tenant.id],
        since=since,
        until=until,
        bucket=asked.bucket,
        zone=area.zone,
        group_by=groups,
    )


def _one_of(choices: tuple[_Choice, ...], said: str | None, usual: _Choice) -> _Choice:
    return next((choice for choice in choices if choice.value == said), usual)
