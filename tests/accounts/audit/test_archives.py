"""Archives: what is old moves to files, whole segments at a time; nothing is lost, whenever a run is killed."""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import IntegrityError, transaction
from django.utils import timezone

from accounts.audit import archive_files, archives, checkpoints
from accounts.audit import settings as audit_settings
from accounts.audit.archives import ArchiveDamaged, ArchiveRefused
from accounts.audit.canonical import GENESIS_HASH
from accounts.models import (
    AuditArchive,
    AuditEvent,
    AuditHead,
    AuditPersonalValue,
    LaneAssignment,
    SealedAssignment,
)
from accounts.tenancy import every_tenant
from signalbox.configuration import ROOT
from tests.accounts.audit.chains import assignment, record_events, set_row
from tests.accounts.audit.exported import OURS, exported, furnish, of_kind, record_of, seal_for, verdict
from tests.accounts.audit.own_state import settle
from tests.factories import ACTOR
from tests.fixtures.database import database_url

pytestmark = pytest.mark.django_db

Tampering = Callable[[], AbstractContextManager[None]]


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    settle(monkeypatch, tmp_path)
    return tmp_path


def archive(**options: Any) -> list[AuditArchive]:
    """Archive all that may be."""
    return archives.archive(timezone.now(), timezone.now() + timedelta(days=1), **{"least": 1} | options)


def signed() -> int:
    made = checkpoints.make(timezone.now())
    assert made
    return made.sequence


def assignments() -> int:
    with every_tenant("the test counts"):
        return LaneAssignment.objects.count()


def test_what_is_old_moves_to_a_file_and_stands_in_the_chain_as_moved(directory: Path) -> None:
    furnish()
    last = checkpoints.latest()
    assert last
    before, kept, personal = AuditHead.objects.get(id=1), assignments(), AuditPersonalValue.objects.count()
    [made] = archive(actor=ACTOR)
    assert (made.first_sequence, made.last_sequence) == (1, last.sequence)
    assert (made.previous_hash, made.last_hash) == (GENESIS_HASH, last.hash)
    assert made.assignments == kept == 18
    assert assignments() == SealedAssignment.objects.count() == 0
    assert list(AuditEvent.objects.order_by("sequence").values_list("sequence", flat=True)) == [
        *range(last.sequence + 1, before.sequence + 2)
    ]
    event = AuditEvent.objects.get(action="audit.archive")
    assert event.after
    assert len(event.after.pop("archives_hash")) == 64
    assert event.after == {
        name: getattr(made, name)
        for name in (
            "first_sequence",
            "last_sequence",
            "previous_hash",
            "last_hash",
            "assignments",
            "file_name",
            "file_sha256",
            "file_bytes",
        )
    }
    assert AuditPersonalValue.objects.count() >= personal
    path = archives.path_of(made)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    records = list(archives.read(made))
    assert [one["content"]["sequence"] for one in records if one["record"] == "event"] == [
        *range(1, last.sequence + 1)
    ]
    assert not any("personal" in one for one in records)
    assert (records[0]["kind"], records[-1]["record"]) == ("archive", "end")


def test_the_same_segment_is_the_same_file(directory: Path) -> None:
    furnish()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(archives, "record", _fails)
        with pytest.raises(RuntimeError):
            archive()
    [first] = (directory / "audit" / "archives").glob("*.gz")
    written = first.read_bytes()
    assert not AuditArchive.objects.exists()
    [made] = archive()
    assert archives.path_of(made) == first
    assert first.read_bytes() == written
    with gzip.open(first) as lines:
        assert lines.readline().startswith(b'{"at":')


def _fails(*arguments: Any, **options: Any) -> None:
    raise RuntimeError("the disk is full")


def test_the_next_segment_goes_on_where_the_last_one_ended() -> None:
    record_of(OURS)
    signed()
    [first] = archive()
    record_of(OURS, n=1)
    seal_for([OURS])
    signed()
    [second] = archive()
    assert second.first_sequence == first.last_sequence + 1
    assert second.previous_hash == first.last_hash
    assert archive() == []


def test_a_file_holds_so_much_and_no_more(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(archives, "MOST_EVENTS", 4)
    monkeypatch.setattr(archives, "MOST_ASSIGNMENTS", 5)
    for _ in range(3):
        record_events(3)
        seal_for([OURS] * 3)
        seal_for([OURS] * 3)
    seal_for([OURS] * 9)
    last = signed()
    made = archive()
    assert made[-1].last_sequence == last
    for one, following in pairwise(made):
        assert following.first_sequence == one.last_sequence + 1
    for one in made:
        assert one.last_sequence - one.first_sequence < 4
        assert one.assignments <= 5 or one.assignments == 9
        assert verdict(tmp_path / "auditor", archives.path_of(one).read_bytes(), name="a.gz").status == 0


def test_a_segment_ends_at_a_checkpoint_and_nothing_younger_than_the_last_one_is_moved() -> None:
    record_of(OURS)
    assert archive() == []
    last = signed()
    record_of(OURS, n=1)
    [made] = archive()
    assert made.last_sequence == last
    assert archive() == []


def test_what_is_younger_than_the_settings_say_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    furnish()
    now = timezone.now()
    assert archives.archive(now + timedelta(days=400)) == []
    audit_settings.change(archive_after_days=30, checkpoint_minutes=60, actor=ACTOR)
    signed()
    monkeypatch.setattr(archives, "LEAST", 1)
    assert archives.archive(now + timedelta(days=29), least=1) == []
    assert archives.archive(now + timedelta(days=31), least=1)


def test_a_little_waits_until_it_is_worth_a_file() -> None:
    record_events(3)
    signed()
    assert archive(least=archives.LEAST) == []
    seal_for([OURS] * archives.LEAST)
    signed()
    [made] = archive(least=archives.LEAST)
    assert made.assignments == archives.LEAST


def test_what_is_not_sealed_stays() -> None:
    seal_for([OURS] * 2)
    with every_tenant("the test assigns"):
        waiting = assignment()
        waiting.save(force_insert=True)
    signed()
    archive()
    with every_tenant("the test looks"):
        assert [row.generation_id for row in LaneAssignment.objects.all()] == [waiting.generation_id]


@pytest.mark.parametrize("what", ["event", "assignment", "leaf gone", "event gone"])
def test_what_does_not_hold_is_not_archived(what: str, tampering: Tampering, directory: Path) -> None:
    furnish()
    rows = AuditEvent.objects.count()
    with tampering(), every_tenant("the test changes what it likes"):
        if what == "event":
            set_row(AuditEvent.objects.get(sequence=3), request_id="other")
        elif what == "assignment":
            set_row(LaneAssignment.objects.all()[0], given_lane="low", reason="requested")
        elif what == "leaf gone":
            SealedAssignment.objects.all()[0].delete()
        else:
            AuditEvent.objects.get(sequence=3).delete()
            rows -= 1
    with pytest.raises(ArchiveRefused, match="audit verify"):
        archive()
    assert AuditEvent.objects.count() == rows
    assert not AuditArchive.objects.exists()
    assert [path.name for path in (directory / "audit" / "archives").iterdir()] == [".lock"]


def test_one_run_at_a_time(directory: Path) -> None:
    furnish()
    with archive_files.sole_writer() as alone:
        assert alone
        with pytest.raises(ArchiveRefused, match="Another run"):
            archive()
    assert archive()


def test_a_file_of_another_database_is_not_written_over(directory: Path) -> None:
    record_of(OURS)
    last = signed()
    there = directory / "audit" / "archives" / archive_files.name_of(1, last)
    there.parent.mkdir(parents=True)
    there.write_bytes(gzip.compress(b"another chain's\n"))
    with pytest.raises(ArchiveRefused, match="another database"):
        archive()
    assert gzip.decompress(there.read_bytes()) == b"another chain's\n"


def test_a_file_that_was_changed_or_is_gone_is_told_before_anything_is_read_from_it() -> None:
    furnish()
    [made] = archive()
    path = archives.path_of(made)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"\1")
    with pytest.raises(ArchiveDamaged, match=f"{made.file_name}.*is not what was archived.*backup"):
        next(archives.read(made))
    path.unlink()
    with pytest.raises(ArchiveDamaged, match="cannot be read"):
        next(archives.read(made))
    path.write_bytes(whole)
    assert next(archives.read(made))["record"] == "header"


def test_only_what_is_archived_can_be_deleted() -> None:
    furnish()
    with pytest.raises(IntegrityError, match="append-only"), transaction.atomic():
        AuditEvent.objects.filter(sequence=1).delete()
    archive()
    assert not AuditEvent.objects.filter(sequence=1).exists()


def test_rows_that_a_killed_run_has_left_stay_while_their_file_is_not_there(directory: Path) -> None:
    furnish()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(archives, "_delete_rows", _fails)
        with pytest.raises(RuntimeError):
            archive()
    made = AuditArchive.objects.get()
    path, rows = archives.path_of(made), AuditEvent.objects.count()
    path.rename(directory / "elsewhere")
    with pytest.raises(ArchiveRefused, match=r"Restore it.*stay there"):
        archive()
    assert AuditEvent.objects.count() == rows
    (directory / "elsewhere").rename(path)
    archive()
    assert not AuditEvent.objects.filter(sequence__lte=made.last_sequence).exists()


# --- Killed at any point ---

#: Where a run is killed: what is replaced by a signal that nothing survives, and at which call of it.
KILLED_AT = {
    "begun": ("accounts.audit.archive_files._compress", 1),
    "written": ("os.fsync", 1),
    "in place": ("accounts.audit.archive_files._sync_directory", 1),
    "before its row": ("accounts.models.AuditArchive.save", 1),
    "before its event": ("accounts.audit.archives.record", 1),
    "recorded": ("accounts.audit.archives._delete_rows", 1),
    "half deleted": ("accounts.audit.archives.transaction.atomic", 4),
    "assignments deleted": ("django.db.models.query.QuerySet.delete", 4),
}

_DYING = """
import os, signal, sys
from datetime import timedelta
import django
django.setup()
from unittest.mock import patch
from django.utils import timezone
from accounts.audit import archives

target, calls = sys.argv[1], int(sys.argv[2])
archives._PIECE = 5
module, _, name = target.rpartition(".")
from pkgutil import resolve_name
holder = resolve_name(module)
real, count = getattr(holder, name), 0

def deadly(*arguments, **options):
    global count
    count += 1
    if count == calls:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments, **options)

setattr(holder, name, deadly)
archives.archive(timezone.now(), timezone.now() + timedelta(days=1), least=1)
"""


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("point", KILLED_AT)
def test_a_run_that_is_killed_loses_nothing_and_the_next_one_goes_on(point: str, directory: Path) -> None:
    key = furnish()
    head = AuditHead.objects.get(id=1).sequence
    before = exported()
    target, calls = KILLED_AT[point]
    died = subprocess.run(
        [sys.executable, "-c", _DYING, target, str(calls)],
        cwd=ROOT,
        env={
            **os.environ,
            "DATABASE_URL": database_url(),
            "SIGNALBOX_STATE_DIR": str(directory),
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'platform'}",
        },
        capture_output=True,
        timeout=120,
    )
    assert died.returncode == -signal.SIGKILL, died.stderr
    between = exported()
    assert _content_until(head, between) == _content_until(head, before)
    assert verdict(directory / "auditor", between, "--key", key.public_key).status == 0
    archive()
    covered = AuditArchive.objects.order_by("-last_sequence")[0].last_sequence
    assert not AuditEvent.objects.filter(sequence__lte=covered).exists()
    assert not SealedAssignment.objects.filter(batch__lte=covered).exists()
    assert not list((directory / "audit" / "archives").glob("*.part"))
    after = exported()
    assert _content_until(head, after) == _content_until(head, before)
    assert verdict(directory / "auditor", after, "--key", key.public_key).status == 0


def _content_until(head: int, text: bytes) -> list[Any]:
    events = [event for event in of_kind(text, "event") if event["content"]["sequence"] <= head]
    return [*events, *of_kind(text, "assignment")]


# --- The command ---


def run(*arguments: str) -> str:
    out = StringIO()
    call_command("audit", "archive", *arguments, stdout=out)
    return out.getvalue()


def test_the_command_archives_what_is_older_than_a_day_and_says_where_it_is() -> None:
    furnish()
    tomorrow = (timezone.now() + timedelta(days=2)).date().isoformat()
    said = run("--before", tomorrow)
    made = AuditArchive.objects.get()
    assert said.startswith(f"{archives.path_of(made)}: events 1 to {made.last_sequence}, 18 assignments")
    assert AuditEvent.objects.get(action="audit.archive").actor_name.startswith("manage.py audit archive")
    assert "Nothing to archive" in run("--before", "2020-01-01")


def test_the_command_goes_by_the_settings() -> None:
    furnish()
    with pytest.raises(CommandError, match="--before"):
        run()
    audit_settings.change(archive_after_days=1, checkpoint_minutes=60, actor=ACTOR)
    assert "Nothing to archive" in run()


def test_the_command_says_what_is_in_its_way(directory: Path) -> None:
    furnish()
    with archive_files.sole_writer(), pytest.raises(CommandError, match="Another run"):
        run("--before", "2100-01-01")
    (directory / "audit" / "archives" / ".lock").unlink()
    (directory / "audit" / "archives").rmdir()
    (directory / "audit" / "archives").write_text("a file")
    with pytest.raises(CommandError, match="is not a directory"):
        run("--before", "2100-01-01")
