"""Lists in pages: ``after``, ``limit``, ``order``."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeVar

from django.db.models import Model as Row
from django.db.models import QuerySet
from django.http import HttpRequest

from inference.api.answers import AnswerModel
from inference.api.endpoint import Parameter
from inference.api.errors import ApiError, ErrorCode

MAX_LIMIT: Final = 1000
DEFAULT_LIMIT: Final = 100

PAGE_PARAMETERS: Final = (
    Parameter(
        name="limit",
        schema={"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT},
        description="Entries of a page.",
    ),
    Parameter(name="after", schema={"type": "string"}, description="The `last_id` of the page before."),
    Parameter(
        name="order",
        schema={"type": "string", "enum": ["asc", "desc"], "default": "asc"},
        description="Ascending or descending.",
    ),
)

R = TypeVar("R", bound=Row)


class Page(AnswerModel):
    """One page of a list."""

    object: Literal["list"] = "list"
    data: list[Any]
    first_id: str | None
    last_id: str | None
    has_more: bool
    """Whether another page follows: ask for it with `after` set to `last_id`."""


def page_of(request: HttpRequest, rows: QuerySet[R], *, key: str) -> tuple[list[R], bool]:
    """The page of ``rows`` that the URL asks for, in the order of the column ``key``, and whether more follow.

    Raises ``ApiError`` for a parameter out of its range.
    """
    limit = _limit(request.GET.get("limit", str(DEFAULT_LIMIT)))
    order = request.GET.get("order", "asc")
    if order not in ("asc", "desc"):
        raise ApiError(ErrorCode.INVALID_VALUE, "`order` must be `asc` or `desc`.", param="order")
    after = request.GET.get("after")
    if after is not None:
        rows = rows.filter(**{f"{key}__{'gt' if order == 'asc' else 'lt'}": after})
    found = list(rows.order_by(key if order == "asc" else f"-{key}")[: limit + 1])
    return found[:limit], len(found) > limit


def _limit(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) <= 9 and 1 <= int(text) <= MAX_LIMIT:
        return int(text)
    raise ApiError(ErrorCode.INVALID_VALUE, f"`limit` must be between 1 and {MAX_LIMIT}.", param="limit")
