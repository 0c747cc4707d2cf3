"""``/v1/organization/projects/{id}/api_keys``: a tenant's keys."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from django.db.models import Q
from pydantic import Field

from accounts import keys
from accounts.actors import actor_of_key
from accounts.key_rights import LONGEST_LIST
from accounts.limits import LimitName, Limits
from accounts.tenancy import tenant_scope
from inference.api.endpoint import Call, endpoint
from inference.api.errors import ErrorCode
from inference.api.fields import Range, RequestModel
from inference.api.idempotent import IDEMPOTENCY_KEY, answer_once
from inference.api.organization import key_shapes
from inference.api.organization.access import (
    ADMINISTRATORS,
    LONGEST_LIFE_S,
    TAG,
    expiry,
    key_of,
    keys_in_scope,
    lane_named,
    project_of,
    refusals_told,
)
from inference.api.organization.ids import Kind
from inference.api.organization.key_shapes import (
    DeletedApiKey,
    IssuedApiKey,
    ProjectApiKey,
    ProjectApiKeyList,
)
from inference.api.organization.paging import ListQuery, page_of
from inference.api.queries import NoQuery, parameters_of, read_query

#: Not those that reach every tenant: no key may make such a key.
ScopeName = Literal["inference", "read", "admin"]
Scopes = Annotated[list[ScopeName], Field(min_length=1, max_length=3)]
Names = Annotated[list[str], Field(max_length=LONGEST_LIST)]
Life = Annotated[int, Range(1, LONGEST_LIFE_S)]

_DEFAULT_SCOPES: Final[list[ScopeName]] = ["inference", "read"]
#: Where a body holds what the verbs call otherwise.
PARAMS: Final = {
    "expires_at": "expires_in_seconds",
    **{name.value: f"limits.{name.value}" for name in LimitName},
}


class ApiKeyListQuery(ListQuery):
    """Which keys."""

    include_revoked: bool = False
    """Ours: also those that were revoked."""


class KeyLimitsRequest(RequestModel):
    """A key's own limits. Absent: none of its own; 0: nothing at all."""

    tokens_per_day: int | None = None
    tokens_per_week: int | None = None
    tokens_per_month: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency: int | None = None

    def limits(self) -> Limits:
        """The same for the domain."""
        return Limits(**self.model_dump())


class ApiKeyCreateRequest(RequestModel):
    """A key to be made."""

    name: str
    """1 to 100 characters."""
    scopes: Scopes = _DEFAULT_SCOPES
    """What it may be used for."""
    expires_in_seconds: Life | None = None
    """From now on. Absent: it does not expire."""
    default_lane: str | None = None
    """The lane of requests that ask for none. Absent: normal."""
    allowed_lanes: Names = []
    """Its requests get no other lane. Empty: every lane of the project."""
    allowed_models: Names = []
    """The models that it may use. Empty: every model."""
    allowed_networks: Names = []
    """Addresses and networks that it may be used from, as in `192.0.2.0/24`. Empty: anywhere."""
    limits: KeyLimitsRequest = KeyLimitsRequest()


@endpoint(
    "GET",
    summary="List a project's API keys",
    tag=TAG,
    scopes=ADMINISTRATORS,
    answer=ProjectApiKeyList,
    parameters=parameters_of(ApiKeyListQuery),
    errors=(ErrorCode.PROJECT_NOT_FOUND,),
)
def list_project_api_keys(call: Call, project_id: str) -> ProjectApiKeyList:
    """The keys that are not revoked, expired ones too. Their texts were shown when they were made, and never again."""
    query = read_query(call.request, ApiKeyListQuery)
    tenant = project_of(call, project_id)
    shown = None if query.include_revoked else Q(revoked_at=None)
    with tenant_scope(tenant.id):
        found, has_more = page_of(keys_in_scope(), query, Kind.API_KEY, shown=shown)
        data = key_shapes.described(found)
    return ProjectApiKeyList(
        data=data,
        first_id=data[0].id if data else None,
        last_id=data[-1].id if data else None,
        has_more=has_more,
    )


@endpoint(
    "POST",
    summary="Create an API key",
    tag=TAG,
    scopes=ADMINISTRATORS,
    body=ApiKeyCreateRequest,
    answer=IssuedApiKey,
    parameters=(IDEMPOTENCY_KEY,),
    errors=(
        ErrorCode.PROJECT_NOT_FOUND,
        ErrorCode.UNKNOWN_LANE,
        ErrorCode.CONFLICT,
        ErrorCode.IDEMPOTENCY_CONFLICT,
    ),
)
def create_project_api_key(call: Call, body: ApiKeyCreateRequest, project_id: str) -> IssuedApiKey:
    """Ours: a new key, whose text is in `value`, this once."""
    read_query(call.request, NoQuery)
    tenant = project_of(call, project_id)

    def create() -> IssuedApiKey:
        with tenant_scope(tenant.id), refusals_told(**PARAMS):
            issued = keys.create(
                tenant=tenant,
                name=body.name,
                scopes=body.scopes,
                expires_at=expiry(body.expires_in_seconds),
                default_lane=lane_named(body.default_lane, param="default_lane"),
                allowed_lanes=body.allowed_lanes,
                allowed_models=body.allowed_models,
                allowed_networks=body.allowed_networks,
                limits=body.limits.limits(),
                actor=actor_of_key(call.request, call.principal),
            )
            return key_shapes.issued(issued)

    return answer_once(
        call,
        body,
        create,
        route=f"api_key.create:{tenant.id.hex}",
        answer=IssuedApiKey,
        kept=IssuedApiKey.without_value,
    )


@endpoint(
    "GET",
    summary="Describe an API key",
    tag=TAG,
    scopes=ADMINISTRATORS,
    answer=ProjectApiKey,
    errors=(ErrorCode.PROJECT_NOT_FOUND, ErrorCode.API_KEY_NOT_FOUND),
)
def retrieve_project_api_key(call: Call, project_id: str, api_key_id: str) -> ProjectApiKey:
    """One key of the project, also a revoked one: usage names it."""
    read_query(call.request, NoQuery)
    tenant = project_of(call, project_id)
    with tenant_scope(tenant.id):
        [described] = key_shapes.described([key_of(api_key_id)])
    return described


@endpoint(
    "DELETE",
    summary="Revoke an API key",
    tag=TAG,
    scopes=ADMINISTRATORS,
    answer=DeletedApiKey,
    errors=(ErrorCode.PROJECT_NOT_FOUND, ErrorCode.API_KEY_NOT_FOUND),
)
def delete_project_api_key(call: Call, project_id: str, api_key_id: str) -> DeletedApiKey:
    """It is refused from the next request on, and what it runs is cancelled. May be repeated."""
    read_query(call.request, NoQuery)
    tenant = project_of(call, project_id)
    with tenant_scope(tenant.id):
        key = keys.revoke(key=key_of(api_key_id), actor=actor_of_key(call.request, call.principal))
    return DeletedApiKey(id=Kind.API_KEY.name_of(key.id))
