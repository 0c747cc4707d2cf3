"""The page of the audit as a whole: what stands there, and what its buttons do."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import time_machine
from asgiref.sync import async_to_sync
from django.test import Client
from django.urls import reverse

from accounts import tasks
from accounts.admin import audit_state
from accounts.audit import checkpoint_lines
from accounts.models import AuditCheckpoint, AuditEvent, AuditSettings, AuditVerification
from tests.accounts.admin.audited import NOW, Audited, audited
from tests.accounts.admin.test_audit_assignments import text
from tests.accounts.audit.own_state import settle

PAGE = reverse("admin:accounts_audit")
VERIFY = reverse("admin:accounts_audit_verify")
EXPORT = reverse("admin:accounts_audit_export")
SETTINGS = reverse("admin:accounts_audit_settings")


@pytest.fixture
def made(_admin_pages: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    settle(monkeypatch, tmp_path)
    made = audited()
    with time_machine.travel(NOW, tick=True):
        yield made


def exported(answer: Any) -> bytes:
    async def read() -> bytes:
        return b"".join([part async for part in answer.streaming_content])

    return async_to_sync(read)()


def test_the_page_says_how_it_stands(made: Audited, as_auditor: Client) -> None:
    said = text(as_auditor.get(PAGE))
    events = AuditEvent.objects.count()
    checkpoint = AuditCheckpoint.objects.get()
    for words in (
        f"Events {events}",
        "Assignments not sealed 0 none waits",
        f"Events not verified {events} never verified",
        "Events not signed 0",
        "The chain has not been verified yet.",
        f"up to event {checkpoint.sequence} genuine, key {checkpoint.key_id}; the chain goes through it",
        f"{checkpoint.key_id} signs now",
        "None: everything is in the database.",
        "Guarded: the database refuses to change or delete what is recorded.",
        "A checkpoint every 60 minutes, where something was recorded. Nothing is archived.",
    ):
        assert words in said, words


@pytest.mark.parametrize("client", ["as_auditor", "as_operator"])
def test_the_chain_is_verified_from_the_page_and_its_fault_named(
    made: Audited, request: pytest.FixtureRequest, tampering: Any, client: str
) -> None:
    client_of = request.getfixturevalue(client)
    held = text(client_of.post(VERIFY, {"from": "scratch"}, follow=True))
    events = AuditEvent.objects.count()
    assert f"Holds: {events} events and 5 assignments, from the first event to event {events}." in held
    assert "The chain holds. Last verified now, from scratch" in held
    assert "Events not verified 0" in held
    with tampering():
        AuditEvent.objects.filter(sequence=4).update(object_name="x")
    assert "The chain is broken." not in text(client_of.post(VERIFY, follow=True))
    broken = text(client_of.post(VERIFY, {"from": "scratch"}, follow=True))
    assert "The chain is broken." in broken
    assert "Event 4" in broken
    assert AuditVerification.objects.count() == 3
    assert client_of.get(VERIFY).status_code == 405


def test_a_long_walk_goes_to_celery(
    made: Audited, as_auditor: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []
    monkeypatch.setattr(audit_state, "WALKED_AT_ONCE", 3)
    monkeypatch.setattr(tasks.verify_audit, "delay", lambda **given: sent.append(given))
    said = text(as_auditor.post(VERIFY, {"from": "scratch"}, follow=True))
    assert "being verified in the background" in said
    assert sent == [{"from_scratch": True}]
    assert not AuditVerification.objects.exists()


@pytest.mark.parametrize("back", ["https://example.com/", "//example.com/", "javascript:x"])
def test_a_button_leads_back_to_our_own_pages_only(made: Audited, as_auditor: Client, back: str) -> None:
    assert as_auditor.post(VERIFY, {"back": back})["Location"] == PAGE


def test_an_operator_signs_the_head_when_something_was_recorded(made: Audited, as_operator: Client) -> None:
    url = reverse("admin:accounts_audit_checkpoint")
    assert "Nothing was recorded since" in text(as_operator.post(url, follow=True))
    as_operator.post(SETTINGS, {"checkpoint_minutes": "15", "archive_after_days": "400"})
    assert "Signed: the chain up to event" in text(as_operator.post(url, follow=True))
    assert AuditCheckpoint.objects.count() == 2


def test_the_settings_are_changed_by_their_verb(made: Audited, as_operator: Client) -> None:
    refused = text(as_operator.post(SETTINGS, {"checkpoint_minutes": "0"}))
    assert "greater than or equal to 1" in refused
    saved = as_operator.post(SETTINGS, {"checkpoint_minutes": "15", "archive_after_days": "400"}, follow=True)
    assert "Saved: the audit" in text(saved)
    settings = AuditSettings.objects.get()
    assert (settings.checkpoint_minutes, settings.archive_after_days) == (15, 400)
    event = AuditEvent.objects.latest("sequence")
    assert (event.action, event.after) == (
        "audit_settings.change",
        {"archive_after_days": 400, "checkpoint_minutes": 15},
    )


def test_an_export_is_downloaded_recorded_and_checked_by_the_script(
    made: Audited, as_auditor: Client, tmp_path: Path
) -> None:
    answer = as_auditor.post(EXPORT, {"lane": "high", "first": "2026-11-24", "last": "2026-11-24"})
    assert answer["Content-Disposition"].startswith('attachment; filename="signalbox-audit-')
    file = tmp_path / "export.jsonl"
    file.write_bytes(exported(answer))
    event = AuditEvent.objects.filter(action="audit.export").get()
    assert event.actor_kind == "user"
    script: Any = as_auditor.get(reverse("admin:accounts_audit_script"))
    path = tmp_path / "verify_export.py"
    path.write_bytes(b"".join(script.streaming_content))
    done = subprocess.run([sys.executable, str(path), str(file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    given = [line["content"]["given_lane"] for line in lines if line["record"] == "assignment"]
    assert given == ["high"] * 4
    assert "mabel" not in file.read_text()


def test_an_export_that_makes_no_sense_is_told_in_its_form(made: Audited, as_auditor: Client) -> None:
    backwards = as_auditor.post(EXPORT, {"first": "2026-11-24", "last": "2026-11-23"})
    assert "This is before the first day." in text(backwards)
    empty = as_auditor.post(EXPORT, {"first": "2020-01-01", "last": "2020-01-02"})
    assert "Nothing that can be shown was recorded in that time." in text(empty)
    assert "Export the audit" in text(as_auditor.get(EXPORT))


def test_names_go_along_when_they_are_asked_for(made: Audited, as_auditor: Client) -> None:
    lines = exported(as_auditor.post(EXPORT, {"personal": "on"})).decode()
    assert '"value":"grace"' in lines


def test_missing_triggers_alarm(made: Audited, as_auditor: Client, tampering: Any) -> None:
    with tampering():
        said = text(as_auditor.get(PAGE))
    assert "The database does not guard the audit" in said
    assert "Unguarded." in said


def test_a_checkpoint_that_the_chain_contradicts_is_told(
    made: Audited, as_auditor: Client, as_operator: Client, tampering: Any
) -> None:
    with tampering():
        AuditCheckpoint.objects.update(hash="0" * 64)
    assert "The signature of the checkpoint" in text(as_auditor.get(PAGE))
    refused = as_operator.post(reverse("admin:accounts_audit_checkpoint"), follow=True)
    assert "No checkpoint is made" in text(refused)


def test_what_waits_is_counted(made: Audited, as_auditor: Client) -> None:
    from accounts.tenancy import every_tenant
    from tests.accounts.admin.audited import principal_of, run

    with every_tenant("test"), time_machine.travel(NOW, tick=False):
        run(principal_of(made.key), "high")
    with time_machine.travel(NOW + timedelta(minutes=3), tick=False):
        said = text(as_auditor.get(PAGE))
    assert "Assignments not sealed 1 the oldest 3" in said


def test_what_the_last_verification_has_noted_is_shown(
    made: Audited, as_auditor: Client, tmp_path: Path
) -> None:
    as_auditor.post(VERIFY, {"from": "scratch"})
    assert "Note:" not in text(as_auditor.get(PAGE))
    kept = tmp_path / "audit" / "checkpoints.jsonl"
    kept.parent.mkdir(exist_ok=True)
    kept.write_text(f"{checkpoint_lines.line(AuditCheckpoint.objects.get())}\nno checkpoint\n")
    assert f"Note: Not compared with all checkpoints that are kept outside: {kept}, line 2" in text(
        as_auditor.post(VERIFY, follow=True)
    )
    last = AuditVerification.objects.order_by("-started_at")[0]
    last.notes = ["Not read: 2 archives, whose files are not here.", "A clock was <set> back."]
    last.save()
    said = as_auditor.get(PAGE).content.decode()
    assert "Note: Not read: 2 archives, whose files are not here." in said
    assert "A clock was &lt;set&gt; back." in said
