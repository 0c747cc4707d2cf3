"""``/v1/organization/projects/{id}/service_accounts``: the applications that a tenant's keys belong to.

There is no row for one: it is its first key and those that replaced it by rotation, and its id is the first one's.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from django.db.models import Exists, OuterRef, Q, QuerySet

from accounts import keys
from accounts.actors import actor_of_key
from accounts.limits import LimitName
from accounts.models import ApiKey
from accounts.tenancy import tenant_scope
from inference.api.answers import AnswerModel
from inference.api.endpoint import Call, endpoint
from inference.api.errors import ApiError, ErrorCode
from inference.api.fields import Range, RequestModel, Unsupported
from inference.api.idempotent import IDEMPOTENCY_KEY, answer_once
from inference.api.organization.access import (
    ADMINISTRATORS,
    LONGEST_LIFE_S,
    TAG,
    expiry,
    project_of,
    refusals_told,
    unix,
)
from inference.api.organization.ids import Kind
from inference.api.organization.paging import ListQuery, page_of
from inference.api.pages import Page
from inference.api.queries import NoQuery, parameters_of, read_query

#: Where a body holds what the verbs call otherwise. What narrows keys is no part of it.
_PARAMS: Final = {
    "expires_at": "expires_in_seconds",
    **dict.fromkeys(("allowed_lanes", "allowed_models", "allowed_networks", *LimitName), ""),
}


class ServiceAccount(AnswerModel):
    """An application of the project."""

    id: str
    object: Literal["organization.project.service_account"] = "organization.project.service_account"
    name: str
    role: Literal["member"] = "member"
    created_at: int


class ServiceAccountApiKey(AnswerModel):
    """The new application's key."""

    id: str
    object: Literal["organization.project.service_account.api_key"] = (
        "organization.project.service_account.api_key"
    )
    name: str
    value: str | None
    """The key itself. It is stored nowhere, so it is null where an `Idempotency-Key` asks for the answer again."""
    created_at: int
    expires_at: int | None


class IssuedServiceAccount(ServiceAccount):
    """A new application, with its key."""

    api_key: ServiceAccountApiKey

    def without_value(self) -> IssuedServiceAccount:
        """What may be stored of it."""
        return self.model_copy(update={"api_key": self.api_key.model_copy(update={"value": None})})


class ServiceAccountList(Page):
    """Applications, oldest first unless `order` says otherwise."""

    data: list[ServiceAccount]


class DeletedServiceAccount(AnswerModel):
    """An application whose keys work no more."""

    id: str
    object: Literal["organization.project.service_account.deleted"] = (
        "organization.project.service_account.deleted"
    )
    deleted: Literal[True] = True


class ServiceAccountCreateRequest(RequestModel):
    """An application to be given a key."""

    name: str
    """1 to 100 characters."""
    create_service_account_only: Annotated[object, Unsupported(False)] = False
    expires_in_seconds: Annotated[int, Range(1, LONGEST_LIFE_S)] | None = None
    """Of the key, from now on. Absent: it does not expire."""


@endpoint(
    "GET",
    summary="List a project's service accounts",
    tag=TAG,
    scopes=ADMINISTRATORS,
    answer=ServiceAccountList,
    parameters=parameters_of(ListQuery),
    errors=(ErrorCode.PROJECT_NOT_FOUND,),
)
def list_service_accounts(call: Call, project_id: str) -> ServiceAccountList:
    """The applications that have a key which is not revoked."""
    query = read_query(call.request, ListQuery)
    tenant = project_of(call, project_id)
    with tenant_scope(tenant.id):
        found, has_more = page_of(
            _first_keys(), query, Kind.SERVICE_ACCOUNT, shown=Q(Exists(_working_keys()))
        )
    data = [_described(first) for first in found]
    return ServiceAccountList(
        data=data,
        first_id=data[0].id if data else None,
        last_id=data[-1].id if data else None,
        has_more=has_more,
    )


@endpoint(
    "POST",
    summary="Create a service account",
    tag=TAG,
    scopes=ADMINISTRATORS,
    body=ServiceAccountCreateRequest,
    answer=IssuedServiceAccount,
    parameters=(IDEMPOTENCY_KEY,),
    errors=(ErrorCode.PROJECT_NOT_FOUND, ErrorCode.CONFLICT, ErrorCode.IDEMPOTENCY_CONFLICT),
)
def create_service_account(
    call: Call, body: ServiceAccountCreateRequest, project_id: str
) -> IssuedServiceAccount:
    """A new key for the use of the project's models, in the shape in which OpenAI's clients make one."""
    read_query(call.request, NoQuery)
    tenant = project_of(call, project_id)

    def create() -> IssuedServiceAccount:
        with refusals_told(**_PARAMS):
            issued = keys.create(
                tenant=tenant,
                name=body.name,
                expires_at=expiry(body.expires_in_seconds),
                actor=actor_of_key(call.request, call.principal),
            )
        key = issued.key
        return IssuedServiceAccount(
            **dict(_described(key)),
            api_key=ServiceAccountApiKey(
                id=Kind.API_KEY.name_of(key.id),
                name=key.name,
                value=issued.raw,
                created_at=unix(key.created_at),
                expires_at=unix(key.expires_at) if key.expires_at else None,
            ),
        )

    return answer_once(
        call,
        body,
        create,
        route=f"service_account.create:{tenant.id.hex}",
        answer=IssuedServiceAccount,
        kept=IssuedServiceAccount.without_value,
    )


@endpoint(
    "GET",
    summary="Describe a service account",
    tag=TAG,
    scopes=ADMINISTRATORS,
    answer=ServiceAccount,
    errors=(ErrorCode.PROJECT_NOT_FOUND, ErrorCode.SERVICE_ACCOUNT_NOT_FOUND),
)
def retrieve_service_account(call: Call, project_id: str, service_account_id: str) -> ServiceAccount:
    """One application of the project, also one whose keys are revoked."""
    read_query(call.request, NoQuery)
    tenant = project_of(call, project_id)
    with tenant_scope(tenant.id):
        return _described(_first_key_of(service_account_id))


@endpoint(
    "DELETE",
    summary="Delete a service account",
    tag=TAG,
    scopes=ADMINISTRATORS,
    answer=DeletedServiceAccount,
    errors=(ErrorCode.PROJECT_NOT_FOUND, ErrorCode.SERVICE_ACCOUNT_NOT_FOUND),
)
def delete_service_account(call: Call, project_id: str, service_account_id: str) -> DeletedServiceAccount:
    """All its keys are revoked, and what they run is cancelled. May be repeated."""
    read_query(call.request, NoQuery)
    tenant = project_of(call, project_id)
    actor = actor_of_key(call.request, call.principal)
    with tenant_scope(tenant.id):
        first = _first_key_of(service_account_id)
        of_account = ApiKey.objects.filter(allowance=first.allowance_id, revoked_at=None)
        # Each in a transaction of its own, for nothing is locked after the audit's head. A rotation that is under way
        # has put its new key there when the old one is revoked.
        while key := of_account.order_by("created_at").first():
            keys.revoke(key=key, actor=actor)
    return DeletedServiceAccount(id=Kind.SERVICE_ACCOUNT.name_of(first.id))


def _described(first: ApiKey) -> ServiceAccount:
    return ServiceAccount(
        id=Kind.SERVICE_ACCOUNT.name_of(first.id), name=first.name, created_at=unix(first.created_at)
    )


def _first_keys() -> QuerySet[ApiKey]:
    return ApiKey.objects.filter(rotated_from=None)


def _working_keys() -> QuerySet[ApiKey]:
    """Of the application whose first key the outer query has: they share what they may use."""
    return ApiKey.objects.filter(allowance=OuterRef("allowance"), revoked_at=None)


def _first_key_of(service_account_id: str) -> ApiKey:
    id_ = Kind.SERVICE_ACCOUNT.parse(service_account_id)
    first = id_ and _first_keys().filter(id=id_).first()
    if not first:
        raise ApiError(ErrorCode.SERVICE_ACCOUNT_NOT_FOUND, "There is no such service account.")
    return first
