"""``/v1/organization/projects/{id}/rate_limits``: what a tenant may ask for in a minute, lane by lane.

OpenAI limits a project's requests to each model. Here a tenant has a right to a lane, whatever the model, and the
limits are that right's: so there is one for each lane, and ``model`` holds the lane's name.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Final, Literal

from django.db import transaction
from django.db.models import QuerySet

from accounts import entitlements
from accounts.actors import actor_of_key
from accounts.models import Entitlement
from accounts.models.entitlement import GIVING
from accounts.tenancy import tenant_scope
from inference.api.answers import AnswerModel
from inference.api.endpoint import Call, endpoint
from inference.api.errors import ApiError, ErrorCode
from inference.api.fields import Range, RequestModel
from inference.api.idempotent import IDEMPOTENCY_KEY, answer_once
from inference.api.organization.access import ADMINISTRATORS, OPERATORS, TAG, project_of, refusals_told
from inference.api.pages import Page
from inference.api.queries import NoQuery, QueryModel, parameters_of, read_query

#: What stands for no limit: clients expect a number. The largest that every JSON reader keeps exactly.
UNLIMITED: Final = 2**53 - 1

_PREFIX: Final = "rl-"


class ProjectRateLimit(AnswerModel):
    """The rates of a project's standing right to one lane, for all its keys together."""

    id: str
    object: Literal["project.rate_limit"] = "project.rate_limit"
    model: str
    """The lane's name: the limits hold for every model together."""
    max_requests_per_1_minute: int
    """Generations accepted in any 60 seconds. 9007199254740991: no limit."""
    max_tokens_per_1_minute: int
    """Tokens accepted in any 60 seconds, by what a generation may use at most. 9007199254740991: no limit."""


class ProjectRateLimitList(Page):
    """The rate limits of a project, highest lane first."""

    data: list[ProjectRateLimit]


class RateLimitListQuery(QueryModel):
    """Which of a project's rate limits."""

    after: str | None = None
    """Those behind the one of this id."""
    before: str | None = None
    """Those before the one of this id."""
    limit: Annotated[int, Range(1, 100)] = 100
    """Entries of a page."""


class RateLimitUpdateRequest(RequestModel):
    """The rates to be set; an absent one stays as it is."""

    max_requests_per_1_minute: Annotated[int, Range(0, UNLIMITED)] | None = None
    """0: none at all. 9007199254740991: no limit."""
    max_tokens_per_1_minute: Annotated[int, Range(0, UNLIMITED)] | None = None
    """0: none at all. 9007199254740991: no limit."""


@endpoint(
    "GET",
    summary="List a project's rate limits",
    tag=TAG,
    scopes=ADMINISTRATORS,
    answer=ProjectRateLimitList,
    parameters=parameters_of(RateLimitListQuery),
    errors=(ErrorCode.PROJECT_NOT_FOUND,),
)
def list_project_rate_limits(call: Call, project_id: str) -> ProjectRateLimitList:
    """One for each lane that the project has a standing right to."""
    query = read_query(call.request, RateLimitListQuery)
    tenant = project_of(call, project_id)
    with tenant_scope(tenant.id):
        limits = [_described(entitlement) for entitlement in _standing()]
    data, has_more = _page(limits, query)
    return ProjectRateLimitList(
        data=data,
        first_id=data[0].id if data else None,
        last_id=data[-1].id if data else None,
        has_more=has_more,
    )


@endpoint(
    "POST",
    summary="Change a project's rate limit",
    tag=TAG,
    scopes=OPERATORS,
    body=RateLimitUpdateRequest,
    answer=ProjectRateLimit,
    parameters=(IDEMPOTENCY_KEY,),
    errors=(
        ErrorCode.PROJECT_NOT_FOUND,
        ErrorCode.RATE_LIMIT_NOT_FOUND,
        ErrorCode.CONFLICT,
        ErrorCode.IDEMPOTENCY_CONFLICT,
    ),
)
def update_project_rate_limit(
    call: Call, body: RateLimitUpdateRequest, project_id: str, rate_limit_id: str
) -> ProjectRateLimit:
    """For what is accepted from now on. Where a lane takes a second operator's approval, higher rates are granted in
    the admin."""
    read_query(call.request, NoQuery)
    tenant = project_of(call, project_id)
    with tenant_scope(tenant.id):
        entitlement_id = _right_of(rate_limit_id).id

    def change() -> ProjectRateLimit:
        with tenant_scope(tenant.id), transaction.atomic(), refusals_told():
            # Two changes of one rate each: the second one has to see what the first one made.
            entitlements.lock_tenant(tenant.id)
            entitlement = _right_of(rate_limit_id)
            before = entitlement.allowance.limits
            limits = replace(
                before,
                requests_per_minute=_limit(body.max_requests_per_1_minute, before.requests_per_minute),
                tokens_per_minute=_limit(body.max_tokens_per_1_minute, before.tokens_per_minute),
            )
            actor = actor_of_key(call.request, call.principal)
            return _described(entitlements.change(entitlement=entitlement, limits=limits, actor=actor))

    return answer_once(
        call, body, change, route=f"rate_limit.update:{entitlement_id.hex}", answer=ProjectRateLimit
    )


def rate_limit_id(lane: str) -> str:
    """What the rate limit of a project in ``lane`` is called."""
    return f"{_PREFIX}{lane}"


def lane_of(rate_limit_id: str) -> str | None:
    """The lane whose rates ``rate_limit_id`` names; None where it is no name of a rate limit."""
    lane = rate_limit_id.removeprefix(_PREFIX)
    return lane if lane != rate_limit_id else None


def _right_of(rate_limit_id: str) -> Entitlement:
    """The standing right of the tenant in scope whose rates ``rate_limit_id`` names. Raises ``ApiError`` 404."""
    lane = lane_of(rate_limit_id)
    entitlement = _standing().filter(lane=lane).first() if lane else None
    if entitlement is None:
        raise ApiError(ErrorCode.RATE_LIMIT_NOT_FOUND, "There is no such rate limit.")
    return entitlement


def _standing() -> QuerySet[Entitlement]:
    """The standing rights of the tenant in scope, one a lane, with what limits them."""
    rights: QuerySet[Entitlement] = (
        Entitlement.objects.filter(ends_at=None, ended_at=None, approval__in=GIVING)
        .select_related("allowance")
        .order_by("lane__rank")
    )
    return rights


def _described(entitlement: Entitlement) -> ProjectRateLimit:
    limits = entitlement.allowance.limits
    return ProjectRateLimit(
        id=rate_limit_id(entitlement.lane_id),
        model=entitlement.lane_id,
        max_requests_per_1_minute=shown_rate(limits.requests_per_minute),
        max_tokens_per_1_minute=shown_rate(limits.tokens_per_minute),
    )


def shown_rate(limit: int | None) -> int:
    """A rate as OpenAI's shape holds it, which has no word for none."""
    return UNLIMITED if limit is None else min(limit, UNLIMITED)


def _limit(wanted: int | None, before: int | None) -> int | None:
    if wanted is None:
        return before
    return None if wanted == UNLIMITED else wanted


def _page(limits: list[ProjectRateLimit], query: RateLimitListQuery) -> tuple[list[ProjectRateLimit], bool]:
    """What lies behind ``after`` and before ``before``: from its end where only ``before`` is given."""
    start = _index(limits, query.after, "after") + 1 if query.after is not None else 0
    end = _index(limits, query.before, "before") if query.before is not None else len(limits)
    between = limits[start:end]
    if query.before is not None and query.after is None:
        return between[-query.limit :], len(between) > query.limit
    return between[: query.limit], len(between) > query.limit


def _index(limits: list[ProjectRateLimit], id_: str, param: str) -> int:
    for index, limit in enumerate(limits):
        if limit.id == id_:
            return index
    raise ApiError(
        ErrorCode.INVALID_VALUE, f"`{param}` must be the id of one of the project's rate limits.", param=param
    )
