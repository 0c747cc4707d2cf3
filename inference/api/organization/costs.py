"""``GET /v1/organization/costs``: what was used at the prices of its time, day by day."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Annotated, Final, Literal

from accounts.usage_queries import Group, UsageRow
from inference.api.answers import AnswerModel
from inference.api.endpoint import Call, endpoint
from inference.api.errors import ErrorCode
from inference.api.fields import Range
from inference.api.organization.access import ADMINISTRATORS, TAG
from inference.api.organization.ids import Kind
from inference.api.organization.usage_questions import (
    Names,
    UsageQuestion,
    name_of,
    rows_of,
    slice_of,
)
from inference.api.queries import parameters_of, read_query

_LINE_ITEM: Final = frozenset({Group.MODEL, Group.LANE})
_GROUPS: Final[dict[str, frozenset[Group]]] = {
    "project_id": frozenset({Group.TENANT}),
    "user_id": frozenset({Group.USER}),
    "api_key_id": frozenset({Group.API_KEY}),
    "line_item": _LINE_ITEM,
}


class CostAmount(AnswerModel):
    """Money."""

    value: float
    currency: str
    """ISO 4217, in small letters, as in `eur`."""


class Costs(AnswerModel):
    """What was to be paid for a bucket, in one currency. What it was not grouped by is null."""

    object: Literal["organization.costs.result"] = "organization.costs.result"
    amount: CostAmount
    line_item: str | None
    """A model and a lane, as in `smollm2-135m-instruct, high`: what prices are for."""
    project_id: str | None
    user_id: str | None
    api_key_id: str | None


class CostsBucket(AnswerModel):
    """A day."""

    object: Literal["bucket"] = "bucket"
    start_time: int
    end_time: int
    """Exclusive."""
    results: list[Costs]
    """One for each group and currency; none where nothing was used that has a price."""


class CostsPage(AnswerModel):
    """Days without gaps, oldest first."""

    object: Literal["page"] = "page"
    data: list[CostsBucket]
    has_more: bool
    next_page: str | None
    """Ask for it with `page`."""


class CostsQuestion(UsageQuestion):
    """Which costs, and how they are summed."""

    line_items: Names = []
    """Only these, each written as results name it."""
    bucket_width: Literal["1d"] = "1d"
    """Days of UTC."""
    group_by: list[Literal["project_id", "user_id", "api_key_id", "line_item"]] = []
    """What is summed apart."""
    limit: Annotated[int, Range(1, 180)] = 7
    """Days of a page."""


@endpoint(
    "GET",
    summary="Costs",
    tag=TAG,
    scopes=ADMINISTRATORS,
    answer=CostsPage,
    parameters=parameters_of(CostsQuestion),
    errors=(ErrorCode.PROJECT_NOT_FOUND,),
)
def costs(call: Call) -> CostsPage:
    """From the ledger: what has ended, on the day on which it ended, at the price of then."""
    question = read_query(call.request, CostsQuestion)
    asked = slice_of(question, question.bucket_width, question.limit)
    groups = frozenset().union(*(_GROUPS[name] for name in question.group_by))
    needed = groups | _LINE_ITEM if question.line_items else groups
    rows = rows_of(call, question, asked, question.bucket_width, needed)
    return CostsPage(
        data=[
            CostsBucket(
                start_time=start,
                end_time=end,
                results=_results(_of_items(rows.get(start, ()), question.line_items), groups),
            )
            for start, end in asked.bounds()
        ],
        has_more=asked.next_page is not None,
        next_page=asked.next_page,
    )


def _line_item(row: UsageRow) -> str:
    return f"{row.model}, {row.lane}"


def _of_items(rows: Iterable[UsageRow], line_items: list[str]) -> list[UsageRow]:
    return [row for row in rows if not line_items or _line_item(row) in line_items]


def _results(rows: Iterable[UsageRow], groups: frozenset[Group]) -> list[Costs]:
    amounts: dict[tuple[object, ...], Decimal] = {}
    any_rows: dict[tuple[object, ...], UsageRow] = {}
    for row in rows:
        for currency, cost in row.costs.items():
            key = (*(getattr(row, group.column) for group in Group if group in groups), currency)
            amounts[key] = amounts.get(key, Decimal(0)) + cost
            any_rows.setdefault(key, row)
    return [
        Costs(
            amount=CostAmount(value=float(amount), currency=str(key[-1]).lower()),
            line_item=_line_item(row) if groups >= _LINE_ITEM else None,
            project_id=name_of(Kind.PROJECT, row.tenant_id) if Group.TENANT in groups else None,
            user_id=name_of(Kind.USER, row.user_id) if Group.USER in groups else None,
            api_key_id=name_of(Kind.API_KEY, row.api_key_id) if Group.API_KEY in groups else None,
        )
        for (key, amount), row in zip(amounts.items(), any_rows.values(), strict=True)
    ]
