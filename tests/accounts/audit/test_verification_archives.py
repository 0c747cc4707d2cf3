"""Archived segments stay provable: their rows, their files, what is left of them in the database."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from accounts.audit import (
    archive_files,
    archive_vouching,
    archives,
    checkpoints,
    sealing,
    signing_keys,
)
from accounts.audit.verification import verify, verify_and_store
from accounts.models import (
    AuditArchive,
    AuditCheckpoint,
    AuditEvent,
    AuditSigningKey,
    LaneAssignment,
    SealedAssignment,
)
from accounts.tenancy import every_tenant
from tests.accounts.audit.chains import (
    Built,
    Tampering,
    assign,
    assignment,
    build,
    chain_anew,
    forge,
    record_events,
    seal,
    set_row,
)
from tests.accounts.audit.own_state import settle

pytestmark = pytest.mark.django_db


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The directory of the archives' files."""
    return settle(monkeypatch, tmp_path).audit_archive_dir


@pytest.fixture
def built(files: Path, tampering: Tampering) -> Iterator[Built]:
    """A chain of two archives and what follows them; its triggers are away."""
    chain = build(tampering)
    with tampering():
        [_] = archives.archive(timezone.now(), timezone.now() + timedelta(days=1), least=1)
        assign(2)
        assert sealing.seal(timezone.now()) == 3, "the one that waited is among them"
        assert verify(from_scratch=True).fault is None
        yield chain


def both() -> list[AuditArchive]:
    first, second = AuditArchive.objects.order_by("first_sequence")
    return [first, second]


def named(**options: Any) -> tuple[str, int, str]:
    fault = verify(**{"from_scratch": True, **options}).fault
    assert fault is not None, "nothing was found"
    return fault.kind.value, fault.sequence, fault.reason.value


def test_what_is_archived_is_read_from_its_files_when_everything_is_verified(built: Built) -> None:
    first, second = both()
    assert (first.first_sequence, second.last_sequence) == (1, built.checkpoint)
    found = verify(from_scratch=True)
    assert (found.fault, found.notes, found.first_sequence) == (None, (), 1)
    assert (found.events, found.assignments) == (found.head_sequence, 4 + 5 + 3 + 2 + 3)


def test_an_incremental_walk_takes_archives_by_their_rows_and_their_files_bytes(
    built: Built, files: Path
) -> None:
    stored = verify_and_store(from_scratch=True)
    seal(1)
    found = verify(from_scratch=False)
    assert (found.fault, found.first_sequence, found.events) == (None, stored.last_sequence, 2)
    _flip(files / both()[0].file_name)
    assert named(from_scratch=False) == ("archive", 1, "file_altered")


def test_a_walk_that_ended_in_what_is_archived_since_is_continued_behind_it(
    built: Built, tampering: Tampering
) -> None:
    verify_and_store(from_scratch=True)
    assert checkpoints.make(timezone.now())
    archives.archive(timezone.now(), timezone.now() + timedelta(days=1), least=1)
    archived = AuditArchive.objects.order_by("-last_sequence")[0].last_sequence
    found = verify(from_scratch=False)
    assert (found.fault, found.first_sequence) == (None, archived + 1)


def test_files_that_are_not_here_are_noted_and_missed_where_they_were_said_to_be(
    built: Built, files: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    shutil.move(files, elsewhere)
    found = verify(from_scratch=True)
    assert found.fault is None
    assert found.notes[0].startswith("Not read: 2 archives")
    assert found.events == found.head_sequence - built.checkpoint
    assert verify(from_scratch=True, archives_dir=elsewhere).notes == ()
    (elsewhere / both()[1].file_name).unlink()
    assert named(archives_dir=elsewhere) == ("archive", both()[1].first_sequence, "file_missing")


@pytest.mark.parametrize("where", [0.1, 0.5, 0.99])
def test_a_file_of_which_a_byte_was_changed_is_named(built: Built, files: Path, where: float) -> None:
    second = both()[1]
    _flip(files / second.file_name, where)
    assert named() == ("archive", second.first_sequence, "file_altered")


def test_a_file_that_was_cut_short_is_named(built: Built, files: Path) -> None:
    path = files / both()[0].file_name
    path.write_bytes(path.read_bytes()[:-10])
    assert named() == ("archive", 1, "file_altered")


def _flip(path: Path, where: float = 0.5) -> None:
    content = bytearray(path.read_bytes())
    content[int(len(content) * where)] ^= 0x10
    path.write_bytes(content)


@pytest.mark.parametrize(
    "columns",
    [
        {"last_hash": "0" * 64},
        {"previous_hash": "f" * 64},
        {"assignments": 1},
        {"file_sha256": "0" * 64},
        {"file_bytes": 1},
        {"file_name": "another.jsonl.gz"},
    ],
    ids=lambda columns: next(iter(columns)),
)
@pytest.mark.parametrize("which", [0, 1])
def test_a_row_that_was_altered_is_named(built: Built, columns: dict[str, Any], which: int) -> None:
    archive = both()[which]
    set_row(archive, **columns)
    kind, sequence, reason = named()
    assert kind == "archive"
    # Where its hash at the end is another, the one behind it does not follow.
    assert sequence in (archive.first_sequence, archive.last_sequence + 1)
    assert reason in ("altered", "unlinked", "file_altered", "unvouched")


def test_archives_with_a_gap_or_an_overlap_are_named(built: Built) -> None:
    first, second = both()
    set_row(first, last_sequence=first.last_sequence - 1)
    assert named() == ("archive", first.last_sequence, "missing")
    set_row(first, last_sequence=first.last_sequence + 1)
    assert named() == ("archive", second.first_sequence, "inserted")


def test_an_archive_whose_row_is_gone_is_missing(built: Built) -> None:
    first, second = both()
    second.delete()
    assert named() == ("event", first.last_sequence + 1, "missing")
    first.delete()
    assert named() == ("event", 1, "missing")


def test_an_archive_that_nobody_recorded_is_named(built: Built) -> None:
    second = both()[1]
    head = AuditEvent.objects.order_by("-sequence")[0]
    AuditArchive.objects.create(
        first_sequence=second.last_sequence + 1,
        last_sequence=head.sequence - 1,
        previous_hash=second.last_hash,
        last_hash=head.previous_hash,
        assignments=0,
        file_name=archive_files.name_of(second.last_sequence + 1, head.sequence - 1),
        file_sha256="0" * 64,
        file_bytes=1,
        created_at=timezone.now(),
    )
    assert named() == ("archive", second.last_sequence + 1, "unvouched")


def test_a_file_made_anew_with_its_row_is_not_what_the_chain_says(built: Built, files: Path) -> None:
    second = both()[1]
    _write_anew(second, files, _with_another_lane)
    assert named() == ("archive", second.first_sequence, "altered")


@pytest.mark.parametrize("what", ["lane", "event", "left out", "cut"])
def test_a_file_made_anew_with_its_row_and_all_that_vouches_for_it_fails_by_its_content(
    built: Built, files: Path, what: str
) -> None:
    second = both()[1]
    change = {
        "lane": _with_another_lane,
        "event": _with_another_action,
        "left out": _without_one,
        "cut": _cut,
    }
    _write_anew(second, files, change[what])
    vouching = AuditEvent.objects.filter(action="audit.archive").order_by("-sequence")[0]
    assert vouching.after
    forge(
        vouching.sequence,
        after={
            **vouching.after,
            "file_sha256": second.file_sha256,
            "file_bytes": second.file_bytes,
            "archives_hash": archive_vouching.hashed_fields(both()[:1], second)["archives_hash"],
        },
    )
    AuditCheckpoint.objects.filter(sequence__gt=second.last_sequence).delete()
    chain_anew(vouching.sequence)
    assert verify(from_scratch=False).fault is not None, "the first walk is from scratch"
    kind, sequence, reason = named()
    assert (kind, reason) == ("archive", "file_altered")
    assert second.first_sequence <= sequence <= second.last_sequence


def _write_anew(
    archive: AuditArchive, files: Path, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]
) -> None:
    path = files / archive.file_name
    records = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    lines = [
        json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        for record in change(records)
    ]
    path.write_bytes(gzip.compress("".join(line + "\n" for line in lines).encode()))
    archive.file_sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    archive.file_bytes = path.stat().st_size
    set_row(archive, file_sha256=archive.file_sha256, file_bytes=archive.file_bytes)


def _with_another_lane(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    next(one for one in records if one["record"] == "assignment")["content"]["given_lane"] = "high"
    return records


def _with_another_action(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    next(one for one in records if one["record"] == "event")["content"]["action"] = "thing.invent"
    return records


def _without_one(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    records.remove([one for one in records if one["record"] == "event"][2])
    return records


def _cut(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    last = [one for one in records if one["record"] == "event"][-1]
    return [one for one in records if one is not last]


# While it is walked


def test_what_is_archived_while_it_is_walked_is_not_taken_to_be_gone(
    files: Path, tampering: Tampering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accounts.audit.chain_walk._TOLD_EVERY", 1)
    monkeypatch.setattr("accounts.audit.chain_rows.EVENTS", 2)
    with tampering():
        record_events(6)
        assert checkpoints.make(timezone.now())

    def archive_once(done: int, total: int) -> None:
        if not AuditArchive.objects.exists():
            archives.archive(timezone.now(), timezone.now() + timedelta(days=1), least=1)

    found = verify(from_scratch=True, progress=archive_once)
    assert AuditArchive.objects.count() == 1
    assert (found.fault, found.events, found.head_sequence) == (None, 8, 8)


def test_what_is_recorded_and_sealed_while_it_is_walked_is_left_to_the_next_walk(
    files: Path, tampering: Tampering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accounts.audit.chain_walk._TOLD_EVERY", 1)
    monkeypatch.setattr("accounts.audit.chain_rows.EVENTS", 2)
    record_events(5)

    def write_on(done: int, total: int) -> None:
        with tampering():
            assign(1)
        sealing.seal(timezone.now())
        record_events(1)

    found = verify(from_scratch=True, progress=write_on)
    assert (found.fault, found.events, found.assignments) == (None, 5, 0)
    found = verify(from_scratch=True)
    assert (found.fault, found.events, found.assignments) == (None, 15, 5)


# What is left of an archived segment in the database


def test_rows_that_are_not_deleted_yet_hold_while_they_are_what_was_archived(
    files: Path, tampering: Tampering, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tampering():
        record_events(2)
        seal(3)
        assert checkpoints.make(timezone.now())
        with monkeypatch.context() as killed:
            killed.setattr(archives, "_delete_rows", lambda made: None)
            archives.archive(timezone.now(), timezone.now() + timedelta(days=1), least=1)
        assert AuditEvent.objects.filter(sequence__lte=3).count() == 3
        found = verify(from_scratch=True)
        assert (found.fault, found.events, found.assignments) == (None, 5, 3)
        leaf = SealedAssignment.objects.get(batch=3, index=1)
        set_row(leaf, hash="0" * 64)
        assert named() == ("assignment", 3, "altered")
        with every_tenant("the test deletes"):
            LaneAssignment.objects.filter(pk=leaf.pk).delete()
        leaf.delete()
        assert verify(from_scratch=True).fault is None, "both were deleted, as they are to be"
        forge(2, action="thing.invent")
        assert named() == ("event", 2, "altered")


def test_what_was_put_among_the_archived_is_found(built: Built) -> None:
    [unknown] = assign(1)
    SealedAssignment.objects.create(generation_id=unknown, batch=5, index=0, hash="0" * 64)
    assert named() == ("assignment", 5, "altered")
    SealedAssignment.objects.filter(generation_id=unknown).update(batch=2)
    assert named() == ("assignment", 2, "altered")


def test_an_archived_generation_whose_assignment_is_put_there_again_has_two_proofs(
    built: Built, tampering: Tampering
) -> None:
    archived = next(iter(built.batches.values()))[1]
    with every_tenant("the test puts it there"):
        assert not LaneAssignment.objects.filter(pk=archived).exists()
        assignment(generation_id=archived, given_lane="high", reason="requested").save(force_insert=True)
    assert named() == ("assignment", 0, "inserted")
    assert sealing.seal(timezone.now(), sweep=True) == 1
    batch = AuditEvent.objects.order_by("-sequence")[0].sequence
    assert named() == ("assignment", batch, "inserted")
    record_events(2)
    assert checkpoints.make(timezone.now())
    archives.archive(timezone.now(), timezone.now() + timedelta(days=1), least=1)
    assert not SealedAssignment.objects.filter(pk=archived).exists()
    assert named() == ("assignment", batch, "inserted"), "both are in archives"


def test_a_key_that_nobody_introduced_is_found_although_the_event_of_the_first_one_is_archived(
    built: Built,
) -> None:
    [first] = signing_keys.public_keys()
    assert not AuditEvent.objects.filter(action__in=signing_keys.INTRODUCING).exists()
    set_row(first, created_at=first.created_at - timedelta(days=1))
    assert named() == ("key", 0, "unvouched")
    set_row(first, created_at=first.created_at)
    forged = "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c"
    AuditSigningKey.objects.create(
        id=signing_keys.id_of(forged), public_key=forged, created_at=timezone.now()
    )
    assert named() == ("key", 0, "unvouched")
