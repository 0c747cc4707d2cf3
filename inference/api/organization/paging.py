"""Lists of rows in pages: by when they were made, and where that is the same by id, so that no entry is lost or told
twice while others come and go."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeVar

from django.db.models import Model as Row
from django.db.models import Q, QuerySet

from inference.api.errors import ApiError, ErrorCode
from inference.api.fields import Range
from inference.api.organization.ids import Kind
from inference.api.queries import QueryModel

MAX_LIMIT: Final = 100

R = TypeVar("R", bound=Row)


class ListQuery(QueryModel):
    """Which page of a list."""

    after: str | None = None
    """The `last_id` of the page before."""
    limit: Annotated[int, Range(1, MAX_LIMIT)] = 20
    """Entries of a page."""
    order: Literal["asc", "desc"] = "asc"
    """Oldest or newest first."""


def page_of(
    rows: QuerySet[R], query: ListQuery, kind: Kind, *, shown: Q | None = None
) -> tuple[list[R], bool]:
    """The page of those ``rows`` that are ``shown`` (None: all), and whether more follow. At most two queries.

    The entry that the last page ended with may have ceased to be shown since. Raises ``ApiError`` 400 where ``after``
    names no row.
    """
    listed = rows if shown is None else rows.filter(shown)
    if query.after is not None:
        listed = listed.filter(_behind(rows, query.after, query.order, kind))
    sign = "" if query.order == "asc" else "-"
    found = list(listed.order_by(f"{sign}created_at", f"{sign}id")[: query.limit + 1])
    return found[: query.limit], len(found) > query.limit


def _behind(rows: QuerySet[R], after: str, order: str, kind: Kind) -> Q:
    id_ = kind.parse(after)
    at = id_ and rows.filter(id=id_).values_list("created_at", flat=True).first()
    if at is None:
        raise ApiError(
            ErrorCode.INVALID_VALUE,
            "`after` must be the `last_id` of an earlier page of this list.",
            param="after",
        )
    beyond = "gt" if order == "asc" else "lt"
    return Q(**{f"created_at__{beyond}": at}) | Q(**{"created_at": at, f"id__{beyond}": id_})
