"""What an event of the audit looks like to whoever reads it over the API."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal
from uuid import UUID

from django.db.models import OuterRef, Subquery
from pydantic import ConfigDict, JsonValue

from accounts import administration
from accounts.audit.reading import ERASED, Disclosed, disclose
from accounts.models import ApiKey, AuditEvent, Membership, Tenant, User
from accounts.principal import Principal
from accounts.tenancy import every_tenant, tenant_scope
from inference.api.answers import AnswerModel
from inference.api.organization.access import unix
from inference.api.organization.audit_log_types import details_of, object_name_of, type_of
from inference.api.organization.ids import Kind
from inference.api.pages import Page

_PREFIX: Final = "audit_log-"
_MOST_DIGITS: Final = 18


class AuditLogProject(AnswerModel):
    """The project that it was done in."""

    id: str
    name: str | None
    """As it is called now."""


class AuditLogUser(AnswerModel):
    """A person."""

    id: str
    email: str | None
    """Their address of now. Null: none, or erased."""


class AuditLogServiceAccount(AnswerModel):
    """An application."""

    id: str


class AuditLogSession(AnswerModel):
    """Who was in a browser, and where that was."""

    user: AuditLogUser | None
    """Null: nobody was signed in."""
    ip_address: str | None
    fingerprint: str | None
    """Ours: tells the sessions of a person apart."""


class AuditLogApiKey(AnswerModel):
    """The key that it was done with."""

    id: str
    type: Literal["service_account"] = "service_account"
    service_account: AuditLogServiceAccount | None
    user: None = None
    ip_address: str | None
    """Ours: where it was used from."""


class AuditLogActor(AnswerModel):
    """Who did it."""

    type: Literal["session", "api_key"] | None
    """Null: a part of the system itself, as a command or a periodic task."""
    session: AuditLogSession | None
    api_key: AuditLogApiKey | None
    kind: Literal["user", "api_key", "system", "anonymous"]
    """Ours: the same in the audit's own words."""
    name: str | None
    """Ours: what they were called then. Null: erased, or somebody outside of the reader's project."""


class AuditLogObject(AnswerModel):
    """What it was done to."""

    kind: str
    id: str | None
    name: str | None
    """What it was called then."""


class AuditLogDetails(AnswerModel):
    """What was done: the fields that OpenAI's log has for the type, and these."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow", use_attribute_docstrings=True)

    object: AuditLogObject
    """Ours."""
    before: dict[str, JsonValue] | None
    """Ours: what it was, field by field. Secrets are `***`; personal values that were erased are null."""
    after: dict[str, JsonValue] | None
    """Ours: what it is since."""


class AuditLog(AnswerModel):
    """One event. Beside these fields it has one that is called what `type` says: the event's details."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow", use_attribute_docstrings=True)
    __pydantic_extra__: dict[str, AuditLogDetails]

    id: str
    type: str
    """OpenAI's, or where it has none for this, the same as `action`."""
    effective_at: int
    project: AuditLogProject | None
    """Null: it was done in no project."""
    actor: AuditLogActor
    action: str
    """Ours: what the audit calls it."""
    request_id: str | None
    """Ours: the `x-request-id` of the answer that told of it. Null: it was no request."""
    sequence: int
    """Ours: its place in the chain."""
    hash: str
    """Ours: the chain's hash there."""


class AuditLogList(Page):
    """Events, newest first."""

    data: list[AuditLog]


def entry_id(sequence: int) -> str:
    """What the event at this place of the chain is called."""
    return f"{_PREFIX}{sequence}"


def sequence_of(entry: str) -> int | None:
    """The place of the event that is called so; None where it is no name of an event."""
    digits = entry.removeprefix(_PREFIX)
    well_formed = digits != entry and digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS
    return int(digits) if well_formed else None


def scope_of(reader: Principal) -> AbstractContextManager[None]:
    """Whose keys and members the reader may be told of."""
    if administration.audits_all(reader):
        return every_tenant("an operator or auditor reads the audit")
    return tenant_scope(reader.tenant_id)


def described(events: Sequence[AuditEvent], reader: Principal) -> list[AuditLog]:
    """The events, which have their personal values with them, as ``reader`` may see them; at most four queries.

    Whoever reads one tenant's audit is told of people and keys outside of it what they did there, and no more of them
    than an id: not the name, the e-mail address, or where they were.
    """
    context = _Context.of(events, reader)
    return [_described(event, context) for event in events]


@dataclass(frozen=True, slots=True)
class _Context:
    """What entries say that is not in the events."""

    projects: Mapping[UUID, str]
    emails: Mapping[str, str]
    #: By the ids of keys that the reader may be told of.
    service_accounts: Mapping[str, UUID]
    #: Ids of people that the reader may be told of; None: all, and parts of the system as well.
    people: frozenset[str] | None

    @classmethod
    def of(cls, events: Sequence[AuditEvent], reader: Principal) -> _Context:
        users = _actor_ids(events, "user")
        with scope_of(reader):
            members = None
            if not administration.audits_all(reader):
                known = Membership.objects.filter(user__in=[UUID(user) for user in users]).values_list(
                    "user_id", flat=True
                )
                members = frozenset(str(user_id) for user_id in known)
            first = ApiKey.objects.filter(allowance=OuterRef("allowance"), rotated_from=None).values("id")[:1]
            keys = ApiKey.objects.filter(id__in=_actor_ids(events, "api_key"))
            accounts = {str(id_): account for id_, account in keys.values_list("id", Subquery(first))}
        tenants = {event.tenant_id for event in events if event.tenant_id}
        found = User.objects.filter(id__in=users if members is None else members)
        return cls(
            projects=dict(Tenant.objects.filter(id__in=tenants).values_list("id", "name")),
            emails={str(id_): email for id_, email in found.values_list("id", "email")},
            service_accounts=accounts,
            people=members,
        )

    def tells_of(self, event: AuditEvent) -> bool:
        """Whether the reader may know who did it."""
        if self.people is None:
            return True
        return event.actor_id in (self.service_accounts if event.actor_kind == "api_key" else self.people)


def _actor_ids(events: Collection[AuditEvent], kind: str) -> set[str]:
    return {event.actor_id for event in events if event.actor_kind == kind and event.actor_id}


def _described(event: AuditEvent, context: _Context) -> AuditLog:
    said = disclose(event)
    type_ = type_of(event.action)
    return AuditLog.model_validate(
        {
            "id": entry_id(event.sequence),
            "type": type_,
            "effective_at": unix(event.at),
            "project": _project(event, context),
            "actor": _actor(event, said, context),
            "action": event.action,
            "request_id": event.request_id or None,
            "sequence": event.sequence,
            "hash": event.hash,
            type_: {
                **details_of(event, said),
                "object": {
                    "kind": event.object_kind,
                    "id": object_name_of(event.object_kind, event.object_id),
                    "name": _kept(said.object_name),
                },
                "before": _fields("before", said.before, event),
                "after": _fields("after", said.after, event),
            },
        }
    )


def _project(event: AuditEvent, context: _Context) -> dict[str, Any] | None:
    if event.tenant_id is None:
        return None
    return {"id": Kind.PROJECT.name_of(event.tenant_id), "name": context.projects.get(event.tenant_id)}


def _actor(event: AuditEvent, said: Disclosed, context: _Context) -> dict[str, Any]:
    known = context.tells_of(event)
    address = _kept(said.address) if known else None
    actor: dict[str, Any] = {
        "kind": event.actor_kind,
        "type": None,
        "session": None,
        "api_key": None,
        "name": _kept(said.actor_name) if known else None,
    }
    match event.actor_kind:
        case "user":
            user = {
                "id": Kind.USER.name_of(UUID(event.actor_id)),
                "email": context.emails.get(event.actor_id) or None,
            }
            session = {"user": user, "ip_address": address, "fingerprint": event.session or None}
            return {**actor, "type": "session", "session": session}
        case "anonymous":
            session = {"user": None, "ip_address": address, "fingerprint": None}
            return {**actor, "type": "session", "session": session}
        case "api_key":
            account = context.service_accounts.get(event.actor_id)
            key = {
                "id": Kind.API_KEY.name_of(UUID(event.actor_id)),
                "service_account": {"id": Kind.SERVICE_ACCOUNT.name_of(account)} if account else None,
                "ip_address": address,
            }
            return {**actor, "type": "api_key", "api_key": key}
    return actor


def _kept(text: str) -> str | None:
    return None if text in ("", ERASED) else text


def _fields(where: str, fields: Mapping[str, Any] | None, event: AuditEvent) -> dict[str, Any] | None:
    if fields is None:
        return None
    return {
        name: None if value == ERASED and f"{where}.{name}" in event.personal else value
        for name, value in fields.items()
    }
