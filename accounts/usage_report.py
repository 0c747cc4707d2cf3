"""Usage as an operator looks at it: of some time, narrowed to some, parted by something; as figures and as rows of CSV.

All of it comes from ``accounts.usage_queries``, which sums the ledger itself: the same question has the same totals on
the page, in its plots and in its export.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID
from zoneinfo import ZoneInfo

from accounts.models import ApiKey, Price, Tenant
from accounts.tenancy import every_tenant
from accounts.usage_queries import Bucket, Group, UsageRow, usage

#: What usage is parted by here. Users are not: whose chats those were is nobody's business in a report.
GROUPS: Final = (Group.TENANT, Group.API_KEY, Group.MODEL, Group.LANE)
#: The longest time for which each bucket is drawn: so many columns can still be told apart.
MOST_DAYS: Final = {Bucket.HOUR: 31, Bucket.DAY: 400}
#: An export is read in parts of so many days, so that its length does not matter.
EXPORTED_AT_ONCE: Final = timedelta(days=31)
NO_KEY: Final = "no key: in the chat"

_COUNTS: Final = (
    "generations",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "accepted_prediction_tokens",
    "rejected_prediction_tokens",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What usage is asked for: of the days from ``first`` to ``last``, that one included, of the calendar of ``zone``.

    ``tenant_id``, ``api_key_id``, ``model`` and ``lane`` narrow it; None: all of them.
    """

    first: date
    last: date
    zone: ZoneInfo
    bucket: Bucket = Bucket.DAY
    tenant_id: UUID | None = None
    api_key_id: UUID | None = None
    model: str | None = None
    lane: str | None = None

    @property
    def since(self) -> datetime:
        """Its first moment, in UTC."""
        return _midnight(self.first, self.zone)

    @property
    def until(self) -> datetime:
        """The first moment after it, in UTC."""
        return _midnight(self.last + timedelta(days=1), self.zone)

    def narrows_by(self) -> frozenset[Group]:
        """The groups that it narrows, beside tenants."""
        narrowed = {Group.API_KEY: self.api_key_id, Group.MODEL: self.model, Group.LANE: self.lane}
        return frozenset(group for group, wanted in narrowed.items() if wanted is not None)

    def wants(self, row: UsageRow) -> bool:
        """Whether ``row``, parted by what it narrows by, is asked for."""
        pairs = ((self.api_key_id, row.api_key_id), (self.model, row.model), (self.lane, row.lane))
        return all(wanted is None or wanted == has for wanted, has in pairs)

    def parts(self) -> Iterator[Question]:
        """It in parts of ``EXPORTED_AT_ONCE``, one after the other."""
        first = self.first
        while first <= self.last:
            last = min(self.last, first + EXPORTED_AT_ONCE - timedelta(days=1))
            yield replace(self, first=first, last=last)
            first = last + timedelta(days=1)


@dataclass(slots=True)
class Figures:
    """A sum of usage: counts by their names, and costs by currency."""

    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_COUNTS, 0))
    costs: dict[str, Decimal] = field(default_factory=dict)

    def add(self, row: UsageRow) -> None:
        """Count ``row`` in."""
        for name in _COUNTS:
            self.counts[name] += getattr(row, name)
        for currency, cost in row.costs.items():
            self.costs[currency] = self.costs.get(currency, Decimal(0)) + cost

    @property
    def tokens(self) -> int:
        """Prompt and answer."""
        return self.counts["prompt_tokens"] + self.counts["completion_tokens"]


def rows_of(question: Question, by: Iterable[Group] = (), bucket: Bucket | None = None) -> list[UsageRow]:
    """What was used, in the question's buckets (or in ``bucket``), parted by ``by``."""
    rows = usage(
        tenant_ids=None if question.tenant_id is None else [question.tenant_id],
        since=question.since,
        until=question.until,
        bucket=bucket or question.bucket,
        zone=question.zone,
        group_by=frozenset(by) | question.narrows_by(),
    )
    return [row for row in rows if question.wants(row)]


def figures_of(rows: Iterable[UsageRow]) -> Figures:
    """The sum of ``rows``."""
    figures = Figures()
    for row in rows:
        figures.add(row)
    return figures


def names_of(rows: Iterable[UsageRow], group: Group) -> dict[Any, str]:
    """What each member of ``group`` in ``rows`` is called: no two the same."""
    members = {getattr(row, group.column) for row in rows}
    if group in (Group.MODEL, Group.LANE):
        return {member: str(member) for member in members}
    ids = members - {None}
    if group is Group.TENANT:
        names = {tenant.id: (tenant.name, tenant.slug) for tenant in Tenant.objects.filter(id__in=ids)}
        return _told_apart({one: names.get(one, (str(one), "")) for one in ids})
    with every_tenant("the caller sees every tenant's usage"):
        keys = {key.id: str(key) for key in ApiKey.objects.filter(id__in=ids)}
    return {**{one: keys.get(one, str(one)) for one in ids}, **({None: NO_KEY} if None in members else {})}


def csv_lines(question: Question, currencies: Sequence[str]) -> list[str]:
    """The question's rows, parted by everything, as lines of CSV without the heading."""
    rows = rows_of(question, GROUPS)
    tenants, keys = names_of(rows, Group.TENANT), names_of(rows, Group.API_KEY)
    return [_line(_cells(row, question.zone, tenants, keys, currencies)) for row in rows]


def csv_heading(currencies: Sequence[str]) -> str:
    """The names of the columns: one for what was used in each currency."""
    groups = ("tenant_id", "tenant", "api_key_id", "api_key", "model", "lane")
    return _line(["start", "end", *groups, *_COUNTS, *(f"cost_{currency}" for currency in currencies)])


def currencies() -> list[str]:
    """All that anything has ever cost in, or will."""
    return sorted(set(Price.objects.order_by().values_list("currency", flat=True).distinct()))


def _cells(
    row: UsageRow,
    zone: ZoneInfo,
    tenants: Mapping[Any, str],
    keys: Mapping[Any, str],
    currencies: Sequence[str],
) -> list[Any]:
    return [
        row.bucket_start.astimezone(zone).isoformat(),
        row.bucket_end.astimezone(zone).isoformat(),
        row.tenant_id,
        _as_text(tenants[row.tenant_id]),
        row.api_key_id or "",
        _as_text(keys[row.api_key_id]),
        _as_text(row.model or ""),
        _as_text(row.lane or ""),
        *(getattr(row, name) for name in _COUNTS),
        *(f"{row.costs[currency]:f}" if currency in row.costs else "" for currency in currencies),
    ]


def _as_text(text: str) -> str:
    """Text that no spreadsheet takes for a formula: names are chosen by tenants, and opened by operators."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def _line(cells: Sequence[Any]) -> str:
    line = io.StringIO()
    csv.writer(line).writerow(cells)
    return line.getvalue()


def _told_apart(names: Mapping[UUID, tuple[str, str]]) -> dict[Any, str]:
    known = [name for name, _ in names.values()]
    return {
        one: name if known.count(name) == 1 else f"{name} ({also})" for one, (name, also) in names.items()
    }


def _midnight(day: date, zone: ZoneInfo) -> datetime:
    return datetime.combine(day, time.min, zone).astimezone(UTC)
