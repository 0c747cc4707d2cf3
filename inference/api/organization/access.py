"""What the routes of the organization have in common: who may reach what, and what a refused change is told."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Final

from django.db.models import QuerySet
from django.utils import timezone

from accounts import administration
from accounts.models import ApiKey, Lane, Scope, Tenant
from accounts.refusals import ChangeRefusal, ChangeRefused
from inference.api.endpoint import Call
from inference.api.errors import ApiError, ErrorCode, shown
from inference.api.organization.ids import Kind

TAG: Final = "Organization"
#: Of routes that a tenant's administrators may use for their own tenant, and operators for all.
ADMINISTRATORS: Final = (Scope.ADMIN, Scope.OPERATOR)
OPERATORS: Final = (Scope.OPERATOR,)
#: Of the audit: administrators read their own tenant's, the others every tenant's.
AUDITORS: Final = (Scope.ADMIN, Scope.OPERATOR, Scope.AUDIT)

#: Longest life that a key can be given, in seconds.
LONGEST_LIFE_S: Final = 10 * 365 * 24 * 3600

#: What a refused change is told; every other refusal is for the state that the thing is in.
_CODES: Final = {
    ChangeRefusal.INVALID: ErrorCode.INVALID_VALUE,
    ChangeRefusal.CONTAINS_KEY: ErrorCode.INVALID_VALUE,
    ChangeRefusal.CONTAINS_CREDENTIAL: ErrorCode.INVALID_VALUE,
    ChangeRefusal.NAME_TAKEN: ErrorCode.INVALID_VALUE,
    ChangeRefusal.OPERATORS_ONLY: ErrorCode.INSUFFICIENT_SCOPE,
    ChangeRefusal.WIDER_THAN_GIVER: ErrorCode.INSUFFICIENT_SCOPE,
}


def project_of(call: Call, project_id: str) -> Tenant:
    """The tenant that ``project_id`` names, if the caller administers it, archived or not; one query.

    Raises ``ApiError`` 404, alike for what is not there and for what is somebody else's.
    """
    [tenant] = projects_of(call, [project_id], param=None)
    return tenant


def projects_of(
    call: Call, project_ids: Iterable[str], *, param: str | None, among: QuerySet[Tenant] | None = None
) -> list[Tenant]:
    """The tenants that ``project_ids`` name, as ``project_of``; ``param`` is where the names were given.

    ``among``: the tenants that exist for the caller (None: those that it administers).
    """
    wanted = [Kind.PROJECT.parse(project_id) for project_id in project_ids]
    reached = administration.administered(call.principal) if among is None else among
    known = reached.filter(id__in=[id_ for id_ in wanted if id_])
    found = {tenant.id: tenant for tenant in known}
    if any(id_ not in found for id_ in wanted):
        raise ApiError(ErrorCode.PROJECT_NOT_FOUND, "There is no such project.", param=param)
    return list(found.values())


def keys_in_scope() -> QuerySet[ApiKey]:
    """The keys of the active tenancy scope, with what their descriptions need."""
    return ApiKey.objects.select_related("tenant", "allowance")


def key_of(api_key_id: str) -> ApiKey:
    """The key that ``api_key_id`` names, of the active tenancy scope, revoked or not. Raises ``ApiError`` 404."""
    id_ = Kind.API_KEY.parse(api_key_id)
    key = id_ and keys_in_scope().filter(id=id_).first()
    if not key:
        raise ApiError(ErrorCode.API_KEY_NOT_FOUND, "There is no such API key.")
    return key


def lanes_named(names: Collection[str], *, param: str) -> list[Lane]:
    """The lanes of these names, each once. Raises ``ApiError`` 400 for one that there is not."""
    known = {lane.name: lane for lane in Lane.objects.all()}
    for name in names:
        if name not in known:
            raise ApiError(
                ErrorCode.UNKNOWN_LANE,
                f"There is no lane {shown(name)!r}. There are: {', '.join(known)}.",
                param=param,
            )
    return [known[name] for name in dict.fromkeys(names)]


def lane_named(name: str | None, *, param: str) -> Lane | None:
    """The lane of that name; None where none is named. Raises ``ApiError`` 400."""
    return None if name is None else lanes_named([name], param=param)[0]


def expiry(seconds: int | None) -> datetime | None:
    """The time so many seconds from now; None where there is none."""
    return None if seconds is None else timezone.now() + timedelta(seconds=seconds)


def unix(time: datetime) -> int:
    """A time as OpenAI's objects have it: in whole seconds."""
    return int(time.timestamp())


@contextmanager
def refusals_told(**params: str) -> Iterator[None]:
    """Around a change: its refusal is told as an ``ApiError``, 409 where no other value would help.

    ``params`` says which parameter holds a field of the change that has another name there; empty: none does.
    """
    try:
        yield
    except ChangeRefused as refusal:
        code = _CODES.get(refusal.code, ErrorCode.CONFLICT)
        param = (params.get(refusal.field, refusal.field) or None) if refusal.field else None
        raise ApiError(code, refusal.message, param=param) from refusal
