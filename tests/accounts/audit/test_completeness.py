"""Nothing that writes leaves no record: at every place where something can be changed, it is done, and looked for.

Whoever adds a form, an action, a route, a command or a task finds it missing here, and says in ``walk`` how it is used
and what it records, or why there is nothing to record.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from django.contrib import admin
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.test import Client
from django.urls import reverse

from accounts import audit
from accounts.audit import verification
from accounts.models import AuditEvent, AuditHead, AuditPersonalValue, Entitlement, LaneAssignment, User
from accounts.tenancy import every_tenant
from inference.models import ChatMessage, Conversation, PublishedPrefix
from signalbox.configuration import ROOT, configuration
from tests.accounts.audit.walk.admin import ADMIN
from tests.accounts.audit.walk.api import API
from tests.accounts.audit.walk.commands import COMMANDS, TASKS
from tests.accounts.audit.walk.proofs import PROOFS
from tests.accounts.audit.walk.site import SITE
from tests.accounts.audit.walk.stage import SECRETS, Scenario, Stage
from tests.accounts.audit.walk.surfaces import every_surface
from tests.accounts.audit.walk.unrecorded import UNRECORDED
from tests.accounts.audit.walk.watching import (
    AUDITED,
    AUDITED_WHEN_DELETED,
    NOT_AUDITED,
    audited_rows,
    our_models,
    watched,
)
from tests.factories import ACTOR, EntitlementFactory, TenantFactory

# As the site's routes do: a process that shows no pages has none.
admin.autodiscover()

SCENARIOS: Final[Mapping[str, Scenario]] = {**ADMIN, **SITE, **API, **COMMANDS, **TASKS, **PROOFS}
#: Texts of people are looked for from this length on: shorter ones stand in other words by chance.
_LEAST = 6

pytestmark = pytest.mark.django_db
each_place = pytest.mark.parametrize("surface", SCENARIOS)


@pytest.fixture
def stage(_admin_pages: None, tmp_path: Path, tiny_model_dir: Path) -> Iterator[Stage]:
    yield Stage(tmp_path, tiny_model_dir)
    settings = configuration()
    for left in (
        settings.models_dir,
        settings.pools_dir,
        settings.audit_archive_dir,
        settings.audit_anchor_file.parent,
    ):
        shutil.rmtree(left, ignore_errors=True)
    for key in settings.secrets_dir.glob("audit_signing_key*"):
        key.unlink()


def _head() -> int:
    """The number of the last event."""
    return AuditHead.objects.get(id=1).sequence


def _actions_after(sequence: int) -> tuple[str, ...]:
    later = AuditEvent.objects.filter(sequence__gt=sequence).order_by("sequence")
    return tuple(later.values_list("action", flat=True))


def _files() -> dict[Path, bytes]:
    """What is kept beside the database: peppers, pools, and the records of prepared models."""
    settings = configuration()
    found = [
        *settings.secrets_dir.glob("key_pepper*"),
        *settings.pools_dir.rglob("*.pool"),
        *settings.models_dir.rglob("*.json"),
    ]
    return {path: path.read_bytes() for path in found}


def _without_head(tampering: Any) -> None:
    """Whoever owns the database took the chain's head away: nothing can be appended any more."""
    with tampering():
        AuditHead.objects.all().delete()


def test_every_place_where_something_can_be_changed_is_walked_or_said_to_have_no_record() -> None:
    places = every_surface()
    assert sorted(set(places) - set(SCENARIOS) - set(UNRECORDED)) == [], "walk these, or say why not"
    assert sorted({*SCENARIOS, *UNRECORDED} - set(places)) == [], "these are no more"
    assert set(SCENARIOS) & set(UNRECORDED) == set()


def test_every_table_is_audited_or_said_not_to_be() -> None:
    tables = [model.__name__ for model in our_models()]
    assert sorted(tables) == sorted([*AUDITED, *AUDITED_WHEN_DELETED, *NOT_AUDITED])


@each_place
def test_what_is_done_there_leaves_its_record_in_the_same_transaction(surface: str, stage: Stage) -> None:
    scenario = SCENARIOS[surface]
    act = scenario.prepare(stage)
    head = _head()
    with watched() as watch:
        act()
    assert watch.unrecorded == [], "written in a transaction without an event"
    assert _actions_after(head) == scenario.actions
    assert verification.verify(from_scratch=True).fault is None
    _nothing_private_is_recorded(stage)


@each_place
def test_a3_nothing_is_done_there_that_cannot_be_recorded(surface: str, stage: Stage, tampering: Any) -> None:
    act = SCENARIOS[surface].prepare(stage)
    before, files, head = audited_rows(), _files(), _head()
    _without_head(tampering)
    with pytest.raises((audit.AuditError, AuditHead.DoesNotExist), match=r"head|not exist"):
        act()
    assert audited_rows() == before
    assert _files() == files
    assert _actions_after(head) == ()


def _nothing_private_is_recorded(stage: Stage) -> None:
    """No secret and nobody's words stand in any column; names of people only where they can be erased."""
    chained = _everything_in(AuditEvent) + _everything_in(LaneAssignment)
    recorded = chained + _everything_in(AuditPersonalValue)
    for secret in [*stage.secrets, *_words_of_people()]:
        assert secret not in recorded
    assert SECRETS.findall(recorded) == []
    for name in _names_of_people():
        assert name not in chained


def _everything_in(model: Any) -> str:
    """Every column of every row, as the database has it."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {connection.ops.quote_name(model._meta.db_table)}")
        rows = cursor.fetchall()
    return json.dumps([[str(cell) for cell in row] for row in rows], ensure_ascii=False)


def _names_of_people() -> set[str]:
    columns = ("username", "email", "first_name", "last_name")
    names = {name for row in User.objects.values_list(*columns) for name in row}
    return {name for name in names if len(name) >= _LEAST}


def _words_of_people() -> set[str]:
    with every_tenant("the test looks for them in the audit"):
        words = {
            *Conversation.objects.values_list("title", flat=True),
            *ChatMessage.objects.values_list("content", flat=True),
            *PublishedPrefix.objects.values_list("text", flat=True),
            *User.objects.values_list("password", flat=True),
        }
    return {word for word in words if len(word) >= _LEAST}


def test_the_watch_sees_what_is_written_without_a_record() -> None:
    """Were it blind, every scenario would pass."""
    tenant: Any = TenantFactory()
    with watched() as watch, transaction.atomic():
        type(tenant).objects.filter(id=tenant.id).update(name="unrecorded")
    assert watch.unrecorded == ["UPDATE accounts_tenant"]
    with watched() as watch:
        type(tenant).objects.filter(id=tenant.id).update(name="beside every transaction")
        with transaction.atomic():
            audit.record(ACTOR, "tenant.rename", tenant, None, None)
    assert watch.unrecorded == ["UPDATE accounts_tenant"]
    with watched() as watch, transaction.atomic():
        with transaction.atomic():
            type(tenant).objects.filter(id=tenant.id).update(name="recorded outside")
        audit.record(ACTOR, "tenant.rename", tenant, None, None)
    assert watch.unrecorded == []
    with watched() as watch, transaction.atomic():
        type(tenant).objects.filter(id=tenant.id).update(name="taken back")
        transaction.set_rollback(True)
    assert watch.unrecorded == []


def _break_by_a_trigger() -> None:
    """The disk, say: the database itself refuses the event."""
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute(
                "CREATE TRIGGER broken BEFORE INSERT ON accounts_auditevent BEGIN SELECT RAISE(ABORT, 'broken'); END"
            )
        else:
            cursor.execute(
                "CREATE FUNCTION broken() RETURNS trigger LANGUAGE plpgsql AS "
                "'BEGIN RAISE EXCEPTION ''broken''; END'"
            )
            cursor.execute(
                "CREATE TRIGGER broken BEFORE INSERT ON accounts_auditevent FOR EACH ROW EXECUTE FUNCTION broken()"
            )


@pytest.mark.parametrize("failure", ["head", "trigger"])
def test_a3_a_bulk_change_of_entitlements_fails_with_its_audit_and_the_page_says_so(
    failure: str, stage: Stage, tampering: Any
) -> None:
    rows: list[Any] = [EntitlementFactory() for _ in range(3)]
    chosen = {
        "action": "end_selected",
        "_selected_action": [str(row.pk) for row in rows],
        "confirmed": "yes",
    }
    if failure == "head":
        _without_head(tampering)
    else:
        _break_by_a_trigger()
    before = audited_rows()
    client = Client(raise_request_exception=False)
    client.force_login(stage.person)
    answer = client.post(reverse("admin:accounts_entitlement_changelist"), chosen)
    assert answer.status_code == 500
    assert "could not be recorded in the audit" in answer.content.decode()
    assert "3 entitlements" not in answer.content.decode()
    assert audited_rows() == before
    with every_tenant("test"):
        assert Entitlement.objects.filter(ended_at=None).count() == 3
    again = client.get(reverse("admin:accounts_entitlement_changelist")).content.decode()
    assert "entitlements ended" not in again


@pytest.mark.parametrize("command", ["createsuperuser", "changepassword"])
def test_commands_that_would_write_past_the_audit_are_refused(command: str) -> None:
    with pytest.raises(CommandError, match=r"no record in the audit. Use: manage.py user "):
        call_command(command)
    assert not User.objects.exists()


def test_the_page_about_the_audit_lists_every_action_there_is() -> None:
    """Those of the walk, and what the product's code names besides."""
    page = (ROOT / "docs" / "audit.md").read_text()
    listed = set(re.findall(r"^\| `([a-z_]+\.[a-z_]+)` \|", page, re.MULTILINE))
    walked = {action for scenario in SCENARIOS.values() for action in scenario.actions}
    assert walked - listed == set(), "recorded, and not in docs/audit.md"
    code = "\n".join(
        path.read_text()
        for app in ("accounts", "inference", "platform")
        for path in sorted((ROOT / app).rglob("*.py"))
    )
    assert {action for action in listed if f'"{action}"' not in code} == set(), "in docs/audit.md only"
