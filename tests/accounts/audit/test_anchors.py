"""Checkpoints in a file outside: every one, whatever failed in between. (What is sent: ``test_audit_anchor``.)"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import time_machine
from django.db import transaction
from django.utils import timezone
from structlog.testing import capture_logs

from accounts import audit
from accounts.audit import anchors, checkpoint_lines, checkpoints
from accounts.audit.anchors import AnchorFailed, AnchorKind
from accounts.models import AuditCheckpoint
from tests.accounts.audit.own_state import settle
from tests.factories import ACTOR

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("valkey")]

Settle = Callable[..., None]


@pytest.fixture(autouse=True)
def settle_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settle:
    def change(**changes: Any) -> None:
        settle(monkeypatch, tmp_path, **changes)

    change()
    return change


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit" / "checkpoints.jsonl"


def make() -> AuditCheckpoint:
    with transaction.atomic():
        audit.record(ACTOR, "thing.change", audit.ObjectRef("thing", "1"), None, None)
    checkpoint = checkpoints.make(timezone.now())
    assert checkpoint is not None
    return checkpoint


def lines_of(*made: AuditCheckpoint) -> str:
    return "".join(f"{checkpoint_lines.line(checkpoint)}\n" for checkpoint in made)


def deliver(**options: Any) -> list[str]:
    return anchors.deliver(timezone.now(), **options)


def test_every_checkpoint_becomes_a_line_of_a_file_that_only_its_owner_may_read(path: Path) -> None:
    first, second = make(), make()
    assert deliver() == []
    assert path.read_text() == lines_of(first, second)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    third = make()
    for _ in range(2):
        assert deliver() == []
    assert path.read_text() == lines_of(first, second, third)
    assert [one.sequence for one in checkpoint_lines.read_file(path)] == [
        first.sequence,
        second.sequence,
        third.sequence,
    ]


def test_without_a_checkpoint_the_file_is_empty(path: Path) -> None:
    assert deliver() == []
    assert path.read_text() == ""


def test_after_a_disk_that_was_away_none_is_missing(tmp_path: Path, settle_here: Settle) -> None:
    disk = tmp_path.parent / f"{tmp_path.name}-disk"
    settle_here(audit_anchor_file=disk / "checkpoints.jsonl", state_dir=tmp_path)
    made = [make()]
    with capture_logs() as logs:
        for _ in range(3):
            [problem] = deliver()
            made.append(make())
    assert "No such file or directory" in problem
    assert [(entry["event"], entry["kind"], entry["log_level"]) for entry in logs] == [
        ("audit_anchor_failed", AnchorKind.FILE, "error")
    ]
    assert anchors.state_of(AnchorKind.FILE).failures == 3
    assert anchors.state_of(AnchorKind.FILE).succeeded_at is None
    disk.mkdir()
    with capture_logs() as logs:
        assert deliver() == []
    assert [entry["event"] for entry in logs] == ["audit_anchor_works_again"]
    assert (disk / "checkpoints.jsonl").read_text() == lines_of(*made)
    assert anchors.state_of(AnchorKind.FILE).failures == 0


def test_a_file_that_was_taken_away_is_written_anew_and_it_is_said(path: Path) -> None:
    made = [make(), make()]
    deliver()
    path.unlink()
    with capture_logs() as logs:
        deliver()
        made.append(make())
        deliver()
    assert path.read_text() == lines_of(*made)
    assert [(entry["event"], entry["had"], entry["has"]) for entry in logs] == [
        ("audit_anchor_lost_lines", made[1].at.isoformat(), None)
    ]


def test_lines_that_were_cut_off_the_file_are_added_again_and_it_is_said(path: Path) -> None:
    made = [make(), make()]
    deliver()
    path.write_text(lines_of(made[0]))
    with capture_logs() as logs:
        deliver()
    assert path.read_text() == lines_of(*made)
    assert [entry["event"] for entry in logs] == ["audit_anchor_lost_lines"]


@pytest.mark.parametrize("cut", [1, 10, 100, -1])
def test_a_line_that_was_begun_when_the_machine_stopped_is_completed(path: Path, cut: int) -> None:
    made = [make()]
    deliver()
    made.append(make())
    whole = lines_of(*made)
    with path.open("a") as file:
        file.write(lines_of(made[1])[:cut])
    deliver()
    assert path.read_text() == whole


def test_a_line_that_was_begun_and_is_none_of_ours_is_ended(path: Path) -> None:
    first = make()
    deliver()
    with path.open("a") as file:
        file.write("\x00\x00\x00")
    second = make()
    deliver()
    assert path.read_text() == f"{lines_of(first)}\x00\x00\x00\n{lines_of(second)}"


def test_a_file_that_ends_with_something_else_is_left_alone(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("notes\n")
    make()
    [problem] = deliver()
    assert "none of ours" in problem
    assert path.read_text() == "notes\n"


def test_a_file_goes_on_after_an_older_state_was_restored(path: Path, tampering: Callable[[], Any]) -> None:
    first, second = make(), make()
    deliver()
    with tampering():
        AuditCheckpoint.objects.filter(id=second.id).delete()
    third = make()
    deliver()
    assert path.read_text() == lines_of(first, second, third)


def test_one_process_writes_at_a_time(path: Path) -> None:
    make()
    path.parent.mkdir()
    with path.open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(AnchorFailed, match="another process"):
            anchors.append(path)
    assert anchors.append(path) is not None


def test_a_write_that_hangs_holds_up_one_thread_and_no_other(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make()
    hangs, goes_on = threading.Event(), threading.Event()
    write = os.write

    def hang(descriptor: int, data: Any) -> int:
        hangs.set()
        goes_on.wait(30)
        return write(descriptor, data)

    # The rows are read here: the thread would have a connection of its own, which sees nothing of this test's.
    monkeypatch.setattr(os, "write", hang)
    monkeypatch.setattr(anchors, "waiting", lambda state: [made])
    writing = threading.Thread(target=anchors._to_file, args=[anchors.AnchorState()])
    writing.start()
    try:
        assert hangs.wait(30)
        [problem] = deliver()
        assert "has not come back" in problem
    finally:
        goes_on.set()
        writing.join()
    monkeypatch.undo()


def test_how_it_stands_is_kept_for_every_process(path: Path) -> None:
    checkpoint = make()
    state = anchors.state_of(AnchorKind.FILE)
    assert (state.reached, anchors.waiting(state).count()) == (None, 1)
    now = timezone.now().replace(microsecond=0) + timedelta(seconds=5)
    with time_machine.travel(now, tick=False):
        deliver()
    state = anchors.state_of(AnchorKind.FILE)
    assert state.succeeded_at == now.timestamp()
    assert datetime.fromisoformat(state.reached or "") == checkpoint.at
    assert anchors.waiting(state).count() == 0
    make()
    assert anchors.waiting(state).count() == 1


def test_lines_that_are_gone_from_the_middle_are_told_and_not_written_again(path: Path) -> None:
    made = [make() for _ in range(5)]
    deliver()
    path.write_text(lines_of(made[0], made[3], made[4]))
    with capture_logs() as logs:
        [said] = anchors.tell_lost(checkpoint_lines.read_file(path))
    assert f"{path} has lost 2 checkpoints" in said
    assert f"{made[1].at:%Y-%m-%d %H:%M:%S}Z" in said
    [line] = logs
    assert (line["event"], line["lost"], line["first"]) == (
        "audit_anchor_lost_lines",
        2,
        made[1].at.isoformat(),
    )
    deliver()
    assert path.read_text() == lines_of(made[0], made[3], made[4])


def test_a_file_that_has_all_up_to_its_last_line_has_lost_nothing(path: Path) -> None:
    made = [make() for _ in range(2)]
    deliver()
    late = make()
    with capture_logs() as logs:
        assert anchors.tell_lost(checkpoint_lines.read_file(path)) == []
        assert anchors.tell_lost([]) == []
    assert logs == []
    assert [line.at for line in checkpoint_lines.read_file(path)] == [one.at for one in made]
    assert late.at > made[-1].at


def test_checkpoints_that_the_file_has_and_the_database_has_not_are_told(path: Path, tampering: Any) -> None:
    made = [make() for _ in range(3)]
    deliver()
    with tampering():
        AuditCheckpoint.objects.filter(id=made[1].id).delete()
    [said] = anchors.tell_lost(checkpoint_lines.read_file(path))
    assert f"The database has lost 1 checkpoint (the first of {made[1].at:%Y-%m-%d %H:%M:%S}Z)" in said
