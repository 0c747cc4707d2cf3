"""The usage page: figures, plots and tables of what was used, and the same as CSV."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from asgiref.sync import sync_to_async
from django.contrib.admin import AdminSite
from django.core.exceptions import BadRequest
from django.http import HttpRequest, HttpResponseBase, StreamingHttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse

from accounts import usage_exports, usage_plot, usage_report
from accounts.actors import actor_of
from accounts.admin.usage_form import BY, UsageForm
from accounts.formatting import EMPTY, money, number
from accounts.usage_plot import Amount, Plot
from accounts.usage_queries import Bucket, Group, UsageRow, spans
from accounts.usage_report import Figures, Question

_KINDS = ("prompt, run", "prompt, from the cache", "answer", "answer, drafted")


@dataclass(frozen=True, slots=True)
class Line:
    """A row of a table: what it is of, and its figures as they are read."""

    name: str
    cells: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table. ``name`` tells its elements' ids from those of another on the page."""

    name: str
    title: str
    head: str
    lines: list[Line]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a valid question comes to. ``costs`` are amounts with their currencies."""

    total: Figures
    currencies: list[str]
    costs: list[str]
    plots: list[Plot]
    tables: list[Table]
    totals: Line


def page(site: AdminSite, request: HttpRequest) -> HttpResponseBase:
    """The page itself; a question that cannot be answered is shown with what is wrong about it."""
    form = UsageForm(request.GET)
    context = {
        **site.each_context(request),
        "title": "Usage",
        "filters": form,
        "export": f"{reverse(f'{site.name}:accounts_usage_csv')}?{request.GET.urlencode()}",
    }
    if form.is_valid():
        context |= {"report": _report(form.question, form.parted_by), "zone": form.question.zone.key}
    return TemplateResponse(request, "admin/usage.html", context)


def export(request: HttpRequest) -> HttpResponseBase:
    """The page's rows, parted by everything, as CSV."""
    form = UsageForm(request.GET)
    if not form.is_valid():
        raise BadRequest("The filters of this export do not make sense: open the page with them to see why.")
    question = form.question
    usage_exports.record_export(question, actor=actor_of(request))
    answer = StreamingHttpResponse(_lines(question), content_type="text/csv; charset=utf-8")
    name = f"signalbox-usage-{question.first}-to-{question.last}.csv"
    answer["Content-Disposition"] = f'attachment; filename="{name}"'
    return answer


async def _lines(question: Question) -> AsyncIterator[str]:
    currencies = await sync_to_async(usage_report.currencies)()
    yield usage_report.csv_heading(currencies)
    for part in question.parts():
        yield "".join(await sync_to_async(usage_report.csv_lines)(part, currencies))


def _report(question: Question, by: Group) -> Report:
    rows = usage_report.rows_of(question, [by])
    names = usage_report.names_of(rows, by)
    total = usage_report.figures_of(rows)
    currencies = sorted(total.costs)
    parted: dict[str, Figures] = {}
    over_time: dict[datetime, Figures] = {}
    for row in rows:
        parted.setdefault(names[getattr(row, by.column)], Figures()).add(row)
        over_time.setdefault(row.bucket_start, Figures()).add(row)
    plots = _plots(question, rows, names, by)
    when = {start: column.when for start, column in zip(_starts(question), plots[0].columns, strict=True)}
    largest = sorted(parted.items(), key=lambda item: (-item[1].tokens, item[0]))
    by_group = [_line(name, figures, currencies) for name, figures in largest]
    by_time = [_line(when[start], figures, currencies) for start, figures in sorted(over_time.items())]
    return Report(
        total=total,
        currencies=currencies,
        costs=[f"{money(total.costs[currency])} {currency}" for currency in currencies],
        plots=plots,
        tables=[
            Table(name="parted", title=f"By {_words(by)}", head=BY[by], lines=by_group),
            Table(name="over-time", title="Over time", head="When", lines=by_time),
        ],
        totals=_line("Total", total, currencies),
    )


def _plots(question: Question, rows: Iterable[UsageRow], names: dict[Any, str], by: Group) -> list[Plot]:
    by_name = [
        Amount(row.bucket_start, names[getattr(row, by.column)], row.prompt_tokens + row.completion_tokens)
        for row in rows
    ]
    by_kind = [
        Amount(row.bucket_start, kind, value)
        for row in rows
        for kind, value in zip(_KINDS, _kinds_of(row), strict=True)
        if value
    ]
    each = "hour" if question.bucket is Bucket.HOUR else "day"
    about: Sequence[tuple[list[Amount], str, str]] = (
        (by_name, f"Tokens each {each}, by {_words(by)}", "by-group"),
        (by_kind, f"Tokens each {each}, by what they were", "by-kind"),
    )
    starts = _starts(question)
    return [
        usage_plot.draw(
            amounts, starts=starts, until=question.until, zone=question.zone, title=title, name=name
        )
        for amounts, title, name in about
    ]


def _words(by: Group) -> str:
    return BY[by] if by is Group.API_KEY else BY[by].lower()


def _starts(question: Question) -> list[datetime]:
    return [span.start for span in spans(question.bucket, question.since, question.until, question.zone)]


def _kinds_of(row: UsageRow) -> tuple[int, ...]:
    """The tokens of ``row`` by ``_KINDS``, each of them once."""
    return (
        row.prompt_tokens - row.cached_tokens,
        row.cached_tokens,
        row.completion_tokens - row.accepted_prediction_tokens,
        row.accepted_prediction_tokens,
    )


def _line(name: str, figures: Figures, currencies: Sequence[str]) -> Line:
    counts = [number(count) for count in figures.counts.values()]
    costs = [money(figures.costs[one]) if one in figures.costs else EMPTY for one in currencies]
    return Line(name, (*counts, *costs))
