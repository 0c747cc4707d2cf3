"""OpenAI's own client administers the running product, and its types hold what it is answered."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.resources.admin.organization import Organization
from openai.types.admin.organization import (
    AuditLogListResponse,
    Project,
    UsageCompletionsResponse,
    UsageCostsResponse,
)
from openai.types.admin.organization.projects import (
    ProjectAPIKey,
    ProjectRateLimit,
    ProjectServiceAccount,
    ServiceAccountCreateResponse,
)
from openai.types.admin.organization.usage_completions_response import (
    DataResultOrganizationUsageCompletionsResult as CompletionsResult,
)

from tests.fixtures.live_stack import LiveStack

_MAKE_KEY = """
from accounts import keys
from accounts.models import Tenant
from accounts.principal import Actor
tenant = Tenant.objects.order_by("created_at").first()
print(keys.create(tenant=tenant, name={name!r}, scopes=[{scope!r}], actor=Actor.system("test")).raw)
"""


def client_of(stack: LiveStack, scope: str) -> OpenAI:
    """A client with a new key of the stack's first tenant."""
    raw = stack.python(_MAKE_KEY.format(name=f"{scope} of a test", scope=scope)).strip().splitlines()[-1]
    return OpenAI(api_key=stack.api_key, admin_api_key=raw, base_url=stack.openai_url, max_retries=0)


@pytest.fixture
def operator(live_stack: LiveStack) -> Iterator[OpenAI]:
    with client_of(live_stack, "operator") as client:
        yield client


@pytest.fixture
def admin(live_stack: LiveStack) -> Iterator[OpenAI]:
    with client_of(live_stack, "admin") as client:
        yield client


@pytest.fixture
def project(operator: OpenAI) -> Iterator[Project]:
    """One that is archived when the test is over: the stack is everybody's."""
    made = operator.admin.organization.projects.create(name="Of a test")
    yield made
    operator.admin.organization.projects.archive(made.id)


def strictly(answered: Any) -> Any:
    """The client takes what it gets as it comes: here it has to be what its type declares."""
    return type(answered).model_validate(answered.to_dict(), strict=True)


def test_projects_are_made_listed_renamed_and_archived(operator: OpenAI, project: Project) -> None:
    projects = operator.admin.organization.projects
    assert isinstance(strictly(project), Project)
    assert (project.name, project.status, project.archived_at) == ("Of a test", "active", None)
    assert strictly(projects.retrieve(project.id)) == project
    renamed = projects.update(project.id, name="Renamed by a test")
    assert strictly(renamed).name == "Renamed by a test"
    assert project.id in [strictly(each).id for each in projects.list(limit=1)]

    second = projects.create(name="Of a test")
    archived = strictly(projects.archive(second.id))
    assert (archived.status, archived.archived_at is not None) == ("archived", True)
    assert second.id not in [each.id for each in projects.list(limit=1)]
    assert second.id in [each.id for each in projects.list(limit=1, include_archived=True)]


def test_a_service_accounts_key_is_listed_changed_rotated_and_revoked(
    operator: OpenAI, project: Project, live_stack: LiveStack
) -> None:
    projects = operator.admin.organization.projects
    made = strictly(projects.service_accounts.create(project.id, name="app", expires_in_seconds=3600))
    assert isinstance(made, ServiceAccountCreateResponse)
    assert made.api_key
    with OpenAI(api_key=made.api_key.value, base_url=live_stack.openai_url, max_retries=0) as app:
        assert [model.id for model in app.models.list()] == ["tiny"]

        [account] = [strictly(each) for each in projects.service_accounts.list(project.id, limit=1)]
        assert isinstance(account, ProjectServiceAccount)
        assert account.id == made.id
        [key] = [strictly(each) for each in projects.api_keys.list(project.id, limit=1)]
        assert isinstance(key, ProjectAPIKey)
        assert key.id == made.api_key.id
        assert key.owner.service_account
        assert key.owner.service_account.id == made.id
        assert made.api_key.value.startswith(key.redacted_value.removesuffix("..."))
        assert strictly(projects.api_keys.retrieve(key.id, project_id=project.id)) == key

        changed = strictly(
            projects.api_keys.update(key.id, project_id=project.id, scopes=["read"], expires_in_seconds=60)
        )
        assert changed.expires_at - time.time() < 120
        with pytest.raises(openai.PermissionDeniedError):
            app.completions.create(model="tiny", prompt="x", max_tokens=1)

        path = f"/organization/projects/{project.id}/api_keys"
        rotated = _post(operator, f"{path}/{key.id}/rotate", {"overlap_seconds": 60})
        assert isinstance(rotated, ProjectAPIKey)
        assert rotated.owner == key.owner

        deleted = strictly(projects.api_keys.delete(key.id, project_id=project.id))
        assert (deleted.id, deleted.deleted) == (key.id, True)
        with pytest.raises(openai.AuthenticationError):
            app.models.list()
    assert strictly(projects.service_accounts.delete(made.id, project_id=project.id)).deleted
    assert list(projects.api_keys.list(project.id)) == []


def _post(client: OpenAI, path: str, body: dict[str, Any]) -> Any:
    """What the client has no method for, in the client's own type of it."""
    answered = client.post(
        path,
        body=body,
        cast_to=ProjectAPIKey,
        options={"headers": {"Authorization": f"Bearer {client.admin_api_key}"}},
    )
    return strictly(answered)


def test_rate_limits_are_listed_and_set(operator: OpenAI, project: Project) -> None:
    limits = operator.admin.organization.projects.rate_limits
    listed = [strictly(each) for each in limits.list_rate_limits(project.id, limit=1)]
    assert [(type(each), each.model) for each in listed] == [
        (ProjectRateLimit, "normal"),
        (ProjectRateLimit, "low"),
    ]
    changed = limits.update_rate_limit(
        "rl-low", project_id=project.id, max_requests_per_1_minute=5, max_tokens_per_1_minute=600
    )
    assert (strictly(changed).max_requests_per_1_minute, changed.max_tokens_per_1_minute) == (5, 600)
    assert list(limits.list_rate_limits(project.id, after="rl-normal")) == [changed]


def test_usage_and_costs_are_what_was_used(operator: OpenAI, project: Project) -> None:
    organization = operator.admin.organization
    made = organization.projects.service_accounts.create(project.id, name="app")
    assert made.api_key
    with OpenAI(api_key=made.api_key.value, base_url=operator.base_url, max_retries=0) as app:
        usage = app.completions.create(model="tiny", prompt="The signal box", max_tokens=5).usage
    assert usage
    # An answer is there a moment before its entry in the ledger.
    for _ in range(100):
        if results := usage_of(organization, project):
            break
        time.sleep(0.1)
    [result] = results
    assert (result.input_tokens, result.output_tokens) == (usage.prompt_tokens, usage.completion_tokens)
    assert (result.num_model_requests, result.api_key_id, result.model) == (1, made.api_key.id, "tiny")

    costs = organization.usage.costs(
        start_time=int(time.time()) - 3600, project_ids=[project.id], group_by=["line_item"]
    )
    assert isinstance(strictly(costs), UsageCostsResponse)
    assert [bucket.results for bucket in costs.data if bucket.results] == [], "the tiny model has no price"


def usage_of(organization: Organization, project: Project) -> list[CompletionsResult]:
    """The project's usage of the last hour, read page by page."""
    question: dict[str, Any] = {
        "start_time": int(time.time()) - 3600,
        "end_time": int(time.time()) + 60,
        "project_ids": [project.id],
        "group_by": ["api_key_id", "model"],
        "bucket_width": "1m",
        "limit": 30,
    }
    page = organization.usage.completions(**question)
    results: list[CompletionsResult] = []
    while True:
        assert isinstance(strictly(page), UsageCompletionsResponse)
        for bucket in page.data:
            for result in bucket.results:
                assert isinstance(result, CompletionsResult)
                results.append(result)
        if page.next_page is None:
            return results
        page = organization.usage.completions(**question, page=page.next_page)


def test_the_audit_is_read_and_narrowed_page_by_page(
    operator: OpenAI, project: Project, live_stack: LiveStack
) -> None:
    organization = operator.admin.organization
    organization.projects.update(project.id, name="Renamed by a test")
    made = organization.projects.service_accounts.create(project.id, name="app")
    with client_of(live_stack, "audit") as auditor:
        logs = auditor.admin.organization.audit_logs
        found = list(logs.list(project_ids=[project.id], limit=2))
        told = [strictly(each) for each in found if each.type in ("project.created", "project.updated")]
        assert all(isinstance(each, AuditLogListResponse) for each in told)
        assert [each.type for each in told] == ["project.updated", "project.created"]
        assert [each.effective_at for each in found] == sorted(
            (each.effective_at for each in found), reverse=True
        )
        renamed, created = told
        assert renamed.project_updated.changes_requested.title == "Renamed by a test"
        assert (created.project.id, created.project_created.data.name) == (project.id, "Of a test")
        assert created.actor.api_key.service_account.id
        [key] = logs.list(
            project_ids=[project.id],
            event_types=["api_key.created"],
            resource_ids=[made.api_key.id],
            actor_ids=[created.actor.api_key.id],
            effective_at={"gte": created.effective_at, "lte": int(time.time()) + 60},
        )
        assert strictly(key).api_key_created.data.scopes == ["inference", "read"]
        assert list(logs.list(project_ids=[project.id], effective_at={"lt": created.effective_at})) == []
        earlier = logs.list(project_ids=[project.id], before=found[1].id, limit=5)
        assert [each.id for each in earlier.data] == [found[0].id]
        # Of ours the client has no type; it hands them on as they come.
        granted: Any = next(each for each in found if each.type == "entitlement.grant")
        assert granted.to_dict()["entitlement.grant"]["after"]["lane_id"] in ("normal", "low")
        with pytest.raises(openai.PermissionDeniedError):
            list(auditor.admin.organization.projects.list())


def test_refusals_are_the_clients_own_exceptions(admin: OpenAI, operator: OpenAI, project: Project) -> None:
    projects = admin.admin.organization.projects
    [own] = projects.list()
    assert own.id != project.id
    with pytest.raises(openai.NotFoundError) as foreign:
        projects.api_keys.list(project.id)
    assert foreign.value.code == "project_not_found"
    with pytest.raises(openai.PermissionDeniedError) as weak:
        projects.create(name="Mine")
    assert weak.value.code == "insufficient_scope"
    with pytest.raises(openai.NotFoundError):
        operator.admin.organization.projects.api_keys.retrieve("key_x", project_id=project.id)
    with pytest.raises(openai.BadRequestError) as wrong:
        operator.admin.organization.projects.create(name="x", geography="EU")
    assert (wrong.value.code, wrong.value.param) == ("unsupported_parameter", "geography")
    anonymous = OpenAI(api_key="-", admin_api_key="sb_wrong", base_url=admin.base_url, max_retries=0)
    with anonymous, pytest.raises(openai.AuthenticationError):
        list(anonymous.admin.organization.projects.list())
