"""An archive that somebody has made up lets nothing go, and stands out: every one is told of by the chain."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction
from django.utils import timezone

from accounts.audit import archive_files, archive_vouching, archives, checkpoints
from accounts.audit.archives import ArchiveRefused
from accounts.audit.canonical import GENESIS_HASH, content_hash, link_hash
from accounts.audit.verification import verify
from accounts.models import AuditArchive, AuditCheckpoint, AuditEvent, LaneAssignment, SealedAssignment
from accounts.tenancy import every_tenant
from tests.accounts.audit.chains import Tampering, chain_anew, forge, record_events, seal, set_row
from tests.accounts.audit.own_state import settle

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The directory of the archives' files."""
    return settle(monkeypatch, tmp_path).audit_archive_dir


def archive() -> list[AuditArchive]:
    return archives.archive(timezone.now(), timezone.now() + timedelta(days=1), least=1)


def build(tampering: Tampering, parts: int = 1) -> None:
    """So many archives, of four events and more each, and what follows them."""
    for _ in range(parts):
        record_events(3)
        with tampering():
            seal(2)
        assert checkpoints.make(timezone.now())
        assert len(archive()) == 1
    record_events(2)


def made_up(first: int, last: int) -> AuditArchive:
    """As somebody inserts one who may insert and knows the chain."""
    made: AuditArchive = AuditArchive.objects.create(
        first_sequence=first,
        last_sequence=last,
        previous_hash=AuditEvent.objects.get(sequence=first).previous_hash,
        last_hash=AuditEvent.objects.get(sequence=last).hash,
        assignments=2,
        file_name=archive_files.name_of(first, last),
        file_sha256="0" * 64,
        file_bytes=1,
        created_at=timezone.now(),
    )
    return made


def named(**options: Any) -> tuple[str, int, str]:
    fault = verify(**{"from_scratch": True, **options}).fault
    assert fault is not None, "nothing was found"
    return fault.kind.value, fault.sequence, fault.reason.value


def without_the_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    """As archives were made before their events told of all of them."""
    real = archive_vouching.hashed_fields
    monkeypatch.setattr(
        archive_vouching,
        "hashed_fields",
        lambda earlier, made: {
            name: value for name, value in real(earlier, made).items() if name != "archives_hash"
        },
    )
    monkeypatch.setattr(archive_vouching, "vouched_for", archive_vouching.rows)


def test_an_archive_that_was_made_up_lets_nothing_go(tampering: Tampering) -> None:
    record_events(3)
    with tampering():
        seal(2)
    record_events(1)
    made_up(1, 4)
    with every_tenant("the test deletes"):
        for rows in (LaneAssignment.objects.all(), SealedAssignment.objects.all(), AuditEvent.objects.all()):
            with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
                rows.delete()
    assert named() == ("archive", 1, "unvouched")


@pytest.mark.parametrize("parts", [0, 1, 2])
def test_nothing_is_archived_behind_an_archive_that_was_made_up(tampering: Tampering, parts: int) -> None:
    build(tampering, parts)
    assert checkpoints.make(timezone.now())
    record_events(1)
    before = AuditEvent.objects.count()
    first = AuditEvent.objects.order_by("sequence")[0].sequence
    row = made_up(first, first + 1)
    with pytest.raises(
        ArchiveRefused, match=rf"events {first} to {first + 1} \({row.file_name}\) is told of by no"
    ):
        archive()
    assert AuditEvent.objects.count() == before
    assert AuditArchive.objects.count() == parts + 1
    assert named() == ("archive", first, "unvouched")
    assert named(from_scratch=False) == ("archive", first, "unvouched")


@pytest.mark.parametrize("older", [True, False], ids=["older", "now"])
@pytest.mark.parametrize("from_scratch", [True, False])
def test_what_was_let_go_by_an_archive_that_was_made_up_is_missed_after_a_genuine_one(
    tampering: Tampering, monkeypatch: pytest.MonkeyPatch, older: bool, from_scratch: bool
) -> None:
    """The way round the triggers and round the run that refuses, by somebody who owns the database."""
    build(tampering, 0)
    with tampering():
        made_up(1, 2)
        AuditEvent.objects.filter(sequence__lte=2).delete()
        record_events(3)
        assert checkpoints.make(timezone.now())
        with monkeypatch.context() as patch:
            patch.setattr(archive_vouching, "vouched_for", archive_vouching.rows)
            if older:
                without_the_hash(patch)
            else:
                # What it says of all archives is what they were.
                real = archive_vouching.hashed_fields
                patch.setattr(archive_vouching, "hashed_fields", lambda earlier, made: real([], made))
            patch.setattr(archives, "_delete_what_is_left", lambda earlier: None)
            assert archive()[0].first_sequence == 3
    found = verify(from_scratch=from_scratch)
    assert found.fault is not None
    assert (found.fault.kind.value, found.fault.sequence, found.fault.reason.value) == (
        "archive",
        1,
        "unvouched",
    )


def test_the_newest_archive_s_event_tells_of_all_and_is_in_the_database(tampering: Tampering) -> None:
    build(tampering, 3)
    rows = list(AuditArchive.objects.order_by("first_sequence"))
    [event] = AuditEvent.objects.filter(action="audit.archive")
    assert event.object_id == str(rows[-1].first_sequence)
    assert event.sequence > rows[-1].last_sequence
    expected = GENESIS_HASH
    for row in rows:
        fields = {name: getattr(row, name) for name in archive_vouching.VOUCHED}
        expected = link_hash(expected, content_hash(fields))
    assert event.after
    assert event.after["archives_hash"] == expected


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize(
    "columns",
    [{"assignments": 1}, {"file_sha256": "f" * 64}, {"file_bytes": 7}],
    ids=lambda columns: next(iter(columns)),
)
def test_a_row_is_told_to_be_altered_without_a_look_at_any_file(
    tampering: Tampering, files: Path, which: int, columns: dict[str, Any]
) -> None:
    build(tampering, 3)
    shutil.rmtree(files)
    found = verify(from_scratch=True)
    assert found.fault is None
    assert found.notes[0].startswith("Not read: 3 archives")
    row = AuditArchive.objects.order_by("first_sequence")[which]
    with tampering():
        set_row(row, **columns)
    kind, sequence, reason = named()
    assert (kind, reason) == ("archive", "altered" if which == 2 else "unvouched")
    assert sequence <= row.first_sequence
    assert named(from_scratch=False)[0] == "archive"
    with pytest.raises(ArchiveRefused, match="Nothing is archived"):
        archive()


def test_archives_whose_events_do_not_tell_of_all_verify_by_their_own(
    tampering: Tampering, files: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as patch:
        without_the_hash(patch)
        build(tampering, 3)
    found = verify(from_scratch=True)
    assert (found.fault, found.notes) == (None, ())
    shutil.move(files, tmp_path / "elsewhere")
    found = verify(from_scratch=True)
    assert found.fault is None
    assert [note.partition(":")[0] for note in found.notes] == [
        "Not read",
        "Not vouched for by what was read",
    ]
    # Where all files are read, an event must be in one of them.
    shutil.move(tmp_path / "elsewhere", files)
    first = AuditArchive.objects.order_by("first_sequence")[0]
    with tampering():
        set_row(first, file_bytes=7)
    assert named() == ("archive", 1, "altered")


def test_an_event_that_was_made_anew_with_its_archive_s_row_does_not_count_for_the_others(
    tampering: Tampering,
) -> None:
    build(tampering, 2)
    second = AuditArchive.objects.order_by("first_sequence")[1]
    [event] = AuditEvent.objects.filter(action="audit.archive")
    assert event.after
    with tampering():
        set_row(second, file_bytes=7)
        forge(event.sequence, after={**event.after, "file_bytes": 7})
        chain_anew(event.sequence)
        AuditCheckpoint.objects.filter(sequence__gte=event.sequence).delete()
    assert named()[::2] == ("archive", "unvouched")


@pytest.mark.parametrize("said", [None, [], {}, {"first_sequence": []}, {"first_sequence": "1"}])
def test_an_event_that_tells_of_nothing_vouches_for_nothing(tampering: Tampering, said: Any) -> None:
    build(tampering, 1)
    [event] = AuditEvent.objects.filter(action="audit.archive")
    with tampering():
        forge(event.sequence, after=said)
        chain_anew(event.sequence)
    assert named() == ("archive", 1, "unvouched")


def test_what_was_put_where_all_is_archived_is_not_tidied_up(tampering: Tampering) -> None:
    build(tampering, 2)
    event = AuditEvent.objects.order_by("sequence")[0]
    event.sequence, event.hash = 2, "f" * 64
    event.save(force_insert=True)
    with pytest.raises(ArchiveRefused, match="no run has left there"):
        archive()
    assert AuditEvent.objects.filter(sequence=2).exists()
    assert named() == ("event", 2, "altered")


def test_what_stands_in_the_database_of_an_archive_that_is_not_read_is_told(
    tampering: Tampering, files: Path
) -> None:
    build(tampering, 2)
    event = AuditEvent.objects.order_by("sequence")[0]
    event.sequence, event.hash = 2, "f" * 64
    event.save(force_insert=True)
    shutil.rmtree(files)
    found = verify(from_scratch=True)
    assert "Not compared: 1 record that the database still has of what is in them." in found.notes


def test_a_file_name_leads_nowhere_else(tampering: Tampering) -> None:
    build(tampering, 1)
    names = ["../checkpoints.jsonl", "/etc/hostname", "x" * 100]
    if connection.vendor == "sqlite":
        names += ["a\0b", "x" * 10_000]
    for name in names:
        with tampering():
            set_row(AuditArchive.objects.get(), file_name=name)
        assert named() == ("archive", 1, "altered")
