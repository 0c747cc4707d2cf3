"""What our verbs record is told by OpenAI's log in its own words, wherever it has any, and its types hold that."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import pytest
import time_machine
from django.db import transaction
from openai.types.admin.organization import AuditLogListResponse

from accounts import audit, entitlements, keys, log_ins, members, tenants, users
from accounts.audit.reading import disclosable
from accounts.limits import Limits
from accounts.log_in_counters import Limit
from accounts.models import AuditEvent, Entitlement, Role, Scope
from accounts.principal import Actor, Principal
from accounts.tenancy import tenant_scope
from inference.api.organization.audit_log_shapes import described
from inference.api.organization.audit_log_types import TYPES, actions_of, object_name_of, type_of
from inference.api.organization.rate_limits import UNLIMITED
from tests.factories import ACTOR, ApiKeyFactory, TenantFactory

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
OURS = {"object", "before", "after"}
THEIR_TYPES = set(get_args(AuditLogListResponse.model_fields["type"].annotation))


def told() -> list[dict[str, Any]]:
    """Every event as an operator's key reads it, oldest first."""
    key = ApiKeyFactory(tenant=TenantFactory(slug="operators"), scopes=["operator"])
    reader = Principal(
        tenant_id=key.tenant_id,
        tenant_name="Operators",
        scopes=frozenset({Scope.OPERATOR.value}),
        name=key.name,
        api_key_id=key.id,
    )
    events = disclosable(AuditEvent.objects.order_by("sequence"))
    return [entry.model_dump(mode="json") for entry in described(list(events), reader)]


def their_fields(entry: dict[str, Any]) -> dict[str, Any]:
    """The details without what is ours."""
    return {name: value for name, value in entry[entry["type"]].items() if name not in OURS}


def test_a_type_of_theirs_is_never_one_of_our_names() -> None:
    assert set(TYPES.values()) <= THEIR_TYPES
    assert not set(TYPES) & THEIR_TYPES


def test_a_type_means_the_actions_that_have_it_and_ours_means_itself() -> None:
    for action, type_ in TYPES.items():
        assert type_of(action) == type_
        assert action in actions_of(type_)
        assert actions_of(action) == {action}
    assert type_of("price.add") == "price.add"
    assert actions_of("price.add") == {"price.add"}


@pytest.mark.parametrize(
    ("kind", "id_", "name"),
    [
        ("tenant", "00000000-0000-0000-0000-000000000007", f"proj_{7:032x}"),
        ("api_key", "00000000-0000-0000-0000-000000000007", f"key_{7:032x}"),
        ("user", "00000000-0000-0000-0000-000000000007", f"user_{7:032x}"),
        ("user", "", None),
        ("lane", "low", "low"),
    ],
)
def test_what_the_routes_name_is_named_as_they_do(kind: str, id_: str, name: str | None) -> None:
    assert object_name_of(kind, id_) == name


@pytest.mark.django_db
@pytest.mark.usefixtures("valkey")
def test_what_is_done_to_projects_keys_and_rates_is_told_in_their_words() -> None:
    with time_machine.travel(NOON, tick=False):
        tenant = tenants.create(name="Rail", slug="rail", actor=ACTOR)
        tenants.rename(tenant=tenant, name="Railway", actor=ACTOR)
        tenants.set_time_zone(tenant=tenant, time_zone="Asia/Seoul", actor=ACTOR)
        tenants.set_suffix_pool(tenant=tenant, suffix_pool=True, actor=ACTOR)
        key = keys.create(tenant=tenant, name="app", scopes=["read"], actor=ACTOR).key
        changes: dict[str, Any] = {"key": key, "name": "app", "default_lane": None, "actor": ACTOR}
        keys.change(**changes, scopes=["inference"], expires_at=None)
        keys.change(**changes, scopes=["inference"], expires_at=NOON + HOUR)
        successor = keys.rotate(key=key, overlap=HOUR / 2, actor=ACTOR).key
        keys.rotate(key=key, overlap=HOUR, actor=ACTOR)
        keys.revoke(key=key, actor=ACTOR)
        with tenant_scope(tenant.id):
            right = Entitlement.objects.select_related("allowance").get(lane="low")
        entitlements.change(entitlement=right, limits=Limits(requests_per_minute=5), actor=ACTOR)
        entitlements.change(entitlement=right, limits=Limits(tokens_per_day=9), actor=ACTOR)
        tenants.close(tenant=tenant, actor=ACTOR)
        tenants.reopen(tenant=tenant, actor=ACTOR)
    entries = told()
    project, first, second = (
        f"proj_{tenant.id.hex}",
        f"key_{key.id.hex}",
        f"key_{successor.id.hex}",
    )
    third = entries[-6]["api_key.created"]["id"]
    assert [
        (entry["action"], entry["type"], their_fields(entry))
        for entry in entries
        if entry["action"] != "entitlement.grant"
    ] == [
        ("tenant.create", "project.created", {"id": project, "data": {"name": "Rail", "title": "Rail"}}),
        ("tenant.rename", "project.updated", {"id": project, "changes_requested": {"title": "Railway"}}),
        (
            "tenant.set_time_zone",
            "project.updated",
            {"id": project, "changes_requested": {"time_zone": "Asia/Seoul"}},
        ),
        (
            "tenant.set_suffix_pool",
            "project.updated",
            {"id": project, "changes_requested": {"suffix_pool": True}},
        ),
        ("api_key.create", "api_key.created", {"id": first, "data": {"scopes": ["read"]}}),
        (
            "api_key.change",
            "api_key.updated",
            {"id": first, "changes_requested": {"scopes": ["inference"]}},
        ),
        (
            "api_key.change",
            "api_key.updated",
            {"id": first, "changes_requested": {"expires_in_seconds": 3600}},
        ),
        (
            "api_key.rotate",
            "api_key.updated",
            {"id": first, "changes_requested": {"expires_in_seconds": 1800}},
        ),
        ("api_key.create", "api_key.created", {"id": second, "data": {"scopes": ["inference"]}}),
        (
            "api_key.expire",
            "api_key.updated",
            {"id": second, "changes_requested": {"expires_in_seconds": 1800}},
        ),
        ("api_key.rotate", "api_key.updated", {"id": first, "changes_requested": {}}),
        ("api_key.create", "api_key.created", {"id": third, "data": {"scopes": ["inference"]}}),
        ("api_key.revoke", "api_key.deleted", {"id": first}),
        (
            "entitlement.change",
            "rate_limit.updated",
            {"id": "rl-low", "changes_requested": {"max_requests_per_1_minute": 5}},
        ),
        (
            "entitlement.change",
            "rate_limit.updated",
            {"id": "rl-low", "changes_requested": {"max_requests_per_1_minute": UNLIMITED}},
        ),
        ("tenant.close", "project.archived", {"id": project}),
        ("tenant.reopen", "tenant.reopen", {}),
    ]
    assert {entry["project"]["id"] for entry in entries} == {project}
    _parse_strictly(entries)


@pytest.mark.django_db
@pytest.mark.usefixtures("valkey")
def test_what_is_done_to_people_and_what_they_do_is_told_in_their_words() -> None:
    tenant = TenantFactory()
    user = users.create(username="ada", email="ada@example.com", actor=ACTOR).user
    changes: dict[str, Any] = {"user": user, "username": "ada", "is_staff": False, "actor": ACTOR}
    users.create(username="bob", is_superuser=True, actor=ACTOR)
    users.change(**changes, email="ada@example.com", is_superuser=True)
    users.change(**changes, email="b@example.com", is_superuser=True)
    membership = members.add(tenant=tenant, user=user, role=Role.MEMBER, actor=ACTOR)
    members.change_role(membership=membership, role=Role.VIEWER, actor=ACTOR)
    members.end(membership=membership, actor=ACTOR)
    with transaction.atomic():
        log_ins.record_log_in(user=user, actor=ACTOR)
    with transaction.atomic():
        log_ins.record_log_out(user=user, actor=ACTOR)
    stranger = Actor(kind="anonymous", id="", name="not signed in", address="192.0.2.1")
    log_ins.record_failure(username="ada", actor=stranger)
    log_ins.record_failure(username="nobody", actor=stranger)
    users.close(user=user, actor=ACTOR)
    log_ins.record_failure(username="ada", actor=stranger)
    log_ins.record_refusal(username="ada", reached=Limit.ACCOUNT, actor=stranger)
    with transaction.atomic():
        nobody = audit.ObjectRef(kind="user", id="")
        audit.record(Actor.system("log-ins"), "user.log_in_failed", nobody, None, {"further_failures": 7})
    entries = told()
    ada, bob = f"user_{user.id.hex}", entries[1]["user.added"]["id"]
    assignment = {
        "id": str(membership.id),
        "principal_id": ada,
        "principal_type": "user",
        "resource_id": f"proj_{tenant.id.hex}",
        "resource_type": "project",
    }
    assert [
        (entry["type"], their_fields(entry))
        for entry in entries
        if not entry["type"].startswith("login.failed")
    ] == [
        ("user.added", {"id": ada, "data": {"role": "member"}}),
        ("user.added", {"id": bob, "data": {"role": "owner"}}),
        ("user.updated", {"id": ada, "changes_requested": {"role": "owner"}}),
        ("user.updated", {"id": ada, "changes_requested": {}}),
        ("role.assignment.created", assignment),
        ("membership.change_role", {}),
        ("role.assignment.deleted", assignment),
        ("login.succeeded", {}),
        ("logout.succeeded", {}),
        ("user.deleted", {"id": ada}),
    ]
    failed = [their_fields(entry) for entry in entries if entry["type"] == "login.failed"]
    assert [one["error_code"] for one in failed] == [
        "wrong_password",
        "unknown_user",
        "user_closed",
        "throttled",
        "further_failures",
    ]
    assert all(one["error_message"] for one in failed)
    assert failed[-1]["error_message"].startswith("7 more log-ins failed")
    _parse_strictly(entries)


@pytest.mark.django_db
def test_every_type_has_been_looked_at_here() -> None:
    """Whoever maps another action adds it to the two tests above."""
    told_above = {
        *("tenant.create", "tenant.rename", "tenant.set_time_zone", "tenant.set_suffix_pool", "tenant.close"),
        *("api_key.create", "api_key.change", "api_key.rotate", "api_key.expire", "api_key.revoke"),
        *("entitlement.change", "membership.add", "membership.end"),
        *("user.create", "user.change", "user.close"),
        *("user.log_in", "user.log_out", "user.log_in_failed", "user.log_in_throttled"),
    }
    assert set(TYPES) == told_above


@pytest.mark.django_db
@pytest.mark.parametrize("action", sorted(TYPES))
def test_an_event_that_says_less_than_its_verb_does_today_is_told_all_the_same(action: str) -> None:
    """Older ones do; and a reader must not fail on what is chained for ever."""
    kind = action.partition(".")[0]
    for before, after in ((None, None), ({}, {}), ({"name": "a"}, None)):
        with transaction.atomic():
            audit.record(ACTOR, action, audit.ObjectRef(kind=kind, id=""), before, after)
    entries = told()
    assert {entry["action"] for entry in entries} == {action}
    _parse_strictly(entries)


def _parse_strictly(entries: list[dict[str, Any]]) -> None:
    theirs = [entry for entry in entries if entry["type"] in THEIR_TYPES]
    assert theirs
    for entry in theirs:
        parsed = AuditLogListResponse.model_validate(entry, strict=True)
        details = getattr(parsed, entry["type"].replace(".", "_"))
        assert details is not None, entry["type"]
