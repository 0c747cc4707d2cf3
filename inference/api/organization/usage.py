"""``GET /v1/organization/usage/completions``: how many tokens were used, when, and by whom."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

from accounts.models import Lane
from accounts.usage_queries import Group, UsageRow
from inference.api.answers import AnswerModel
from inference.api.endpoint import Call, endpoint
from inference.api.errors import ApiError, ErrorCode
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

#: Buckets of a page, by their width: if absent, and at most.
_LIMITS: Final = {"1m": (60, 1440), "1h": (24, 168), "1d": (7, 31)}

_GROUPS: Final = {
    "project_id": Group.TENANT,
    "user_id": Group.USER,
    "api_key_id": Group.API_KEY,
    "model": Group.MODEL,
    "service_tier": Group.LANE,
}


class CompletionsUsage(AnswerModel):
    """What was used in a bucket. What it was not grouped by is null."""

    object: Literal["organization.usage.completions.result"] = "organization.usage.completions.result"
    input_tokens: int
    """Of prompts, the cached ones included."""
    input_cached_tokens: int
    """Of these, those that were not run again."""
    input_uncached_tokens: int
    """Of these, those that were run."""
    output_tokens: int
    """Of answers, also of those that were cancelled or failed."""
    input_audio_tokens: Literal[0] = 0
    output_audio_tokens: Literal[0] = 0
    accepted_prediction_tokens: int
    """Ours: of the answers' tokens, those that the drafter had guessed."""
    rejected_prediction_tokens: int
    """Ours: guessed in vain; part of no other count."""
    num_model_requests: int
    """Generations."""
    project_id: str | None
    user_id: str | None
    """Who chatted in the browser; null for what was made with a key."""
    api_key_id: str | None
    """Null for what was said in the browser."""
    model: str | None
    batch: None = None
    service_tier: str | None
    """Of the lane that was given."""


class CompletionsUsageBucket(AnswerModel):
    """A piece of time."""

    object: Literal["bucket"] = "bucket"
    start_time: int
    end_time: int
    """Exclusive."""
    results: list[CompletionsUsage]
    """One for each group; none where nothing was used."""


class CompletionsUsagePage(AnswerModel):
    """Buckets without gaps, oldest first."""

    object: Literal["page"] = "page"
    data: list[CompletionsUsageBucket]
    has_more: bool
    next_page: str | None
    """Ask for it with `page`."""


class CompletionsUsageQuestion(UsageQuestion):
    """Which usage, and how it is summed."""

    models: Names = []
    """Only of these models."""
    bucket_width: Literal["1m", "1h", "1d"] = "1d"
    """Minutes, hours or days, of UTC."""
    group_by: list[Literal["project_id", "user_id", "api_key_id", "model", "service_tier"]] = []
    """What is summed apart."""
    limit: int | None = None
    """Buckets of a page: 7 days (at most 31), 24 hours (168) or 60 minutes (1440)."""


@endpoint(
    "GET",
    summary="Usage of the models",
    tag=TAG,
    scopes=ADMINISTRATORS,
    answer=CompletionsUsagePage,
    parameters=parameters_of(CompletionsUsageQuestion),
    errors=(ErrorCode.PROJECT_NOT_FOUND,),
)
def completions_usage(call: Call) -> CompletionsUsagePage:
    """From the ledger, exact to the token: what has ended, in the bucket in which it ended."""
    question = read_query(call.request, CompletionsUsageQuestion)
    width = question.bucket_width
    asked = slice_of(question, width, _limit(question))
    groups = frozenset(_GROUPS[name] for name in question.group_by)
    rows = rows_of(call, question, asked, width, groups, models=question.models)
    tiers = _tiers() if Group.LANE in groups else {}
    return CompletionsUsagePage(
        data=[
            CompletionsUsageBucket(
                start_time=start, end_time=end, results=_results(rows.get(start, ()), groups, tiers)
            )
            for start, end in asked.bounds()
        ],
        has_more=asked.next_page is not None,
        next_page=asked.next_page,
    )


def _limit(question: CompletionsUsageQuestion) -> int:
    usual, most = _LIMITS[question.bucket_width]
    limit = usual if question.limit is None else question.limit
    if not 1 <= limit <= most:
        raise ApiError(
            ErrorCode.INVALID_VALUE,
            f"`limit` must be between 1 and {most} for a `bucket_width` of {question.bucket_width}, not {limit}.",
            param="limit",
        )
    return limit


def _tiers() -> dict[str, str]:
    return dict(Lane.objects.values_list("name", "service_tier"))


def _results(
    rows: Iterable[UsageRow], groups: frozenset[Group], tiers: dict[str, str]
) -> list[CompletionsUsage]:
    by_group: dict[tuple[object, ...], list[UsageRow]] = {}
    for row in rows:
        # A row may be of less than was asked for, where something had to be left out.
        key = tuple(getattr(row, group.column) for group in Group if group in groups)
        by_group.setdefault(key, []).append(row)
    return [_result(of_one, groups, tiers) for of_one in by_group.values()]


def _result(rows: list[UsageRow], groups: frozenset[Group], tiers: dict[str, str]) -> CompletionsUsage:
    prompt = sum(row.prompt_tokens for row in rows)
    cached = sum(row.cached_tokens for row in rows)
    any_row = rows[0]
    return CompletionsUsage(
        input_tokens=prompt,
        input_cached_tokens=cached,
        input_uncached_tokens=prompt - cached,
        output_tokens=sum(row.completion_tokens for row in rows),
        accepted_prediction_tokens=sum(row.accepted_prediction_tokens for row in rows),
        rejected_prediction_tokens=sum(row.rejected_prediction_tokens for row in rows),
        num_model_requests=sum(row.generations for row in rows),
        project_id=name_of(Kind.PROJECT, any_row.tenant_id) if Group.TENANT in groups else None,
        user_id=name_of(Kind.USER, any_row.user_id) if Group.USER in groups else None,
        api_key_id=name_of(Kind.API_KEY, any_row.api_key_id) if Group.API_KEY in groups else None,
        model=any_row.model if Group.MODEL in groups else None,
        service_tier=tiers.get(any_row.lane or "", any_row.lane) if Group.LANE in groups else None,
    )
