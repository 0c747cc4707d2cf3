"""What a key looks like to administrators."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Literal
from uuid import UUID

from accounts.keys import IssuedKey
from accounts.models import ApiKey
from inference.api.answers import AnswerModel
from inference.api.organization.access import unix
from inference.api.organization.ids import Kind
from inference.api.pages import Page


class OwningServiceAccount(AnswerModel):
    """Whose key it is: an application's. A key that replaces another by rotation is the same application's."""

    id: str
    name: str
    created_at: int
    role: Literal["member"] = "member"


class KeyOwner(AnswerModel):
    """Keys belong to the project's applications, never to a person."""

    type: Literal["service_account"] = "service_account"
    service_account: OwningServiceAccount


class KeyLimits(AnswerModel):
    """What the key may use at most, of what its project may. Null: no limit of its own."""

    tokens_per_day: int | None
    tokens_per_week: int | None
    tokens_per_month: int | None
    requests_per_minute: int | None
    tokens_per_minute: int | None
    concurrency: int | None


class ProjectApiKey(AnswerModel):
    """A key, without its text."""

    id: str
    object: Literal["organization.project.api_key"] = "organization.project.api_key"
    name: str
    redacted_value: str
    """Its public beginning."""
    created_at: int
    last_used_at: int | None
    """Null: never."""
    expires_at: int | None
    """From then on nothing new starts with it. Null: it does not expire."""
    owner: KeyOwner
    owner_project_access: Literal["active", "inactive"]
    """Inactive: the project is archived."""
    revoked_at: int | None
    """Ours: from then on it is refused, and what it ran was cancelled."""
    scopes: list[str]
    """Ours: what it may be used for."""
    default_lane: str | None
    """Ours: the lane of requests that ask for none. Null: normal."""
    allowed_lanes: list[str]
    """Ours: its requests get no other lane. Empty: every lane of the project."""
    allowed_models: list[str]
    """Ours: the models that it may use. Empty: every model."""
    allowed_networks: list[str]
    """Ours: where it may be used from. Empty: anywhere."""
    limits: KeyLimits
    """Ours: its own limits."""


class IssuedApiKey(ProjectApiKey):
    """A new key, with its text this once."""

    value: str | None
    """The key itself. It is stored nowhere, so it is null where an `Idempotency-Key` asks for the answer again."""

    def without_value(self) -> IssuedApiKey:
        """What may be stored of it."""
        return self.model_copy(update={"value": None})


class ProjectApiKeyList(Page):
    """Keys, oldest first unless `order` says otherwise."""

    data: list[ProjectApiKey]


class DeletedApiKey(AnswerModel):
    """A key that works no more."""

    id: str
    object: Literal["organization.project.api_key.deleted"] = "organization.project.api_key.deleted"
    deleted: Literal[True] = True


def described(keys: Collection[ApiKey]) -> list[ProjectApiKey]:
    """The keys of the active tenancy scope, which have their tenant and allowance with them; one query for them all."""
    first_ones = _first_keys(keys)
    return [ProjectApiKey.model_validate(_fields(key, first_ones[key.allowance_id])) for key in keys]


def issued(issued_key: IssuedKey) -> IssuedApiKey:
    """A key that was just made, in its tenant's scope."""
    key = issued_key.key
    fields = _fields(key, _first_keys([key])[key.allowance_id])
    return IssuedApiKey.model_validate({**fields, "value": issued_key.raw})


def _first_keys(keys: Collection[ApiKey]) -> Mapping[UUID, ApiKey]:
    """By allowance: it is what the keys of one application share, from the first one on."""
    allowances = {key.allowance_id for key in keys}
    first_ones = ApiKey.objects.filter(allowance__in=allowances, rotated_from=None)
    return {key.allowance_id: key for key in first_ones}


def _fields(key: ApiKey, first: ApiKey) -> dict[str, object]:
    return {
        "id": Kind.API_KEY.name_of(key.id),
        "name": key.name,
        "redacted_value": f"sb_{key.prefix}...",
        "created_at": unix(key.created_at),
        "last_used_at": unix(key.last_used_at) if key.last_used_at else None,
        "expires_at": unix(key.expires_at) if key.expires_at else None,
        "owner": {
            "service_account": {
                "id": Kind.SERVICE_ACCOUNT.name_of(first.id),
                "name": key.name,
                "created_at": unix(first.created_at),
            }
        },
        "owner_project_access": "inactive" if key.tenant.closed_at else "active",
        "revoked_at": unix(key.revoked_at) if key.revoked_at else None,
        "scopes": key.scopes,
        "default_lane": key.default_lane_id,
        "allowed_lanes": key.allowed_lanes,
        "allowed_models": key.allowed_models,
        "allowed_networks": key.allowed_networks,
        "limits": asdict(key.allowance.limits),
    }
