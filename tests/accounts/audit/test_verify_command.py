"""``manage.py audit verify`` and ``manage.py audit seal``."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from accounts.audit import anchors, checkpoint_lines, checkpoints, verification
from accounts.models import AuditCheckpoint, AuditEvent, AuditHead, AuditVerification, SealedAssignment
from tests.accounts.audit.chains import Built, Tampering, build, chain_anew, forge, record_events, set_row
from tests.accounts.audit.own_state import settle

pytestmark = pytest.mark.django_db


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tampering: Tampering) -> Iterator[Built]:
    own = settle(monkeypatch, tmp_path)
    monkeypatch.setattr(verification, "configuration", lambda: own)
    chain = build(tampering)
    with tampering():
        yield chain


def verify(*arguments: Any) -> str:
    output = io.StringIO()
    call_command("audit", "verify", *arguments, stdout=output)
    return output.getvalue()


def test_a_chain_that_holds_is_told_with_what_was_looked_at(built: Built) -> None:
    said = verify()
    assert said == (
        "Not sealed yet, and so not proved: 1 assignment.\n"
        f"The chain holds: {built.head} events, 14 sealed assignments, from the first event on. "
        f"Head: {AuditHead.objects.get().hash}.\n"
    )
    record_events(1)
    assert f"2 events, 0 sealed assignments, from event {built.head} on" in verify()
    assert f"{built.head + 1} events, 14 sealed assignments, from the first event on" in verify(
        "--from-scratch"
    )
    kept = AuditVerification.objects.order_by("started_at")
    assert [(row.first_sequence, row.last_sequence, row.fault) for row in kept] == [
        (1, built.head, None),
        (built.head, built.head + 1, None),
        (1, built.head + 1, None),
    ]


def test_a_broken_chain_is_an_error_that_says_what_where_what_holds_and_what_to_do(built: Built) -> None:
    batch, ids = next(iter(built.batches.items()))
    set_row(SealedAssignment.objects.get(generation_id=ids[0]), hash="0" * 64)
    with pytest.raises(CommandError) as error:
        verify("--from-scratch")
    said = str(error.value)
    assert said.startswith(f"The chain is broken at event {batch} (assignment {ids[0]}: altered). ")
    assert f"It is leaf 0 of batch {batch}, and is not what was sealed" in said
    assert f"Everything up to event {batch - 1} holds ({batch - 1} events, 4 sealed assignments" in said
    assert "Change nothing" in said
    assert "\n" not in said
    kept = AuditVerification.objects.get()
    assert kept.fault["reason"] == "altered"


def test_checkpoints_of_a_file_are_compared(built: Built, tmp_path: Path) -> None:
    file = tmp_path / "kept.jsonl"
    file.write_text("".join(checkpoint_lines.line(one) + "\n" for one in AuditCheckpoint.objects.all()))
    assert "The chain holds" in verify("--checkpoints", file)
    forge(built.first + 1, after={"n": 7})
    chain_anew(built.first + 1)
    AuditCheckpoint.objects.filter(sequence=built.checkpoint).delete()
    AuditVerification.objects.all().delete()
    assert "The chain holds" in verify()
    with pytest.raises(CommandError, match="checkpoint: rewritten"):
        verify("--checkpoints", file)


def test_checkpoints_in_the_anchor_file_are_compared_without_being_asked_for(built: Built) -> None:
    # A line that somebody has spoiled keeps nothing from being compared with the others.
    file = verification.configuration().audit_anchor_file
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        "no checkpoint\n"
        + "".join(checkpoint_lines.line(one) + "\n" for one in AuditCheckpoint.objects.all())
    )
    AuditCheckpoint.objects.filter(sequence=built.checkpoint).delete()
    forge(built.first + 1, after={"n": 7})
    chain_anew(built.first + 1)
    with pytest.raises(CommandError, match="checkpoint: rewritten"):
        verify()


@pytest.mark.parametrize("content", [None, "no checkpoint\n"])
def test_a_file_that_holds_no_checkpoints_is_refused(
    built: Built, tmp_path: Path, content: str | None
) -> None:
    file = tmp_path / "kept.jsonl"
    if content is not None:
        file.write_text(content)
    with pytest.raises(CommandError, match=r"kept\.jsonl"):
        verify("--checkpoints", file)
    assert not AuditVerification.objects.exists()


def test_archives_are_looked_for_where_they_are_said_to_be(built: Built, tmp_path: Path) -> None:
    files = tmp_path / "audit" / "archives"
    elsewhere = tmp_path / "elsewhere"
    shutil.move(files, elsewhere)
    assert "Note: Not read: 1 archive" in verify("--from-scratch")
    assert "Not read" not in verify("--from-scratch", "--archives", elsewhere)
    next(elsewhere.glob("*.gz")).unlink()
    with pytest.raises(CommandError, match=r"file_missing.*bring the file back"):
        verify("--from-scratch", "--archives", elsewhere)
    with pytest.raises(CommandError, match="no directory"):
        verify("--archives", files)


def test_a_bar_is_shown_on_a_terminal_only(
    built: Built, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    verify("--from-scratch")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("accounts.audit.chain_walk._TOLD_EVERY", 1)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    verify("--from-scratch")
    assert f"{built.head + 14}/{built.head + 14}" in capsys.readouterr().err


def test_what_waits_is_sealed_on_command(built: Built) -> None:
    output = io.StringIO()
    call_command("audit", "seal", stdout=output)
    call_command("audit", "seal", stdout=output)
    assert output.getvalue() == "Sealed 1 assignment.\nSealed 0 assignments.\n"
    assert AuditEvent.objects.get(sequence=built.head + 1).action == "lane_assignments.seal"


def test_lines_that_the_file_of_checkpoints_has_lost_are_a_note(built: Built, tmp_path: Path) -> None:
    for _ in range(3):
        record_events(1)
        assert checkpoints.make(timezone.now())
    path = tmp_path / "audit" / "checkpoints.jsonl"
    path.parent.mkdir(exist_ok=True)
    lines = [checkpoint_lines.line(one) + "\n" for one in AuditCheckpoint.objects.order_by("at")]
    path.write_text("".join(lines))
    assert "has lost" not in verify()
    path.write_text("".join([*lines[:-2], lines[-1]]))
    said = verify()
    assert f"Note: {path} has lost 1 checkpoint (the first of" in said
    assert "The chain holds" in said
    # A last line that is being written is none yet, and no wrong.
    path.write_text("".join([*lines[:-1], lines[-1][:100]]))
    assert "checkpoint" not in verify()
    path.write_text("".join([*lines[:-1], lines[-1][:100] + "\n"]))
    assert f"{path}, line {len(lines)}: This is no checkpoint" in verify()
    path.write_text("".join(["no checkpoint\n", *lines[1:]]))
    said = verify()
    assert f"Note: {path} has lost 1 checkpoint" in said
    assert (
        f"Note: Not compared with all checkpoints that are kept outside: {path}, line 1: This is no" in said
    )
    # Whoever names a file says what there is to compare with, and need not have had them all.
    path.write_text(lines[-1])
    assert "has lost" not in verify("--checkpoints", path)


def test_a_file_of_checkpoints_that_is_gone_or_emptied_is_a_note(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One that was not begun yet: its first checkpoint has just been made.
    assert "Note" not in verify()
    monkeypatch.setattr(anchors, "_WRITTEN_WITHIN", timedelta(0))
    path = tmp_path / "audit" / "checkpoints.jsonl"
    made = AuditCheckpoint.objects.order_by("at")
    said = f"Note: {path} is gone or empty, and is to have {len(made)} checkpoints (the first of {made[0].at:%Y-%m-%d}"
    assert said in verify()
    path.write_text("")
    assert said in verify()
    # What is wrong with a file that has something else in it is said once.
    path.write_text("no checkpoint\n")
    assert "is gone or empty" not in verify()
    path.write_text("".join(checkpoint_lines.line(one) + "\n" for one in made))
    assert "Note" not in verify()
    made.delete()
    path.unlink()
    assert "Note" not in verify()
