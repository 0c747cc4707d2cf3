"""``GET /v1/usage``: what this key's tenant used, by hours or days of its own calendar."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Final, Literal
from zoneinfo import ZoneInfo

from django.utils import timezone

from accounts import usage_queries
from accounts.models import Scope, Tenant
from accounts.usage_queries import Bucket, Group, UsageRow
from inference.api.answers import AnswerModel
from inference.api.endpoint import Call, endpoint
from inference.api.errors import ApiError, ErrorCode
from inference.api.organization.ids import Kind
from inference.api.queries import QueryModel, parameters_of, read_query

#: Longest time that can be asked for at once, and the time that is meant where no start is given, by bucket, in days.
_LONGEST: Final = {Bucket.HOUR: 31, Bucket.DAY: 366}
_IF_ABSENT: Final = {Bucket.HOUR: 1, Bucket.DAY: 30}

_SECONDS: Final = re.compile(r"[0-9]{1,11}")
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_LAST: Final = datetime(9998, 1, 1, tzinfo=UTC)


class TenantUsageQuery(QueryModel):
    """Of which time, and what to sum by."""

    start: str | None = None
    """Unix time in whole seconds, or a date (`2026-11-30`: when that day begins in the tenant's time zone). If absent:
    30 days before `end`, or 24 hours where `bucket` is `hour`."""
    end: str | None = None
    """The same; not included itself. If absent: now. At most 366 days behind `start`, or 31 with `bucket=hour`."""
    bucket: Literal["hour", "day"] = "day"
    """The pieces of time that usage is summed in. A day is one of the tenant's calendar."""
    group_by: list[Literal["api_key", "model", "lane"]] = []
    """What else to sum by; may be repeated."""


class UsageSum(AnswerModel):
    """What was used in one bucket, by one of each group that was asked for."""

    start: int
    """Unix time, as `end`, which is not included."""
    end: int
    api_key_id: str | None
    """Null unless grouped by it, and for what members used in the chat."""
    model: str | None
    lane: str | None
    generations: int
    prompt_tokens: int
    cached_tokens: int
    """Part of `prompt_tokens`: they were not run again."""
    completion_tokens: int
    accepted_prediction_tokens: int
    """Part of `completion_tokens`: a drafter had guessed them."""
    costs: dict[str, str]
    """Exact amounts by currency, as in `{"EUR": "0.0042"}`. What had no price when it was used has no part in them."""


class UsageReport(AnswerModel):
    """Sums of what ended in that time; where nothing did there is none."""

    object: Literal["usage"] = "usage"
    start: int
    end: int
    time_zone: str
    bucket: Literal["hour", "day"]
    data: list[UsageSum]


@endpoint(
    "GET",
    summary="See what was used",
    tag="Limits and usage",
    scopes=(Scope.READ, Scope.ADMIN),
    answer=UsageReport,
    parameters=parameters_of(TenantUsageQuery),
    errors=(ErrorCode.INVALID_VALUE,),
)
def retrieve_usage(call: Call) -> UsageReport:
    """What all keys and members of this key's tenant used, exact to the token. A generation counts when it ends."""
    query = read_query(call.request, TenantUsageQuery)
    tenant_id = call.principal.tenant_id
    zone = ZoneInfo(Tenant.objects.values_list("time_zone", flat=True).get(id=tenant_id))
    bucket = Bucket(query.bucket)
    since, until = _time_of(query, bucket, zone, timezone.now())
    rows = usage_queries.usage(
        tenant_ids=[tenant_id],
        since=since,
        until=until,
        bucket=bucket,
        zone=zone,
        group_by=frozenset(Group(name) for name in query.group_by),
    )
    return UsageReport(
        start=int(since.timestamp()),
        end=int(until.timestamp()),
        time_zone=zone.key,
        bucket=query.bucket,
        data=[_sum(row) for row in rows],
    )


def _time_of(
    query: TenantUsageQuery, bucket: Bucket, zone: ZoneInfo, now: datetime
) -> tuple[datetime, datetime]:
    """From when until when. Raises ``ApiError`` 400 for what is no time, or too long a one."""
    # What ended in this very second is part of what was used until now.
    until = (now + timedelta(seconds=1)).replace(microsecond=0)
    if query.end is not None:
        until = _moment(query.end, "end", zone)
    since = until - timedelta(days=_IF_ABSENT[bucket])
    if query.start is not None:
        since = _moment(query.start, "start", zone)
    longest = timedelta(days=_LONGEST[bucket])
    if not since < until:
        raise ApiError(ErrorCode.INVALID_VALUE, "`start` must be before `end`.", param="start")
    # As many days of a calendar are an hour longer where its clocks go back.
    if until - since > longest + timedelta(hours=2):
        raise ApiError(
            ErrorCode.INVALID_VALUE,
            f"`start` and `end` must be at most {longest.days} days apart where `bucket` is `{bucket.value}`.",
            param="start",
        )
    return since, until


def _moment(text: str, name: str, zone: ZoneInfo) -> datetime:
    if _SECONDS.fullmatch(text):
        at = datetime.fromtimestamp(int(text), UTC)
    elif _DATE.fullmatch(text):
        try:
            at = datetime.combine(date.fromisoformat(text), time.min, zone).astimezone(UTC)
        except (ValueError, OverflowError):
            raise _no_time(name) from None
    else:
        raise _no_time(name)
    if not usage_queries.EARLIEST <= at <= _LAST:
        raise _no_time(name)
    return at


def _no_time(name: str) -> ApiError:
    return ApiError(
        ErrorCode.INVALID_VALUE,
        f"`{name}` must be a Unix time in whole seconds, or a date as in 2026-11-30, from 2000 on.",
        param=name,
    )


def _sum(row: UsageRow) -> UsageSum:
    return UsageSum(
        start=int(row.bucket_start.timestamp()),
        end=int(row.bucket_end.timestamp()),
        api_key_id=None if row.api_key_id is None else Kind.API_KEY.name_of(row.api_key_id),
        model=row.model,
        lane=row.lane,
        generations=row.generations,
        prompt_tokens=row.prompt_tokens,
        cached_tokens=row.cached_tokens,
        completion_tokens=row.completion_tokens,
        accepted_prediction_tokens=row.accepted_prediction_tokens,
        costs={currency: _amount(cost) for currency, cost in row.costs.items()},
    )


def _amount(cost: Decimal) -> str:
    """Without an exponent, and without zeros that say nothing."""
    text = f"{cost:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
