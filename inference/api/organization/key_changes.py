"""``/v1/organization/projects/{id}/api_keys/{id}`` and ``…/rotate``: a key changed, and a key replaced."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Final

from django.db import transaction

from accounts import keys
from accounts.actors import actor_of_key
from accounts.models import ApiKey
from accounts.tenancy import tenant_scope
from inference.api.endpoint import Call, endpoint
from inference.api.errors import ErrorCode
from inference.api.fields import Range, RequestModel
from inference.api.idempotent import IDEMPOTENCY_KEY, answer_once
from inference.api.organization import key_shapes
from inference.api.organization.access import (
    ADMINISTRATORS,
    TAG,
    expiry,
    key_of,
    lane_named,
    project_of,
    refusals_told,
)
from inference.api.organization.api_keys import PARAMS, KeyLimitsRequest, Life, Names, Scopes
from inference.api.organization.key_shapes import IssuedApiKey, ProjectApiKey
from inference.api.queries import NoQuery, read_query

#: The longest overlap of a rotation, in seconds.
LONGEST_OVERLAP_S: Final = 30 * 24 * 3600

_ERRORS: Final = (
    ErrorCode.PROJECT_NOT_FOUND,
    ErrorCode.API_KEY_NOT_FOUND,
    ErrorCode.CONFLICT,
    ErrorCode.IDEMPOTENCY_CONFLICT,
)


class ApiKeyUpdateRequest(RequestModel):
    """What is to change of a key: what is absent stays as it is."""

    name: str | None = None
    """Ours: 1 to 100 characters."""
    scopes: Scopes | None = None
    """What it may be used for."""
    expires_in_seconds: Life | None = None
    """From now on."""
    default_lane: str | None = None
    """Ours: the lane of requests that ask for none."""
    allowed_lanes: Names | None = None
    """Ours: its requests get no other lane. Empty: every lane of the project."""
    allowed_models: Names | None = None
    """Ours: the models that it may use. Empty: every model."""
    allowed_networks: Names | None = None
    """Ours: addresses and networks that it may be used from. Empty: anywhere."""
    limits: KeyLimitsRequest | None = None
    """Ours: all its own limits at once, for it and for a key that it was rotated from or to."""


class ApiKeyRotateRequest(RequestModel):
    """How a key is to be replaced."""

    overlap_seconds: Annotated[int, Range(0, LONGEST_OVERLAP_S)] = int(keys.DEFAULT_OVERLAP.total_seconds())
    """How long the old key works on beside the new one. Absent: a day."""


@endpoint(
    "POST",
    summary="Change an API key",
    tag=TAG,
    scopes=ADMINISTRATORS,
    body=ApiKeyUpdateRequest,
    answer=ProjectApiKey,
    parameters=(IDEMPOTENCY_KEY,),
    errors=(*_ERRORS, ErrorCode.UNKNOWN_LANE),
)
def modify_project_api_key(
    call: Call, body: ApiKeyUpdateRequest, project_id: str, api_key_id: str
) -> ProjectApiKey:
    """Change what a working key is called and may do, from the next request on."""
    read_query(call.request, NoQuery)
    tenant = project_of(call, project_id)
    with tenant_scope(tenant.id):
        key_id = key_of(api_key_id).id

    def change() -> ProjectApiKey:
        with (
            tenant_scope(tenant.id),
            transaction.atomic(),
            refusals_told(**PARAMS),
        ):
            # Two changes of one field each: the second one has to see what the first one made.
            ApiKey.objects.select_for_update(no_key=True).get(id=key_id)
            key = key_of(api_key_id)
            keys.change(
                key=key,
                name=key.name if body.name is None else body.name,
                scopes=key.scopes if body.scopes is None else body.scopes,
                default_lane=lane_named(body.default_lane, param="default_lane") or key.default_lane,
                expires_at=expiry(body.expires_in_seconds) or key.expires_at,
                allowed_lanes=body.allowed_lanes,
                allowed_models=body.allowed_models,
                allowed_networks=body.allowed_networks,
                limits=body.limits.limits() if body.limits else None,
                actor=actor_of_key(call.request, call.principal),
            )
            [described] = key_shapes.described([key_of(api_key_id)])
        return described

    return answer_once(call, body, change, route=f"api_key.modify:{key_id.hex}", answer=ProjectApiKey)


@endpoint(
    "POST",
    summary="Rotate an API key",
    tag=TAG,
    scopes=ADMINISTRATORS,
    body=ApiKeyRotateRequest,
    answer=IssuedApiKey,
    parameters=(IDEMPOTENCY_KEY,),
    errors=_ERRORS,
)
def rotate_project_api_key(
    call: Call, body: ApiKeyRotateRequest, project_id: str, api_key_id: str
) -> IssuedApiKey:
    """Ours: a new key with the rights and the budgets of this one, which works on until the overlap is over. Whose
    answer was lost may rotate the same key again."""
    read_query(call.request, NoQuery)
    tenant = project_of(call, project_id)
    with tenant_scope(tenant.id):
        key = key_of(api_key_id)

    def rotate() -> IssuedApiKey:
        with tenant_scope(tenant.id), refusals_told(overlap="overlap_seconds"):
            issued = keys.rotate(
                key=key,
                overlap=timedelta(seconds=body.overlap_seconds),
                actor=actor_of_key(call.request, call.principal),
            )
            return key_shapes.issued(issued)

    return answer_once(
        call,
        body,
        rotate,
        route=f"api_key.rotate:{key.id.hex}",
        answer=IssuedApiKey,
        kept=IssuedApiKey.without_value,
    )
