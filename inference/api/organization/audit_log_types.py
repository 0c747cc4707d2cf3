"""What OpenAI's audit log calls our events, and what it says of each: pure rules over one event.

An action that OpenAI's log has a type for gets that type and that type's fields. Every other one keeps its own name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID

from accounts.audit.reading import Disclosed
from accounts.limits import LimitName
from accounts.models import AuditEvent
from inference.api.organization.ids import Kind
from inference.api.organization.rate_limits import rate_limit_id, shown_rate

#: OpenAI's type of those of our actions that it has one for. Several of ours may be one of theirs.
TYPES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "tenant.create": "project.created",
        "tenant.rename": "project.updated",
        "tenant.set_time_zone": "project.updated",
        "tenant.set_suffix_pool": "project.updated",
        "tenant.close": "project.archived",
        "api_key.create": "api_key.created",
        "api_key.change": "api_key.updated",
        "api_key.rotate": "api_key.updated",
        "api_key.expire": "api_key.updated",
        "api_key.revoke": "api_key.deleted",
        "entitlement.change": "rate_limit.updated",
        "membership.add": "role.assignment.created",
        "membership.end": "role.assignment.deleted",
        "user.create": "user.added",
        "user.change": "user.updated",
        "user.close": "user.deleted",
        "user.log_in": "login.succeeded",
        "user.log_in_failed": "login.failed",
        "user.log_in_throttled": "login.failed",
        "user.log_out": "logout.succeeded",
    }
)
#: What our fields are called in the changes that were requested of a project.
_PROJECT_FIELDS: Final = {"name": "title"}
_RATES: Final = {
    LimitName.REQUESTS_PER_MINUTE.value: "max_requests_per_1_minute",
    LimitName.TOKENS_PER_MINUTE.value: "max_tokens_per_1_minute",
}
_KINDS: Final = {"tenant": Kind.PROJECT, "api_key": Kind.API_KEY, "user": Kind.USER}

Fields = dict[str, Any]


def type_of(action: str) -> str:
    """The type of an entry for this action."""
    return TYPES.get(action, action)


def actions_of(type_: str) -> frozenset[str]:
    """The actions that are meant by a type: OpenAI's, or one of our own actions by its name."""
    return frozenset({type_, *(action for action, theirs in TYPES.items() if theirs == type_)})


def object_name_of(kind: str, id_: str) -> str | None:
    """The id of what an event was done to, as the routes of the organization write it, where they name such things."""
    if kind not in _KINDS or not id_:
        return id_ or None
    return _KINDS[kind].name_of(UUID(id_))


def details_of(event: AuditEvent, said: Disclosed) -> Fields:
    """The fields that OpenAI's log has for the event's type; none where the type is ours."""
    describe = _DETAILS.get(type_of(event.action))
    return describe(event, _Sides(said.before or {}, said.after or {})) if describe else {}


class _Sides:
    """An event's fields, before and after."""

    def __init__(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        self.before, self.after = before, after

    def changed(self) -> Fields:
        """Those that are not what they were, as they are now."""
        return {
            name: value
            for name, value in self.after.items()
            if name not in self.before or self.before[name] != value
        }

    def latest(self, name: str) -> Any:
        """The field as it is now, or was last; None where the event does not say."""
        return self.after.get(name, self.before.get(name))


def _just_named(event: AuditEvent, sides: _Sides) -> Fields:
    return {"id": object_name_of(event.object_kind, event.object_id)}


def _project_created(event: AuditEvent, sides: _Sides) -> Fields:
    name = sides.after.get("name")
    return {**_just_named(event, sides), "data": {"name": name, "title": name}}


def _project_updated(event: AuditEvent, sides: _Sides) -> Fields:
    changes = {_PROJECT_FIELDS.get(name, name): value for name, value in sides.changed().items()}
    return {**_just_named(event, sides), "changes_requested": changes}


def _key_created(event: AuditEvent, sides: _Sides) -> Fields:
    return {**_just_named(event, sides), "data": {"scopes": sides.after.get("scopes")}}


def _key_updated(event: AuditEvent, sides: _Sides) -> Fields:
    changed = sides.changed()
    requested: Fields = {"scopes": changed["scopes"]} if "scopes" in changed else {}
    if changed.get("expires_at"):
        left = datetime.fromisoformat(changed["expires_at"]) - event.at
        requested["expires_in_seconds"] = max(0, round(left.total_seconds()))
    return {**_just_named(event, sides), "changes_requested": requested}


def _rate_limit_updated(event: AuditEvent, sides: _Sides) -> Fields:
    changed = sides.changed()
    rates = {theirs: shown_rate(changed[ours]) for ours, theirs in _RATES.items() if ours in changed}
    lane = sides.latest("lane_id")
    return {"id": rate_limit_id(lane) if lane else None, "changes_requested": rates}


def _role_assignment(event: AuditEvent, sides: _Sides) -> Fields:
    user_id = sides.latest("user_id")
    return {
        **_just_named(event, sides),
        "principal_id": Kind.USER.name_of(UUID(user_id)) if user_id else None,
        "principal_type": "user",
        "resource_id": Kind.PROJECT.name_of(event.tenant_id) if event.tenant_id else None,
        "resource_type": "project",
    }


def _role(is_superuser: Any) -> str:
    return "owner" if is_superuser else "member"


def _user_added(event: AuditEvent, sides: _Sides) -> Fields:
    return {**_just_named(event, sides), "data": {"role": _role(sides.after.get("is_superuser"))}}


def _user_updated(event: AuditEvent, sides: _Sides) -> Fields:
    changed = sides.changed()
    roles = {"role": _role(changed["is_superuser"])} if "is_superuser" in changed else {}
    return {**_just_named(event, sides), "changes_requested": roles}


def _log_in_failed(event: AuditEvent, sides: _Sides) -> Fields:
    if limit := sides.after.get("limit"):
        return {
            "error_code": "throttled",
            "error_message": f"Too many log-ins of this {limit} had failed: more were refused for a while.",
        }
    if count := sides.after.get("further_failures"):
        return {
            "error_code": "further_failures",
            "error_message": f"{count} more log-ins failed, for which there is no entry of their own.",
        }
    reason = sides.after.get("reason")
    return {"error_code": reason, "error_message": _FAILURES.get(str(reason))}


_FAILURES: Final = {
    "unknown_user": "There is no such user.",
    "wrong_password": "The password was wrong.",
    "user_closed": "The account is closed.",
}
_DETAILS: Final[Mapping[str, Callable[[AuditEvent, _Sides], Fields]]] = MappingProxyType(
    {
        "project.created": _project_created,
        "project.updated": _project_updated,
        "project.archived": _just_named,
        "api_key.created": _key_created,
        "api_key.updated": _key_updated,
        "api_key.deleted": _just_named,
        "rate_limit.updated": _rate_limit_updated,
        "role.assignment.created": _role_assignment,
        "role.assignment.deleted": _role_assignment,
        "user.added": _user_added,
        "user.updated": _user_updated,
        "user.deleted": _just_named,
        "login.failed": _log_in_failed,
    }
)
