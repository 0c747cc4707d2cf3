"""The head, signed: what a copy that lies outside tells of a chain that was cut off or written anew."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import redis
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from django.core.cache import cache
from django.core.management import CommandError, call_command
from django.db import transaction
from django.utils import timezone

from accounts import audit
from accounts.audit import anchors, archive_files, checkpoint_lines, checkpoints, signing_keys
from accounts.audit import settings as audit_settings
from accounts.audit.canonical import GENESIS_HASH
from accounts.audit.checkpoint_lines import CheckpointFileError, SignedCheckpoint
from accounts.audit.checkpoints import CheckpointReason, CheckpointRefused
from accounts.audit.contents import event_hash
from accounts.models import (
    AuditArchive,
    AuditCheckpoint,
    AuditEvent,
    AuditHead,
    AuditPersonalValue,
    AuditSigningKey,
)
from signalbox.configuration import ROOT
from tests.accounts.audit.chains import chain_anew, set_row
from tests.accounts.audit.own_state import settle
from tests.factories import ACTOR
from tests.fixtures.database import database_url

pytestmark = pytest.mark.django_db

THING = audit.ObjectRef("thing", "1", "a thing")
Tampering = Callable[[], AbstractContextManager[None]]


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    settle(monkeypatch, tmp_path)
    return tmp_path


def record(n: int = 1) -> None:
    for i in range(n):
        with transaction.atomic():
            audit.record(ACTOR, "thing.change", THING, {"n": i}, {"n": i + 1})


def made() -> AuditCheckpoint:
    checkpoint = checkpoints.make(timezone.now())
    assert checkpoint is not None
    return checkpoint


def kept_outside(checkpoint: AuditCheckpoint) -> SignedCheckpoint:
    return checkpoint_lines.parse(checkpoint_lines.line(checkpoint))


def fault_of(checkpoint: AuditCheckpoint | SignedCheckpoint) -> CheckpointReason | None:
    fault = checkpoints.fault_of(checkpoint)
    return fault.reason if fault else None


def cut_off_after(sequence: int) -> None:
    """As somebody does who owns the database: the rows, and the head moved back to where they end."""
    AuditPersonalValue.objects.filter(event__gt=sequence).delete()
    AuditEvent.objects.filter(sequence__gt=sequence).delete()
    AuditHead.objects.update(sequence=sequence, hash=AuditEvent.objects.get(sequence=sequence).hash)


def write_anew_from(sequence: int, **changes: Any) -> None:
    """One event changed, and every hash from there on made to fit, the head's too."""
    previous = AuditEvent.objects.get(sequence=sequence).previous_hash
    for event in AuditEvent.objects.filter(sequence__gte=sequence).order_by("sequence"):
        if event.sequence == sequence:
            for name, value in changes.items():
                setattr(event, name, value)
        event.previous_hash = previous
        event.hash = previous = event_hash(event)
        event.save()
    AuditHead.objects.update(hash=previous)


def test_a_checkpoint_says_where_the_chain_was_and_is_signed() -> None:
    record(3)
    checkpoint = made()
    head = AuditHead.objects.get()
    assert (checkpoint.sequence, checkpoint.hash) == (head.sequence, head.hash) == (4, head.hash)
    assert AuditEvent.objects.get(sequence=4).action == "audit_signing_key.create"
    assert signing_keys.is_genuine(
        checkpoint.key_id, checkpoint_lines.statement(checkpoint), checkpoint.signature
    )
    assert fault_of(checkpoint) is None


def test_what_is_signed_is_canonical_json_and_a_line_adds_the_signature() -> None:
    at = datetime(2026, 3, 1, 12, 0, 0, 5, UTC)
    checkpoint = SignedCheckpoint(at, 7, "ab" * 32, "0123456789abcdef", "cd" * 64)
    assert checkpoint_lines.statement(checkpoint) == (
        b'{"at":"2026-03-01T12:00:00.000005+00:00","checkpoint":1,"hash":"' + b"ab" * 32 + b'",'
        b'"key":"0123456789abcdef","sequence":7}'
    )
    assert json.loads(checkpoint_lines.line(checkpoint)) == {
        **json.loads(checkpoint_lines.statement(checkpoint)),
        "signature": "cd" * 64,
    }
    assert checkpoint_lines.parse(checkpoint_lines.line(checkpoint)) == checkpoint
    assert (
        checkpoint_lines.parse(json.dumps(json.loads(checkpoint_lines.line(checkpoint)), indent=1))
        == checkpoint
    )


def test_none_is_made_while_nothing_is_recorded() -> None:
    first = made()
    assert checkpoints.make(timezone.now()) is None
    record()
    second = made()
    assert (second.sequence, second.at > first.at) == (first.sequence + 1, True)
    assert checkpoints.latest() == second


def test_one_is_made_as_often_as_the_settings_say() -> None:
    now = timezone.now()
    assert checkpoints.make_when_due(now) is not None
    record()
    audit_settings.change(archive_after_days=None, checkpoint_minutes=5, actor=ACTOR)
    assert checkpoints.make_when_due(now + timedelta(minutes=4)) is None
    assert checkpoints.make_when_due(now + timedelta(minutes=6)) is not None
    assert checkpoints.make_when_due(now + timedelta(minutes=20)) is None


def test_checkpoints_are_in_their_order_although_the_clock_is_put_back() -> None:
    first = made()
    record()
    second = checkpoints.make(first.at - timedelta(hours=1))
    assert second is not None
    assert second.at > first.at


def test_a_chain_that_was_cut_off_is_found_by_a_checkpoint_kept_outside(tampering: Tampering) -> None:
    record(5)
    outside = kept_outside(made())
    with tampering():
        AuditCheckpoint.objects.all().delete()
        cut_off_after(4)
    # Who did it may go on as if nothing had been.
    assert fault_of(outside) is CheckpointReason.TRUNCATED
    fault = checkpoints.fault_of(outside)
    assert fault is not None
    assert "ends at event 4" in fault.message


def test_a_chain_that_was_cut_off_and_continued_is_found_by_a_checkpoint_kept_outside(
    tampering: Tampering,
) -> None:
    record(5)
    outside = kept_outside(made())
    with tampering():
        AuditCheckpoint.objects.all().delete()
        AuditSigningKey.objects.all().delete()
        cut_off_after(3)
    record(10)
    made()
    assert fault_of(outside) is CheckpointReason.REWRITTEN


def test_a_chain_that_was_written_anew_is_found_by_a_checkpoint_kept_outside(tampering: Tampering) -> None:
    record(5)
    outside = kept_outside(made())
    record(2)
    with tampering():
        write_anew_from(2, actor_id="somebody-else")
    assert [event.hash for event in AuditEvent.objects.all()] == [
        event_hash(event) for event in AuditEvent.objects.all()
    ]
    assert fault_of(outside) is CheckpointReason.REWRITTEN
    # What was written anew behind it, it does not tell.
    with tampering():
        write_anew_from(2, actor_id=ACTOR.id)
        assert fault_of(outside) is None
        write_anew_from(7, actor_id="somebody-else")
    assert fault_of(outside) is None


def test_events_that_are_missing_below_the_head_are_told(tampering: Tampering) -> None:
    record(2)
    checkpoint = made()
    record(2)
    with tampering():
        AuditEvent.objects.filter(sequence=checkpoint.sequence).delete()
    fault = checkpoints.fault_of(checkpoint)
    assert fault is not None
    assert fault.reason is CheckpointReason.REWRITTEN
    assert "no event" in fault.message


@pytest.mark.parametrize("reason", [CheckpointReason.TRUNCATED, CheckpointReason.REWRITTEN])
def test_a_head_that_contradicts_the_last_checkpoint_is_not_signed(
    tampering: Tampering, reason: CheckpointReason
) -> None:
    record(5)
    made()
    record(2)
    with tampering():
        if reason is CheckpointReason.TRUNCATED:
            cut_off_after(4)
        else:
            write_anew_from(3, actor_id="somebody-else")
    with pytest.raises(CheckpointRefused, match="No checkpoint is made"):
        checkpoints.make(timezone.now())
    assert AuditCheckpoint.objects.count() == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sequence": 2}, CheckpointReason.BAD_SIGNATURE),
        ({"hash": "ab" * 32}, CheckpointReason.BAD_SIGNATURE),
        ({"at": datetime(2026, 1, 1, tzinfo=UTC)}, CheckpointReason.BAD_SIGNATURE),
        ({"signature": "ab" * 64}, CheckpointReason.BAD_SIGNATURE),
        ({"signature": ""}, CheckpointReason.BAD_SIGNATURE),
        ({"key_id": "0123456789abcdef"}, CheckpointReason.UNKNOWN_KEY),
    ],
)
def test_a_checkpoint_that_was_changed_proves_nothing(
    change: dict[str, Any], reason: CheckpointReason
) -> None:
    record(3)
    assert fault_of(replace(kept_outside(made()), **change)) is reason


def test_a_checkpoint_by_a_key_that_was_not_signing_then_proves_nothing(directory: Path) -> None:
    signing_keys.introduce_first()
    old = signing_keys.signer()
    before = kept_outside(made())
    signing_keys.rotate(actor=ACTOR)
    after = kept_outside(made())
    # Somebody has kept the old private key.
    late = replace(after, key_id=old.key_id)
    late = replace(late, signature=old.sign(checkpoint_lines.statement(late)).hex())
    new = signing_keys.signer()
    early = replace(before, key_id=new.key_id)
    early = replace(early, signature=new.sign(checkpoint_lines.statement(early)).hex())
    assert [fault_of(one) for one in (before, after, late, early)] == [
        None,
        None,
        CheckpointReason.RETIRED_KEY,
        CheckpointReason.RETIRED_KEY,
    ]


def test_a_checkpoint_by_somebody_elses_key_proves_nothing() -> None:
    record(3)
    checkpoint = kept_outside(made())
    stranger = Ed25519PrivateKey.generate()
    key_id = signing_keys.id_of(stranger.public_key().public_bytes_raw().hex())
    for forged in (replace(checkpoint, key_id=key_id), checkpoint):
        forged = replace(forged, signature=stranger.sign(checkpoint_lines.statement(forged)).hex())
        assert fault_of(forged) in {CheckpointReason.UNKNOWN_KEY, CheckpointReason.BAD_SIGNATURE}


def test_the_chain_may_be_compared_as_somebody_has_walked_it() -> None:
    record(3)
    checkpoint = made()
    assert checkpoints.fault_of(checkpoint, hash_at={4: checkpoint.hash}.get) is None
    fault = checkpoints.fault_of(checkpoint, hash_at={4: "ab" * 32}.get)
    assert fault is not None
    assert fault.reason is CheckpointReason.REWRITTEN


def test_before_the_first_event_the_chain_has_the_hash_that_it_begins_with() -> None:
    assert checkpoints.hash_at(0) == GENESIS_HASH
    assert checkpoints.hash_at(1) is None


def archive_file(directory: Path, events: list[AuditEvent]) -> AuditArchive:
    """Its rows as a file has them; the rows themselves stay, for the caller to delete."""
    lines = [
        json.dumps({"record": "event", "content": {"sequence": event.sequence}, "hash": event.hash})
        for event in events
    ]
    folder = directory / "audit" / "archives"
    folder.mkdir(parents=True)
    written = archive_files.write(
        events[0].sequence, events[-1].sequence, [f"{line}\n".encode() for line in lines]
    )
    return AuditArchive.objects.create(
        first_sequence=events[0].sequence,
        last_sequence=events[-1].sequence,
        previous_hash=events[0].previous_hash,
        last_hash=events[-1].hash,
        assignments=0,
        file_name=written.name,
        file_sha256=written.sha256,
        file_bytes=written.size,
        created_at=timezone.now(),
    )


def test_what_was_archived_is_compared_with_its_file(directory: Path, tampering: Tampering) -> None:
    record(3)
    inside = kept_outside(made())
    record(3)
    at_its_end = kept_outside(made())
    record()
    archive = archive_file(directory, list(AuditEvent.objects.filter(sequence__lte=7).order_by("sequence")))
    with tampering():
        AuditEvent.objects.filter(sequence__lte=7).delete()
    assert fault_of(inside) is None
    assert fault_of(at_its_end) is None
    assert fault_of(replace(inside, hash="ab" * 32)) is CheckpointReason.BAD_SIGNATURE
    with tampering():
        AuditArchive.objects.update(last_hash="ab" * 32)
    assert fault_of(at_its_end) is CheckpointReason.REWRITTEN
    path = archive_files.path_of(archive)
    path.write_bytes(gzip.compress(b""))
    assert fault_of(inside) is CheckpointReason.ARCHIVE_MISSING
    path.unlink()
    assert fault_of(inside) is CheckpointReason.ARCHIVE_MISSING


def test_a_file_of_checkpoints_is_read_and_what_is_none_is_named_by_its_line(tmp_path: Path) -> None:
    first = made()
    record()
    second = made()
    path = tmp_path / "kept.jsonl"
    path.write_text(f"{checkpoint_lines.line(first)}\n\n{checkpoint_lines.line(second)}\n")
    assert checkpoint_lines.read_file(path) == [kept_outside(first), kept_outside(second)]
    with path.open("a") as file:
        file.write('{"checkpoint": 1}\n')
    with pytest.raises(CheckpointFileError, match="line 4"):
        checkpoint_lines.read_file(path)
    with pytest.raises(CheckpointFileError, match="No such file"):
        checkpoint_lines.read_file(tmp_path / "nowhere")


GOOD: dict[str, Any] = {
    "checkpoint": 1,
    "sequence": 7,
    "hash": "ab" * 32,
    "at": "2026-03-01T12:00:00.000000+00:00",
    "key": "0123456789abcdef",
    "signature": "cd" * 64,
}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7",
        "[]",
        "{}",
        "\x00",
        json.dumps(GOOD)[:-9],
        *(
            json.dumps({**GOOD, name: value})
            for name, value in [
                ("checkpoint", 2),
                ("sequence", "7"),
                ("sequence", True),
                ("sequence", -1),
                ("sequence", 2**63),
                ("sequence", 7.0),
                ("hash", None),
                ("hash", "xyz"),
                ("at", "noon"),
                ("at", "2026-03-01T12:00:00+00:00"),
                ("at", "0001-01-01T00:00:00.000000+23:59"),
                ("at", 7),
                ("at", "2026-03-01T12:00:00"),
                ("key", ""),
                ("signature", ["cd"]),
                ("more", 1),
            ]
        ),
    ],
)
def test_what_is_no_checkpoint_is_refused(text: str) -> None:
    assert checkpoint_lines.parse(json.dumps(GOOD)).sequence == 7
    with pytest.raises(CheckpointFileError, match="no checkpoint"):
        checkpoint_lines.parse(text)


@pytest.mark.usefixtures("valkey")
def test_the_command_makes_one_now_prints_its_line_and_keeps_it_outside(directory: Path) -> None:
    record()

    def run() -> str:
        output = StringIO()
        call_command("audit", "checkpoint", stdout=output, stderr=StringIO())
        return output.getvalue()

    line = run()
    assert line.count("\n") == 1
    printed = checkpoint_lines.parse(line)
    assert printed == kept_outside(AuditCheckpoint.objects.get())
    assert (directory / "audit" / "checkpoints.jsonl").read_text() == line
    assert run() == line
    (directory / "audit" / "checkpoints.jsonl").unlink()
    (directory / "audit" / "checkpoints.jsonl").mkdir()
    with pytest.raises(CommandError, match="It was made, but"):
        run()


@pytest.mark.usefixtures("valkey")
def test_the_command_prints_the_line_also_where_the_store_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object, **__: object) -> None:
        raise redis.ConnectionError("gone")

    monkeypatch.setattr(cache, "get", gone)
    output = StringIO()
    with pytest.raises(CommandError, match="brought nowhere"):
        call_command("audit", "checkpoint", stdout=output, stderr=StringIO())
    assert checkpoints.fault_of(checkpoint_lines.parse(output.getvalue())) is None


@pytest.mark.django_db(transaction=True)
def test_many_processes_that_sign_one_head_sign_it_once(directory: Path) -> None:
    record(3)
    program = (
        "import django; django.setup()\n"
        "from django.utils import timezone\n"
        "from accounts.audit import checkpoints\n"
        "for _ in range(5): checkpoints.make(timezone.now())"
    )
    environment = {
        **os.environ,
        "DATABASE_URL": database_url(),
        "SIGNALBOX_STATE_DIR": str(directory),
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'platform'}",
    }
    processes = [subprocess.Popen([sys.executable, "-c", program], env=environment) for _ in range(2)]
    assert [process.wait(timeout=60) for process in processes] == [0, 0]
    checkpoint = AuditCheckpoint.objects.get()
    assert checkpoint.sequence == AuditHead.objects.get().sequence == 4
    assert checkpoints.fault_of(checkpoint) is None


def test_a_chain_written_anew_with_its_own_checkpoints_taken_along_is_not_signed_again(
    tampering: Tampering, directory: Path
) -> None:
    record(3)
    kept = made()
    path = directory / "audit" / "checkpoints.jsonl"
    anchors.append(path)
    with path.open("ab") as file:
        file.write(b"\n")  # as where a line that was begun was ended
    with tampering():
        AuditCheckpoint.objects.all().delete()
        set_row(AuditEvent.objects.get(sequence=2), request_id="another")
        chain_anew(2)
    with pytest.raises(CheckpointRefused, match=r"written anew.*last one in .*checkpoints.jsonl"):
        checkpoints.make(timezone.now())
    path.unlink()
    signed = checkpoints.make(timezone.now())
    assert signed is not None
    assert (signed.sequence, signed.hash == kept.hash) == (kept.sequence, False)
