"""Which entries of the audit are asked for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Final
from uuid import UUID

from django.db.models import Q, QuerySet
from pydantic import Field

from accounts import administration
from accounts.audit import batches
from accounts.models import ApiKey, AuditEvent, Membership, User
from accounts.principal import Principal
from inference.api.endpoint import Call
from inference.api.errors import ApiError, ErrorCode
from inference.api.fields import Range
from inference.api.organization.access import projects_of
from inference.api.organization.audit_log_shapes import scope_of, sequence_of
from inference.api.organization.audit_log_types import actions_of
from inference.api.organization.ids import Kind
from inference.api.organization.paging import MAX_LIMIT
from inference.api.organization.rate_limits import lane_of
from inference.api.organization.usage_questions import Names, Time
from inference.api.queries import QueryModel

_TYPE: Final = re.compile(r"[a-z_]+(\.[a-z_]+)+")


class AuditLogQuery(QueryModel):
    """Which entries, and which page of them."""

    effective_at_gt: Time | None = Field(default=None, alias="effective_at[gt]")
    """Unix time: only what was done after that second."""
    effective_at_gte: Time | None = Field(default=None, alias="effective_at[gte]")
    """Unix time: only what was done in that second or later."""
    effective_at_lt: Time | None = Field(default=None, alias="effective_at[lt]")
    """Unix time: only what was done before that second."""
    effective_at_lte: Time | None = Field(default=None, alias="effective_at[lte]")
    """Unix time: only what was done in that second or earlier."""
    project_ids: Names = []
    """Only what was done in these projects."""
    event_types: Names = []
    """Only these types, or ours: actions. `lane_assignments.seal` is told only where it is asked for."""
    actor_ids: Names = []
    """Only what these users, API keys or service accounts did."""
    actor_emails: Names = []
    """Only what the users who have these e-mail addresses now did."""
    resource_ids: Names = []
    """Only what was done to these: the `id` of an entry's `object`, a service account's or a rate limit's."""
    after: str | None = None
    """The `last_id` of the page before: older entries."""
    before: str | None = None
    """The `first_id` of the page behind: newer entries."""
    limit: Annotated[int, Range(1, MAX_LIMIT)] = 20
    """Entries of a page."""


def asked_for(call: Call, query: AuditLogQuery) -> QuerySet[AuditEvent]:
    """The events that ``query`` asks for, of those that the caller may read, in no order; whatever page. Raises
    ``ApiError``."""
    reader = call.principal
    return AuditEvent.objects.filter(
        _in_projects(call, query.project_ids),
        _in_time(query),
        _of_types(query.event_types),
        _by_actors(reader, query.actor_ids),
        _by_emails(reader, query.actor_emails),
        _of_resources(reader, query.resource_ids),
    )


def page_of(events: QuerySet[AuditEvent], query: AuditLogQuery) -> tuple[list[AuditEvent], bool]:
    """The page that ``query`` asks for, newest first, and whether more follow in its direction: older ones, or newer
    ones where only ``before`` is given. Raises ``ApiError``."""
    if query.after is not None:
        events = events.filter(sequence__lt=_cursor(query.after, "after"))
    if query.before is not None:
        events = events.filter(sequence__gt=_cursor(query.before, "before"))
    newer = query.before is not None and query.after is None
    found = list(events.order_by("sequence" if newer else "-sequence")[: query.limit + 1])
    page = found[: query.limit]
    return page[::-1] if newer else page, len(found) > query.limit


def _cursor(entry: str, param: str) -> int:
    sequence = sequence_of(entry)
    if sequence is None:
        raise _invalid(param, "must be the id of an entry, as in audit_log-12")
    return sequence


def _in_projects(call: Call, project_ids: Sequence[str]) -> Q:
    reader = call.principal
    if project_ids:
        among = administration.audited(reader)
        tenants = projects_of(call, project_ids, param="project_ids", among=among)
        return Q(tenant_id__in=[tenant.id for tenant in tenants])
    return Q() if administration.audits_all(reader) else Q(tenant_id=reader.tenant_id)


def _in_time(query: AuditLogQuery) -> Q:
    """By the whole seconds that entries tell."""
    asked = Q()
    for bound, seconds, more in (
        ("gte", query.effective_at_gt, 1),
        ("gte", query.effective_at_gte, 0),
        ("lt", query.effective_at_lt, 0),
        ("lt", query.effective_at_lte, 1),
    ):
        if seconds is not None:
            asked &= Q(**{f"at__{bound}": datetime.fromtimestamp(seconds + more, tz=UTC)})
    return asked


def _of_types(types: Sequence[str]) -> Q:
    if not types:
        return ~Q(action=batches.ACTION)
    for index, type_ in enumerate(types):
        if not _TYPE.fullmatch(type_):
            raise _invalid(f"event_types[{index}]", "must be a type, as in project.created")
    return Q(action__in=sorted({action for type_ in types for action in actions_of(type_)}))


def _by_actors(reader: Principal, actor_ids: Sequence[str]) -> Q:
    if not actor_ids:
        return Q()
    named = _Named(reader)
    for index, actor_id in enumerate(actor_ids):
        if not named.add(actor_id):
            raise _invalid(f"actor_ids[{index}]", "must be an id, as in user_…, key_… or svc_acct_…")
    keys = [*named.of(Kind.API_KEY), *named.keys_of_accounts()]
    return Q(actor_kind="user", actor_id__in=named.of(Kind.USER)) | Q(actor_kind="api_key", actor_id__in=keys)


def _by_emails(reader: Principal, emails: Sequence[str]) -> Q:
    if not emails:
        return Q()
    wanted = Q()
    for email in emails:
        wanted |= Q(email__iexact=email)
    people = User.objects.filter(wanted).exclude(email="")
    if not administration.audits_all(reader):
        # Of people outside of the tenant its administrators are not told the address, not even by asking for it.
        with scope_of(reader):
            people = people.filter(id__in=list(Membership.objects.values_list("user_id", flat=True)))
    return Q(actor_kind="user", actor_id__in=[str(id_) for id_ in people.values_list("id", flat=True)])


def _of_resources(reader: Principal, resource_ids: Sequence[str]) -> Q:
    if not resource_ids:
        return Q()
    named = _Named(reader, Kind.PROJECT)
    asked = Q()
    others = []
    for resource_id in resource_ids:
        if named.add(resource_id):
            continue
        others.append(resource_id)
        if lane := lane_of(resource_id):
            asked |= Q(object_kind="entitlement") & (Q(after__lane_id=lane) | Q(before__lane_id=lane))
    keys = [*named.of(Kind.API_KEY), *named.keys_of_accounts()]
    return (
        asked
        | Q(object_kind="tenant", object_id__in=named.of(Kind.PROJECT))
        | Q(object_kind="user", object_id__in=named.of(Kind.USER))
        | Q(object_kind="api_key", object_id__in=keys)
        | Q(object_id__in=others)
    )


class _Named:
    """Ids that were asked for, by what they name. Of service accounts, the keys."""

    def __init__(self, reader: Principal, *more: Kind) -> None:
        self._reader = reader
        self._kinds = (Kind.USER, Kind.API_KEY, Kind.SERVICE_ACCOUNT, *more)
        self._found: dict[Kind, list[UUID]] = {kind: [] for kind in self._kinds}

    def add(self, name: str) -> bool:
        """Take an id; False where it is none of these kinds."""
        for kind in self._kinds:
            if id_ := kind.parse(name):
                self._found[kind].append(id_)
                return True
        return False

    def of(self, kind: Kind) -> list[str]:
        """As the audit has them."""
        return _as_text(self._found[kind])

    def keys_of_accounts(self) -> list[str]:
        """The keys of the service accounts among them, as far as the reader may be told of them."""
        accounts = self._found[Kind.SERVICE_ACCOUNT]
        if not accounts:
            return []
        with scope_of(self._reader):
            first = ApiKey.objects.filter(id__in=accounts, rotated_from=None).values("allowance")
            return _as_text(ApiKey.objects.filter(allowance__in=first).values_list("id", flat=True))


def _as_text(ids: Iterable[UUID]) -> list[str]:
    return [str(id_) for id_ in ids]


def _invalid(param: str, problem: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_VALUE, f"`{param}` {problem}.", param=param)
