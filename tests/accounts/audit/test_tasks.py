"""The audit's periodic tasks. Each may run late, twice, or beside itself."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import time_machine
from django.db import connection, transaction
from django.utils import timezone
from structlog.testing import capture_logs

from accounts import audit, tasks
from accounts.audit import checkpoint_lines, checkpoints, settings, signing_keys
from accounts.models import (
    AuditCheckpoint,
    AuditEvent,
    AuditHead,
    AuditSigningKey,
    AuditVerification,
    SealedAssignment,
)
from accounts.sole_passes import sole_pass
from signalbox.celery import app
from tests.accounts.audit.own_state import settle
from tests.factories import ACTOR

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("valkey")]

SUNDAY, MONDAY = (datetime(2026, 3, day, 3, tzinfo=UTC) for day in (1, 2))
THING = audit.ObjectRef("thing", "1", "a thing")


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    settle(monkeypatch, tmp_path)
    return tmp_path


def record(count: int = 1) -> None:
    for n in range(count):
        with transaction.atomic():
            audit.record(ACTOR, "thing.change", THING, {"n": n}, {"n": n + 1})


def test_every_task_of_the_schedule_exists_and_what_is_often_expires_before_the_next() -> None:
    app.loader.import_default_modules()
    for entry in app.conf.beat_schedule.values():
        assert entry["task"] in app.tasks
        if isinstance(entry["schedule"], float):
            assert entry["options"]["expires"] <= entry["schedule"]


def test_the_head_is_signed_and_brought_outside_as_often_as_the_settings_say(directory: Path) -> None:
    record()
    assert tasks.checkpoint_audit()
    record()
    assert not tasks.checkpoint_audit()
    settings.change(archive_after_days=None, checkpoint_minutes=1, actor=ACTOR)
    with time_machine.travel(timezone.now() + timedelta(minutes=2), tick=False):
        assert tasks.checkpoint_audit()
    assert len(checkpoint_lines.read_file(directory / "audit" / "checkpoints.jsonl")) == 2


def test_a_checkpoint_that_cannot_be_made_is_told_and_what_there_is_goes_outside(directory: Path) -> None:
    record()
    signing_keys.introduce_first()
    made = checkpoints.make(timezone.now())
    assert made is not None
    record()
    for path in (directory / "secrets").iterdir():
        path.unlink()
    with (
        time_machine.travel(timezone.now() + timedelta(hours=2), tick=False),
        capture_logs() as logs,
    ):
        assert not tasks.checkpoint_audit()
    [entry] = [entry for entry in logs if entry["event"] == "audit_checkpoint_not_made"]
    assert "rotate-key --lost" in entry["problem"]
    assert len(checkpoint_lines.read_file(directory / "audit" / "checkpoints.jsonl")) == 1


@pytest.mark.django_db(transaction=True)
def test_checkpoints_that_are_made_beside_each_other_are_one(directory: Path) -> None:
    record(3)
    start = threading.Barrier(4)

    def run() -> None:
        try:
            start.wait()
            tasks.checkpoint_audit()
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(run) for _ in range(4)]:
            done.result()
    tasks.checkpoint_audit()
    assert AuditCheckpoint.objects.count() == AuditSigningKey.objects.count() == 1
    assert len(checkpoint_lines.read_file(directory / "audit" / "checkpoints.jsonl")) == 1


def test_a_walk_begins_where_the_last_one_has_ended_but_on_sundays() -> None:
    record(3)
    with time_machine.travel(MONDAY, tick=False):
        assert tasks.verify_audit()
    record(2)
    with time_machine.travel(MONDAY + timedelta(days=1), tick=False):
        assert tasks.verify_audit()
    with time_machine.travel(SUNDAY + timedelta(days=7), tick=False):
        assert tasks.verify_audit()
    begun = list(AuditVerification.objects.order_by("started_at").values_list("first_sequence", flat=True))
    assert (begun[0], begun[1] > 1, begun[2]) == (1, True, 1)


def test_a_walk_from_the_beginning_is_made_up_for_where_sundays_were_missed() -> None:
    record(3)
    with time_machine.travel(SUNDAY, tick=False):
        tasks.verify_audit()
    record(2)
    with time_machine.travel(SUNDAY + timedelta(days=9), tick=False):
        tasks.verify_audit()
    assert set(AuditVerification.objects.values_list("first_sequence", flat=True)) == {1}


def test_a_walk_waits_for_none_beside_it() -> None:
    with sole_pass("audit-verification", at_most_s=60):
        assert not tasks.verify_audit()
    assert not AuditVerification.objects.exists()


def test_what_a_walk_finds_is_told_in_its_words(
    tampering: Callable[[], AbstractContextManager[None]],
) -> None:
    record(3)
    with tampering():
        AuditEvent.objects.filter(sequence=2).update(actor_id="somebody-else")
    with capture_logs() as logs:
        assert not tasks.verify_audit()
    [entry] = [entry for entry in logs if entry["event"] == "audit_does_not_hold"]
    assert (entry["log_level"], entry["sequence"]) == ("error", 2)
    assert entry["message"]
    assert AuditVerification.objects.get().fault


def test_a_walk_is_compared_with_the_checkpoints_that_lie_outside(
    directory: Path, tampering: Callable[[], AbstractContextManager[None]]
) -> None:
    record(5)
    tasks.checkpoint_audit()
    with tampering():
        AuditCheckpoint.objects.all().delete()
        AuditEvent.objects.filter(sequence__gt=3).delete()
        AuditHead.objects.update(sequence=3, hash=AuditEvent.objects.get(sequence=3).hash)
    assert not tasks.verify_audit()
    (directory / "audit" / "checkpoints.jsonl").write_text("no checkpoint\n")
    with capture_logs() as logs:
        tasks.verify_audit()
    assert "audit_checkpoints_not_read" in [entry["event"] for entry in logs]


def test_sealing_and_archiving_have_nothing_to_do_on_an_empty_installation() -> None:
    assert tasks.seal_assignments() == 0
    assert tasks.archive_audit() == 0
    assert not SealedAssignment.objects.exists()


def test_the_nightly_walk_tells_which_lines_the_file_of_checkpoints_has_lost(directory: Path) -> None:
    for _ in range(3):
        record()
        assert checkpoints.make(timezone.now())
    tasks.checkpoint_audit()
    path = directory / "audit" / "checkpoints.jsonl"
    first, _, last = path.read_text().splitlines(keepends=True)
    path.write_text(first + last)
    with capture_logs() as logs:
        assert tasks.verify_audit()
    assert [line["lost"] for line in logs if line["event"] == "audit_anchor_lost_lines"] == [1]
