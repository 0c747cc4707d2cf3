"""At every address of the admin and of the site: who may send nothing changes nothing, who may not read reads nothing,
a form without its token is refused, and looking changes nothing at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.apps import apps
from django.db import connection
from django.test import Client

from accounts.models import ApiKey, AuditEvent, AuditHead, Role, Tenant
from accounts.tenancy import every_tenant
from tests.accounts.admin.addresses import ADMIN, OPEN, SITE, THE_ID, make_rows
from tests.accounts.audit.own_state import settle
from tests.accounts.audit.walk.watching import audited_rows
from tests.factories import MembershipFactory, OperatorFactory, UserFactory, WebhookEndpointFactory

#: Addresses that record something though they are only read: an export is one, whoever takes it along.
EXPORTS = {"accounts_usage_csv", "tenant-usage-csv"}
#: The audit's own pages.
AUDIT = [
    (address, name)
    for address, name in ADMIN
    if any(part in name for part in ("audit", "laneassignment", "rights")) or name.endswith("_history")
]
UNSAFE = ("post", "put", "patch", "delete")

pytestmark = pytest.mark.usefixtures("_rows")


@pytest.fixture
def _rows(_admin_pages: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settle(monkeypatch, tmp_path)
    make_rows()


@pytest.fixture
def rail(_rows: None) -> Tenant:
    """The tenant of whatever has the id that addresses have."""
    with every_tenant("test"):
        tenant: Tenant = ApiKey.objects.select_related("tenant").get(id=THE_ID).tenant
    tenant.slug = "rail"
    tenant.save(update_fields=["slug"])
    WebhookEndpointFactory(id=THE_ID, tenant=tenant)
    return tenant


def member(tenant: Tenant, role: Role, **options: Any) -> Client:
    client = Client(**options)
    client.force_login(
        MembershipFactory(tenant=tenant, user=UserFactory(username=f"the {role}"), role=role).user
    )
    return client


def everything() -> dict[str, Any]:
    """How many rows each table has, all that is audited, and where the chain ends."""
    counts = {}
    with connection.cursor() as cursor:
        for model in apps.get_models(include_auto_created=True):
            cursor.execute(f"SELECT COUNT(*) FROM {connection.ops.quote_name(model._meta.db_table)}")
            counts[model._meta.db_table] = cursor.fetchone()[0]
    return {**counts, "rows": audited_rows(), "head": AuditHead.objects.values_list().get(id=1)}


def body_of(answer: Any) -> str:
    """What an answer says; of one that is streamed, all of it."""
    if not answer.streaming:
        return str(answer.content.decode(errors="replace"))
    if not answer.is_async:
        return b"".join(answer.streaming_content).decode(errors="replace")

    async def read() -> bytes:
        return b"".join([part async for part in answer.streaming_content])

    return async_to_sync(read)().decode(errors="replace")


def said_by_the_audit() -> set[str]:
    """What only the audit has to say: hashes of events, and their actions."""
    hashes = set(AuditEvent.objects.values_list("hash", flat=True))
    return hashes | {"lane_assignments.seal", "user.create"}


def test_there_are_addresses_to_try() -> None:
    assert len(ADMIN) > 120
    assert len(SITE) > 25
    assert {name for _, name in AUDIT} >= {
        "accounts_audit",
        "accounts_audit_export",
        "accounts_audit_script",
        "accounts_audit_verify",
        "accounts_audit_checkpoint",
        "accounts_audit_settings",
        "accounts_auditevent_changelist",
        "accounts_auditevent_change",
        "accounts_laneassignment_changelist",
        "accounts_laneassignment_change",
        "accounts_lane_rights",
        "accounts_lanes_rights",
        "accounts_apikey_history",
    }
    assert {name for _, name in ADMIN} >= {"accounts_user_erase", "accounts_entitlement_approve"}
    assert {name for _, name in ADMIN} >= OPEN
    assert {name for _, name in [*ADMIN, *SITE]} >= EXPORTS


@pytest.mark.slow
def test_what_an_auditor_sends_is_refused_and_leaves_everything_as_it_was(as_auditor: Client) -> None:
    before = everything()
    for address, name in ADMIN:
        if name not in OPEN:
            for method in UNSAFE:
                answer = getattr(as_auditor, method)(address, {"post": "yes", "confirmed": "yes"})
                assert answer.status_code == 403, (method, address)
    assert everything() == before


@pytest.mark.parametrize("who", ["a stranger", Role.OWNER.value])
def test_nobody_but_operators_and_auditors_gets_anything_of_the_audit(who: str, rail: Tenant) -> None:
    client = Client() if who == "a stranger" else member(rail, Role(who))
    secrets = said_by_the_audit()
    before = everything()
    for address, name in AUDIT:
        for method in ("get", *UNSAFE):
            answer = getattr(client, method)(address)
            assert answer.status_code in (302, 403, 404), (method, address)
            if answer.status_code == 302:
                assert answer["Location"].startswith(("/login", "/admin/login")), (method, address)
            told = body_of(answer)
            assert not any(secret in told for secret in secrets), (method, address, name)
    assert everything() == before


def test_nobody_but_operators_and_auditors_gets_into_the_admin_at_all(rail: Tenant) -> None:
    for client in (Client(), member(rail, Role.OWNER)):
        for address, name in ADMIN:
            answer = client.get(address)
            assert name in ("login", "logout") or answer.status_code in (302, 403, 404), address


@pytest.mark.slow
def test_a_form_without_its_token_is_refused_at_every_address_of_the_admin() -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(OperatorFactory(username="operator"))
    before = everything()
    for address, _ in ADMIN:
        for method in UNSAFE:
            answer = getattr(client, method)(address, {"post": "yes", "confirmed": "yes"})
            assert answer.status_code == 403, (method, address)
            assert "expired" in answer.content.decode(), (method, address)
    assert everything() == before


def test_a_form_without_its_token_is_refused_at_every_address_of_the_site(rail: Tenant) -> None:
    client = member(rail, Role.OWNER, enforce_csrf_checks=True)
    before = everything()
    for address, name in SITE:
        for method in UNSAFE:
            answer = getattr(client, method)(address, json.dumps({}), content_type="application/json")
            # 405: takes nothing of that kind from anybody.
            assert answer.status_code in (403, 405), (method, address, name)
    assert everything() == before


@pytest.mark.slow
def test_looking_at_every_address_of_the_admin_changes_nothing(as_operator: Client) -> None:
    before = everything()
    for address, name in ADMIN:
        if name not in EXPORTS:
            answer = as_operator.get(address)
            assert answer.status_code in (200, 302, 403, 404, 405), address
            body_of(answer)
    assert everything() == before


def test_looking_at_every_address_of_the_site_changes_nothing(rail: Tenant) -> None:
    for client in (Client(), member(rail, Role.VIEWER), member(rail, Role.OWNER)):
        before = everything()
        for address, name in SITE:
            if name not in EXPORTS:
                answer = client.get(address)
                assert answer.status_code in (200, 302, 301, 400, 401, 403, 404, 405), address
                body_of(answer)
        assert everything() == before
