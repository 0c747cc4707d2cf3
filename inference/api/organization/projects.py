"""``/v1/organization/projects``: the tenants."""

from __future__ import annotations

import uuid
from typing import Annotated, Final, Literal

from django.db.models import Q
from django.utils.text import slugify
from pydantic import Field

from accounts import administration, lanes, tenants
from accounts.actors import actor_of_key
from accounts.models import Lane, Tenant
from accounts.refusals import ChangeRefusal, ChangeRefused
from inference.api.answers import AnswerModel
from inference.api.endpoint import Call, endpoint
from inference.api.errors import ErrorCode
from inference.api.fields import RequestModel
from inference.api.idempotent import IDEMPOTENCY_KEY, answer_once
from inference.api.organization.access import (
    ADMINISTRATORS,
    OPERATORS,
    TAG,
    lanes_named,
    project_of,
    refusals_told,
    unix,
)
from inference.api.organization.ids import Kind
from inference.api.organization.paging import ListQuery, page_of
from inference.api.pages import Page
from inference.api.queries import NoQuery, parameters_of, read_query

#: What is taken of a name for a short name: something may have to be put behind it.
_SLUG_LENGTH: Final = 50


class Project(AnswerModel):
    """A tenant."""

    id: str
    object: Literal["organization.project"] = "organization.project"
    name: str
    slug: str
    """Ours: its short name, in logs, metrics and commands. It never changes."""
    time_zone: str
    """Ours: the zone by whose days, weeks and months its budgets go."""
    created_at: int
    archived_at: int | None
    """From then on nothing of it starts. Null: it is active."""
    status: Literal["active", "archived"]


class ProjectList(Page):
    """Projects, oldest first unless `order` says otherwise."""

    data: list[Project]


class ProjectListQuery(ListQuery):
    """Which projects."""

    include_archived: bool = False
    """Also the archived ones."""


class ProjectCreateRequest(RequestModel):
    """A project to be made."""

    name: str
    """1 to 100 characters."""
    slug: str | None = None
    """Ours: the short name, of letters, digits, hyphens and underscores. Absent: one is made from the name."""
    time_zone: str = "UTC"
    """Ours: the zone by whose calendar its budgets go, as in `Asia/Seoul`."""
    lanes: Annotated[list[str], Field(max_length=100)] | None = None
    """Ours: the lanes that it has a standing right to, without limits. Absent: normal and those below."""


class ProjectUpdateRequest(RequestModel):
    """What is to change of a project."""

    name: str | None = None
    """1 to 100 characters. Absent: it stays as it is."""


@endpoint(
    "GET",
    summary="List the projects",
    tag=TAG,
    scopes=ADMINISTRATORS,
    answer=ProjectList,
    parameters=parameters_of(ProjectListQuery),
)
def list_projects(call: Call) -> ProjectList:
    """The tenants that this key administers: its own, or with the scope `operator` every one."""
    query = read_query(call.request, ProjectListQuery)
    shown = None if query.include_archived else Q(closed_at=None)
    found, has_more = page_of(administration.administered(call.principal), query, Kind.PROJECT, shown=shown)
    data = [_described(tenant) for tenant in found]
    return ProjectList(
        data=data,
        first_id=data[0].id if data else None,
        last_id=data[-1].id if data else None,
        has_more=has_more,
    )


@endpoint(
    "POST",
    summary="Create a project",
    tag=TAG,
    scopes=OPERATORS,
    body=ProjectCreateRequest,
    answer=Project,
    parameters=(IDEMPOTENCY_KEY,),
    errors=(ErrorCode.UNKNOWN_LANE, ErrorCode.CONFLICT, ErrorCode.IDEMPOTENCY_CONFLICT),
)
def create_project(call: Call, body: ProjectCreateRequest) -> Project:
    """A new tenant with standing rights to lanes, and no keys yet. A lane that takes a second operator's approval is
    granted in the admin."""
    read_query(call.request, NoQuery)

    def create() -> Project:
        with refusals_told():
            return _described(_created(call, body))

    return answer_once(call, body, create, route="project.create", answer=Project)


@endpoint(
    "GET",
    summary="Describe a project",
    tag=TAG,
    scopes=ADMINISTRATORS,
    answer=Project,
    errors=(ErrorCode.PROJECT_NOT_FOUND,),
)
def retrieve_project(call: Call, project_id: str) -> Project:
    """One tenant, also an archived one."""
    read_query(call.request, NoQuery)
    return _described(project_of(call, project_id))


@endpoint(
    "POST",
    summary="Rename a project",
    tag=TAG,
    scopes=ADMINISTRATORS,
    body=ProjectUpdateRequest,
    answer=Project,
    parameters=(IDEMPOTENCY_KEY,),
    errors=(ErrorCode.PROJECT_NOT_FOUND, ErrorCode.IDEMPOTENCY_CONFLICT),
)
def modify_project(call: Call, body: ProjectUpdateRequest, project_id: str) -> Project:
    """Change what a tenant is called. Its short name stays."""
    read_query(call.request, NoQuery)
    tenant = project_of(call, project_id)

    def change() -> Project:
        if body.name is None:
            return _described(tenant)
        actor = actor_of_key(call.request, call.principal)
        with refusals_told():
            return _described(tenants.rename(tenant=tenant, name=body.name, actor=actor))

    return answer_once(call, body, change, route=f"project.modify:{tenant.id.hex}", answer=Project)


@endpoint(
    "POST",
    summary="Archive a project",
    tag=TAG,
    scopes=OPERATORS,
    answer=Project,
    errors=(ErrorCode.PROJECT_NOT_FOUND,),
)
def archive_project(call: Call, project_id: str) -> Project:
    """Stop everything of a tenant: its keys and members are refused, what it runs is cancelled. Its records stay, and
    an operator can reopen it in the admin. May be repeated."""
    read_query(call.request, NoQuery)
    tenant = project_of(call, project_id)
    return _described(tenants.close(tenant=tenant, actor=actor_of_key(call.request, call.principal)))


def _described(tenant: Tenant) -> Project:
    return Project(
        id=Kind.PROJECT.name_of(tenant.id),
        name=tenant.name,
        slug=tenant.slug,
        time_zone=tenant.time_zone,
        created_at=unix(tenant.created_at),
        archived_at=unix(tenant.closed_at) if tenant.closed_at else None,
        status="archived" if tenant.closed_at else "active",
    )


def _created(call: Call, body: ProjectCreateRequest) -> Tenant:
    entitled = (
        list(lanes.from_normal_down()) if body.lanes is None else lanes_named(body.lanes, param="lanes")
    )
    if body.slug is not None:
        return _create(call, body, body.slug, entitled)
    slug = slugify(body.name)[:_SLUG_LENGTH] or "project"
    try:
        return _create(call, body, slug, entitled)
    except ChangeRefused as refusal:
        if refusal.code is not ChangeRefusal.NAME_TAKEN:
            raise
    return _create(call, body, f"{slug}-{uuid.uuid4().hex[:8]}", entitled)


def _create(call: Call, body: ProjectCreateRequest, slug: str, entitled: list[Lane]) -> Tenant:
    return tenants.create(
        name=body.name,
        slug=slug,
        time_zone=body.time_zone,
        lanes=entitled,
        reason="standing right of a new project",
        actor=actor_of_key(call.request, call.principal),
    )
