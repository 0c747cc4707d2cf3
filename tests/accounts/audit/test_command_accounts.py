"""The account of the operating system that a command ran under: told to readers, not in the chain, and erasable."""

from __future__ import annotations

import io
import os
import pwd
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import transaction
from django.test import Client
from django.urls import reverse

from accounts import actors, audit, command_accounts, tenants
from accounts.actors import command_actor
from accounts.audit import verification
from accounts.audit.reading import ERASED, disclosable, disclose
from accounts.models import AuditEvent, AuditPersonalValue
from accounts.principal import Actor
from accounts.refusals import ChangeRefusal, ChangeRefused
from tests.accounts.audit.exported import exported, furnish, verdict
from tests.accounts.audit.own_state import settle
from tests.factories import ACTOR
from tests.fixtures.stored_text import stored_text

pytestmark = pytest.mark.django_db

JANE = Actor.system("manage.py tenant create", account="jane.doe")


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    settle(monkeypatch, tmp_path)
    return tmp_path


@pytest.fixture
def runs_under(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let commands run under an account of that name, which need not be there."""

    def run_under(name: str) -> None:
        ours = pwd.getpwuid(os.getuid())
        entry = pwd.struct_passwd((name, *list(ours)[1:]))
        monkeypatch.setattr(actors.pwd, "getpwuid", lambda uid: entry)

    return run_under


def recorded(actor: Actor = JANE) -> AuditEvent:
    with transaction.atomic():
        return audit.record(actor, "thing.change", audit.ObjectRef("thing", "1"), {"n": 1}, {"n": 2})


def run(*arguments: str) -> str:
    output = io.StringIO()
    call_command(*arguments, stdout=output, stderr=io.StringIO())
    return output.getvalue()


def test_the_chain_has_the_command_and_only_a_commitment_to_the_account() -> None:
    event = recorded()
    assert (event.actor_kind, event.actor_name) == ("system", "manage.py tenant create")
    kept = AuditPersonalValue.objects.get()
    assert (kept.path, kept.value, kept.person_id) == ("actor_account", "jane.doe", None)
    assert list(event.personal) == ["actor_account"]
    assert verification.verify(from_scratch=True).fault is None


def test_whoever_reads_it_is_told_as_ever(runs_under: Any) -> None:
    runs_under("jane.doe")
    run("tenant", "create", "rail", "--lane", "low")
    said = {disclose(event).actor_name for event in disclosable(AuditEvent.objects.all())}
    assert said == {"manage.py tenant create (jane.doe)"}
    assert "jane.doe" not in str(list(AuditEvent.objects.values_list()))


def test_a_value_put_in_its_place_is_found_out(tampering: Any) -> None:
    recorded()
    with tampering():
        AuditPersonalValue.objects.update(value="john.doe")
    assert verification.verify(from_scratch=True).fault is not None


def test_the_account_is_the_process_s_and_not_what_the_environment_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(name, "somebody.else")
    assert command_actor("key list").account == pwd.getpwuid(os.getuid()).pw_name


def test_where_the_number_has_no_name_the_number_is_the_account(monkeypatch: pytest.MonkeyPatch) -> None:
    def nameless(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr(actors.pwd, "getpwuid", nameless)
    assert command_actor("key list") == Actor.system("manage.py key list", account=str(os.getuid()))


def test_it_is_erased_by_what_it_is_called_and_all_that_was_proved_is_proved(tmp_path: Path) -> None:
    key = furnish()
    recorded()
    recorded()
    recorded(Actor.system("manage.py key create", account="john.doe"))
    assert "jane.doe" in stored_text()
    said = run("audit", "erase-account", "jane.doe")
    assert "2 events" in said
    assert "jane.doe" not in stored_text()
    event = AuditEvent.objects.order_by("-sequence")[0]
    assert (event.action, event.object_kind, event.object_id) == (
        "command_account.erase",
        "command_account",
        "",
    )
    assert event.after == {"erased": {"audit_values": 2}}
    told = [disclose(one).actor_name for one in disclosable(AuditEvent.objects.filter(action="thing.change"))]
    assert told.count(f"manage.py tenant create {ERASED}") == 2
    assert told.count("manage.py key create (john.doe)") == 1
    assert verification.verify(from_scratch=True).fault is None
    found = verdict(tmp_path / "auditor", exported(), "--key", key.public_key)
    assert found.status == 0, found.complaint


def test_what_is_about_users_stays() -> None:
    recorded(ACTOR)
    recorded(Actor.system("manage.py key create", account=ACTOR.name))
    assert command_accounts.erase(account=ACTOR.name, actor=JANE) == 1
    assert AuditPersonalValue.objects.filter(path="actor_name", value=ACTOR.name).exists()


def test_an_account_that_no_command_ran_under_is_said_to_be_none_and_leaves_no_record() -> None:
    recorded()
    with pytest.raises(CommandError, match=r"no command that ran under 'jane'\. Nothing was changed"):
        run("audit", "erase-account", "jane")
    assert AuditEvent.objects.count() == 1


def test_under_that_account_itself_it_is_refused(runs_under: Any) -> None:
    recorded()
    with pytest.raises(ChangeRefused) as refused:
        command_accounts.erase(account="jane.doe", actor=JANE)
    assert refused.value.code is ChangeRefusal.OWN_ACCOUNT
    runs_under("jane.doe")
    with pytest.raises(CommandError, match="Run it under another one"):
        run("audit", "erase-account", "jane.doe")
    assert AuditPersonalValue.objects.filter(value="jane.doe").exists()


@pytest.mark.usefixtures("_admin_pages")
def test_auditors_find_commands_by_the_account_and_all_of_one_command_together(as_auditor: Client) -> None:
    tenants.create(name="Rail", slug="rail", actor=JANE)
    tenants.create(
        name="Road", slug="road", actor=Actor.system("manage.py tenant create", account="john.doe")
    )
    events = reverse("admin:accounts_auditevent_changelist")
    found = as_auditor.get(events, {"q": "jane.doe"}).context["cl"].result_list
    assert {event.entry.said.actor_name for event in found} == {"manage.py tenant create (jane.doe)"}
    page = as_auditor.get(reverse("admin:accounts_auditevent_change", args=[1])).content.decode()
    assert "manage.py tenant create (jane.doe)" in page
    narrowed = as_auditor.get(events, {"actor_kind": "system", "actor_name": "manage.py tenant create"})
    assert {event.entry.said.object_name for event in narrowed.context["cl"].result_list} >= {"Rail", "Road"}
