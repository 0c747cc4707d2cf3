"""What a tenant has used: as a plot and a table, and as CSV to take along. All of it is summed from the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, Self, TypeVar
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from accounts import usage_exports, usage_plot, usage_report
from accounts.actors import actor_of
from accounts.formatting import money, number
from accounts.site.area import Area, in_area
from accounts.usage_plot import Amount, Plot
from accounts.usage_queries import Bucket, Group, UsageRow, spans
from accounts.usage_report import Figures, Question, figures_of, names_of, rows_of

_Choice = TypeVar("_Choice", bound=StrEnum)

#: What usage can be told apart by, and what that is called. Members are not: who chats how much is nobody's business.
GROUPS: Final = {Group.LANE: "lane", Group.MODEL: "model", Group.API_KEY: "key"}
_COLUMNS: Final = ("generations", "prompt_tokens", "cached_tokens", "completion_tokens")


class TimeRange(StrEnum):
    """The times that can be looked at: so many days of the tenant's calendar, today included."""

    TWO_DAYS = "2d"
    WEEK = "7d"
    MONTH = "30d"
    QUARTER = "90d"

    @property
    def days(self) -> int:
        """How many days it has."""
        return int(self.value.removesuffix("d"))

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """What it can be divided in: columns must be wide enough to be pointed at."""
        match self:
            case TimeRange.TWO_DAYS:
                return (Bucket.HOUR,)
            case TimeRange.WEEK:
                return (Bucket.DAY, Bucket.HOUR)
            case _:
                return (Bucket.DAY,)


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

    def question(self, area: Area, now: datetime) -> Question:
        """What the ledger is asked, of this tenant and by its own calendar."""
        today = now.astimezone(area.zone).date()
        return Question(
            first=today - timedelta(days=self.time_range.days - 1),
            last=today,
            zone=area.zone,
            bucket=self.bucket,
            tenant_id=area.tenant.id,
        )

    @property
    def values(self) -> dict[str, str]:
        """As the address has it."""
        return {"range": self.time_range.value, "bucket": self.bucket.value, "group": self.group.value}

    def query(self, **changes: str) -> str:
        """The address's query with ``changes``."""
        return urlencode({**self.values, **changes})


@dataclass(frozen=True, slots=True)
class Link:
    """One of several ways to look at usage."""

    query: str
    title: str
    is_current: bool


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table: what a lane, a model or a key used."""

    name: str
    figures: Figures

    @property
    def cells(self) -> tuple[str, ...]:
        """The figures of its columns, but for the cost."""
        counts = [self.figures.counts[column] for column in _COLUMNS]
        return tuple(number(count) for count in (*counts, self.figures.tokens))

    @property
    def cost(self) -> str:
        """What it cost, by currency; empty where nothing had a price."""
        return ", ".join(f"{money(cost)} {currency}" for currency, cost in sorted(self.figures.costs.items()))


@in_area()
def usage_page(request: HttpRequest, area: Area) -> HttpResponse:
    """Usage as plot and table."""
    asked = Asked.of(request)
    question = asked.question(area, timezone.now())
    rows = rows_of(question, (asked.group,))
    names = names_of(rows, asked.group)
    named = [(names[getattr(row, asked.group.column)], row) for row in rows]
    return area.page(
        request,
        "usage",
        {
            "section": "usage",
            "plot": _plot(asked, question, named),
            "lines": _lines(named),
            "total": Line("Total", figures_of(rows)),
            "group_title": GROUPS[asked.group].capitalize(),
            "ranges": _links(asked, "range", {one.value: f"{one.days} days" for one in TimeRange}),
            "buckets": _links(
                asked, "bucket", {one.value: f"by {one.value}" for one in asked.time_range.buckets}
            ),
            "groups": _links(asked, "group", {one.value: f"by {word}" for one, word in GROUPS.items()}),
            "csv_query": asked.query(),
        },
    )


@in_area()
def usage_csv(request: HttpRequest, area: Area) -> HttpResponse:
    """The same usage, by key, model and lane at once, for a spreadsheet."""
    asked = Asked.of(request)
    question = asked.question(area, timezone.now())
    usage_exports.record_export(question, actor=actor_of(request))
    currencies = sorted(figures_of(rows_of(question, bucket=Bucket.ALL)).costs)
    lines = [usage_report.csv_heading(currencies)]
    for part in question.parts():
        lines += usage_report.csv_lines(part, currencies)
    answer = HttpResponse("".join(lines), content_type="text/csv; charset=utf-8")
    name = f"usage-{area.tenant.slug}-{asked.time_range.value}-by-{asked.bucket.value}.csv"
    answer["Content-Disposition"] = f'attachment; filename="{name}"'
    return answer


def _plot(asked: Asked, question: Question, named: Iterable[tuple[str, UsageRow]]) -> Plot:
    pieces = spans(question.bucket, question.since, question.until, question.zone)
    return usage_plot.draw(
        [Amount(row.bucket_start, name, row.prompt_tokens + row.completion_tokens) for name, row in named],
        starts=[piece.start for piece in pieces],
        until=question.until,
        zone=question.zone,
        title=f"Tokens by {asked.bucket.value} and {GROUPS[asked.group]}, {asked.time_range.days} days",
    )


def _lines(named: Iterable[tuple[str, UsageRow]]) -> Sequence[Line]:
    """Summed over time, the largest first."""
    by_name: dict[str, Figures] = {}
    for name, row in named:
        by_name.setdefault(name, Figures()).add(row)
    lines = [Line(name, figures) for name, figures in by_name.items()]
    return sorted(lines, key=lambda line: (-line.figures.tokens, line.name))


def _links(asked: Asked, name: str, titles: dict[str, str]) -> list[Link]:
    current = asked.values[name]
    return [Link(asked.query(**{name: value}), title, value == current) for value, title in titles.items()]


def _one_of(choices: tuple[_Choice, ...], said: str | None, usual: _Choice) -> _Choice:
    return next((choice for choice in choices if choice.value == said), usual)
