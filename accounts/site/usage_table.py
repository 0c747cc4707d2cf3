"""A tenant's usage in rows of words and figures: summed for a table, or each for itself as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Self
from uuid import UUID
from zoneinfo import ZoneInfo

from accounts.formatting import number
from accounts.models import ApiKey, User
from accounts.usage_queries import Group, UsageRow

#: What has no key: a member asked it in the browser.
IN_THE_CHAT = "in the chat"
_COUNTS = (
    "generations",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "accepted_prediction_tokens",
    "rejected_prediction_tokens",
)
#: What a spreadsheet takes for the beginning of a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True, slots=True)
class Names:
    """What the keys and members are called whose ids stand in rows of usage."""

    keys: Mapping[UUID, ApiKey]
    users: Mapping[UUID, str]

    @classmethod
    def of(cls, rows: Iterable[UsageRow]) -> Self:
        """Their names, in the tenant's scope: one query for each kind that there is."""
        rows = list(rows)
        key_ids = {row.api_key_id for row in rows if row.api_key_id}
        user_ids = {row.user_id for row in rows if row.user_id}
        users = User.objects.filter(id__in=user_ids).values_list("id", "username") if user_ids else ()
        return cls(ApiKey.objects.in_bulk(key_ids) if key_ids else {}, dict(users))

    def of_group(self, row: UsageRow, group: Group) -> str:
        """What the row is told apart by, in words."""
        match group:
            case Group.API_KEY:
                return self.key(row)
            case Group.MODEL:
                return row.model or ""
            case _:
                return row.lane or ""

    def key(self, row: UsageRow) -> str:
        """The key of a row, so that two keys of one name are told apart."""
        if row.api_key_id is None:
            return IN_THE_CHAT
        key = self.keys.get(row.api_key_id)
        return str(key) if key else str(row.api_key_id)


@dataclass(slots=True)
class TableRow:
    """What one lane, model or key used, or all of them."""

    name: str
    generations: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0
    costs: dict[str, Decimal] = field(default_factory=dict)

    def add(self, row: UsageRow) -> None:
        """Count one more row of usage."""
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(row, name))
        for currency, cost in row.costs.items():
            self.costs[currency] = self.costs.get(currency, Decimal(0)) + cost

    @property
    def tokens(self) -> int:
        """The prompt's and the answer's."""
        return self.prompt_tokens + self.completion_tokens

    @property
    def cells(self) -> tuple[str, ...]:
        """The figures of the table's columns, but for the cost."""
        counts = (
            self.generations,
            self.prompt_tokens,
            self.cached_tokens,
            self.completion_tokens,
            self.tokens,
        )
        return tuple(number(count) for count in counts)

    @property
    def cost(self) -> str:
        """What it cost, by currency; empty where nothing had a price."""
        return ", ".join(f"{currency} {cost:,.4f}" for currency, cost in sorted(self.costs.items()))


@dataclass(frozen=True, slots=True)
class Table:
    """Usage of a whole time, the largest first, and its total."""

    rows: Sequence[TableRow]
    total: TableRow

    @property
    def has_cost(self) -> bool:
        """Whether anything had a price."""
        return bool(self.total.costs)


def table_of(rows: Iterable[UsageRow], names: Names, group: Group) -> Table:
    """``rows`` summed over time."""
    total = TableRow("Total")
    by_name: dict[str, TableRow] = {}
    for row in rows:
        name = names.of_group(row, group)
        by_name.setdefault(name, TableRow(name)).add(row)
        total.add(row)
    return Table(sorted(by_name.values(), key=lambda row: (-row.tokens, row.name)), total)


def csv_of(rows: Sequence[UsageRow], names: Names, zone: ZoneInfo) -> str:
    """``rows`` as CSV, times in ``zone`` with their distance from UTC; a column of costs for each currency."""
    currencies = sorted({currency for row in rows for currency in row.costs})
    text = io.StringIO()
    lines = csv.writer(text)
    lines.writerow(
        ("from", "until", "key", "member", "model", "lane", *_COUNTS, *(f"cost_{one}" for one in currencies))
    )
    for row in rows:
        lines.writerow(
            (
                row.bucket_start.astimezone(zone).isoformat(),
                row.bucket_end.astimezone(zone).isoformat(),
                _plain(names.key(row) if row.api_key_id else ""),
                _plain(names.users.get(row.user_id, "") if row.user_id else ""),
                _plain(row.model or ""),
                _plain(row.lane or ""),
                *(getattr(row, name) for name in _COUNTS),
                *(row.costs.get(currency, "") for currency in currencies),
            )
        )
    return text.getvalue()


def _plain(text: str) -> str:
    """``text`` that no spreadsheet takes for a formula: names are written by whoever makes keys."""
    return f"'{text}" if text.startswith(_FORMULA) else text
