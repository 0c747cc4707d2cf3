"""What usage and costs are asked by: a time, whose, and what to sum by. And the rows that answer it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Annotated, Final
from uuid import UUID
from zoneinfo import ZoneInfo

from django.utils import timezone
from pydantic import Field

from accounts import administration, usage_queries
from accounts.usage_queries import Bucket, Group, UsageRow
from inference.api.endpoint import Call
from inference.api.errors import ApiError, ErrorCode
from inference.api.fields import Range
from inference.api.organization import buckets
from inference.api.organization.access import projects_of
from inference.api.organization.buckets import Slice
from inference.api.organization.ids import Kind
from inference.api.queries import QueryModel

#: Entries of a list that usage is narrowed by.
MAX_NAMES: Final = 100
Names = Annotated[list[str], Field(max_length=MAX_NAMES)]
Time = Annotated[int, Range(0, buckets.LAST)]

_UTC: Final = ZoneInfo("UTC")
_BUCKETS: Final = {"1m": Bucket.MINUTE, "1h": Bucket.HOUR, "1d": Bucket.DAY}


class UsageQuestion(QueryModel):
    """Of which time, and whose."""

    start_time: Time
    """Unix time, inclusive."""
    end_time: Time | None = None
    """Unix time, exclusive. Absent: now."""
    project_ids: Names = []
    """Only of these projects."""
    api_key_ids: Names = []
    """Only of these API keys."""
    user_ids: Names = []
    """Only of these people: what members said in their chats in the browser."""
    page: str | None = None
    """The `next_page` of the answer before."""


def slice_of(question: UsageQuestion, width: str, limit: int) -> Slice:
    """The buckets that are asked for. Raises ``ApiError`` 400."""
    # What ended in this very second is part of what was used until now.
    now = int(timezone.now().timestamp()) + 1
    end = now if question.end_time is None else question.end_time
    if question.start_time >= end:
        raise ApiError(
            ErrorCode.INVALID_VALUE,
            f"`start_time` must be before `end_time`, which is {end}, not {question.start_time}.",
            param="start_time",
        )
    try:
        return buckets.slice_of(
            question.start_time, end, width=buckets.WIDTHS[width], limit=limit, page=question.page
        )
    except buckets.WrongPage:
        raise ApiError(
            ErrorCode.INVALID_VALUE,
            "`page` must be the `next_page` of an earlier answer to the same question.",
            param="page",
        ) from None


def rows_of(
    call: Call,
    question: UsageQuestion,
    asked: Slice,
    width: str,
    group_by: Collection[Group],
    *,
    models: Collection[str] = (),
) -> Mapping[int, list[UsageRow]]:
    """What was used, by the beginning of its bucket. Rows are summed by ``group_by``, or by more where that is needed
    to leave out what is not asked for. Raises ``ApiError``."""
    only: dict[Group, frozenset[object]] = {}
    if question.api_key_ids:
        only[Group.API_KEY] = frozenset(_parsed(Kind.API_KEY, question.api_key_ids, "api_key_ids"))
    if question.user_ids:
        only[Group.USER] = frozenset(_parsed(Kind.USER, question.user_ids, "user_ids"))
    if models:
        only[Group.MODEL] = frozenset(models)
    found: defaultdict[int, list[UsageRow]] = defaultdict(list)
    for row in usage_queries.usage(
        tenant_ids=_tenant_ids(call, question.project_ids),
        since=asked.since,
        until=asked.until,
        bucket=_BUCKETS[width],
        zone=_UTC,
        group_by=frozenset({*group_by, *only}),
    ):
        if all(getattr(row, group.column) in wanted for group, wanted in only.items()):
            found[int(row.bucket_start.timestamp())].append(row)
    return found


def name_of(kind: Kind, id_: UUID | None) -> str | None:
    """The name of what was summed by; None where nothing was, and where there is none (a chat has no key)."""
    return kind.name_of(id_) if id_ else None


def _tenant_ids(call: Call, project_ids: Collection[str]) -> list[UUID] | None:
    """The tenants whose usage is asked for; None: every one."""
    if project_ids:
        return [tenant.id for tenant in projects_of(call, project_ids, param="project_ids")]
    if administration.administers_all(call.principal):
        return None
    return list(administration.administered(call.principal).values_list("id", flat=True))


def _parsed(kind: Kind, names: Collection[str], param: str) -> list[UUID]:
    ids = []
    for index, name in enumerate(names):
        id_ = kind.parse(name)
        if id_ is None:
            raise ApiError(
                ErrorCode.INVALID_VALUE,
                f"`{param}[{index}]` must be an id, as in {kind.value}_….",
                param=f"{param}[{index}]",
            )
        ids.append(id_)
    return ids
