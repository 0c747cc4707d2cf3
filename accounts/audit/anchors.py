"""Checkpoints outside of the database: every one in a file, and sent to a URL, if one is set.

A checkpoint proves something to whoever got it before the chain was changed. The file is brought up to the last
checkpoint from what it holds already, so that none is missing however often writing has failed; the URL is sent the
checkpoints since the last one that it took, in their order. Either may be tried at any time and by many at once.

How each stands is kept where every process reads it, for the metrics. Where that was lost (an empty store), the file
goes on as it is, and the URL gets the newest checkpoint and those after it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import random
import threading
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec
import structlog
from django.core.cache import cache
from django.db.models import QuerySet
from django.utils import timezone

from accounts.audit import checkpoint_lines, signing_keys
from accounts.audit.checkpoint_lines import SignedCheckpoint
from accounts.formatting import counted
from accounts.models import AuditCheckpoint
from accounts.sole_passes import sole_pass
from accounts.webhooks import sending, signing
from accounts.webhooks.retries import wait_after
from signalbox.configuration import configuration
from signalbox.state_directory import StateDirectoryError, ensure_directory

#: What a webhook calls a checkpoint.
EVENT_TYPE: Final = "audit.checkpoint"

#: Checkpoints that one pass sends.
_MOST_SENT: Final = 5
_LOST_AFTER_S: Final = 60
#: A receiver is never left alone for longer than after this many attempts: about 36 minutes.
_LONGEST_WAIT_AFTER: Final = 4
#: A checkpoint is in the file within a minute or two, where nothing is wrong.
_WRITTEN_WITHIN: Final = timedelta(minutes=5)
#: One write to the file in this process: one that hangs, as on a disk that is away, does not take a second thread.
_writing = threading.Lock()
_log = structlog.get_logger(__name__)


class AnchorKind(StrEnum):
    """Where checkpoints are kept."""

    FILE = "file"
    WEBHOOK = "webhook"


class AnchorState(msgspec.Struct, frozen=True):
    """How it stands with one of them. Times are Unix seconds, but ``reached``: the last checkpoint's there."""

    reached: str | None = None
    succeeded_at: float | None = None
    failures: int = 0
    next_at: float = 0.0
    problem: str = ""


class AnchorFailed(RuntimeError):
    """Checkpoints could not be brought there. The message says why."""


def kinds() -> list[AnchorKind]:
    """Where checkpoints go here; first what cannot hang, as a file on a disk that is away can."""
    return [*([AnchorKind.WEBHOOK] if configuration().audit_anchor_url else []), AnchorKind.FILE]


def state_of(kind: AnchorKind) -> AnchorState:
    """How it stands there, as the last attempt has left it. Raises ``redis.RedisError``."""
    kept = cache.get(_slot(kind))
    return AnchorState() if kept is None else msgspec.convert(kept, AnchorState)


def waiting(state: AnchorState) -> QuerySet[AuditCheckpoint]:
    """The checkpoints that are not there yet, the oldest first."""
    rows = AuditCheckpoint.objects.order_by("at")
    return rows.filter(at__gt=datetime.fromisoformat(state.reached)) if state.reached else rows


def deliver(now: datetime, *, at_once: bool = False) -> list[str]:
    """Bring checkpoints wherever they go; what did not work, in words. It is tried again when this is next called.

    A receiver that has failed is left alone for a while, unless ``at_once``. Raises ``redis.RedisError``.
    """
    problems = [_deliver(kind, now, at_once) for kind in kinds()]
    return [problem for problem in problems if problem]


def append(path: Path, had: datetime | None = None) -> datetime | None:
    """Bring the file up to the last checkpoint; that one's time, None: there is no checkpoint.

    Lines are only ever added, so that a file system may forbid anything else. A line that was begun when a machine
    stopped is completed. ``had``: the last checkpoint that the file is known to have had; one that has lost it is made
    whole from the database, and that is logged. Raises ``AnchorFailed``.
    """
    try:
        _ensure_own_directory(path.parent)
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return _append(descriptor, path, had)
        finally:
            os.close(descriptor)
    except BlockingIOError as error:
        raise AnchorFailed(f"{path} is being written by another process.") from error
    except OSError as error:
        raise AnchorFailed(f"Checkpoints cannot be written to {path}: {error.strerror}.") from error
    except StateDirectoryError as error:
        raise AnchorFailed(str(error)) from error


def tell_lost(kept: Sequence[SignedCheckpoint]) -> list[str]:
    """Log and say which checkpoints the file has lost, of which it has ``kept``, and which of these the database has.

    A file that only ever grows has had all up to its last one: somebody took lines out of it. They are not written
    again, for what the database says of them is just what they were kept to be compared with. One query.
    """
    if not kept:
        return _tell_all_lost()
    path = configuration().audit_anchor_file
    made = AuditCheckpoint.objects.filter(at__lte=max(one.at for one in kept)).order_by("at")
    signed = {signature: at for at, signature in made.values_list("at", "signature")}
    there = {one.signature: one.at for one in kept}
    said = []
    if lost := [at for signature, at in signed.items() if signature not in there]:
        _log.warning("audit_anchor_lost_lines", file=str(path), lost=len(lost), first=lost[0].isoformat())
        said.append(
            f"{path} has lost {_counted_from(lost)} that it had: lines were taken out of it. Compare it with a copy."
        )
    if gone := [at for signature, at in there.items() if signature not in signed]:
        _log.warning("audit_checkpoints_lost", file=str(path), lost=len(gone), first=gone[0].isoformat())
        said.append(
            f"The database has lost {_counted_from(gone)} that {path} has: rows were deleted, or an older state was "
            "restored."
        )
    return said


def _tell_all_lost() -> list[str]:
    """As ``tell_lost``, of a file that has none, or that there is not. One that has not been begun has lost nothing."""
    path = configuration().audit_anchor_file
    due = AuditCheckpoint.objects.filter(at__lt=timezone.now() - _WRITTEN_WITHIN).order_by("at")
    lost = list(due.values_list("at", flat=True))
    if not lost:
        return []
    _log.warning("audit_anchor_lost_lines", file=str(path), lost=len(lost), first=lost[0].isoformat())
    return [
        f"{path} is gone or empty, and is to have {_counted_from(lost)}: somebody took it away, or nothing could write "
        "it. Compare with a copy."
    ]


def _counted_from(times: Sequence[datetime]) -> str:
    return f"{counted(len(times), 'checkpoint')} (the first of {times[0]:%Y-%m-%d %H:%M:%S}Z)"


def body_of(checkpoint: AuditCheckpoint) -> bytes:
    """The message about a checkpoint; ``data`` is what the file has as a line."""
    message = {
        "type": EVENT_TYPE,
        "timestamp": checkpoint.at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "data": json.loads(checkpoint_lines.line(checkpoint)),
    }
    return json.dumps(message, separators=(",", ":")).encode()


def _deliver(kind: AnchorKind, now: datetime, at_once: bool) -> str | None:
    before = state_of(kind)
    if now.timestamp() < before.next_at and not at_once:
        return None
    try:
        after = _to_file(before) if kind is AnchorKind.FILE else _to_webhook(before)
    except AnchorFailed as failed:
        _failed(kind, str(failed), now)
        return str(failed)
    if before.failures and not after.failures:
        _log.info("audit_anchor_works_again", kind=kind.value, failures=before.failures)
    if after != before:
        _keep(kind, after)
    return None


def _to_file(before: AnchorState) -> AnchorState:
    if not _writing.acquire(blocking=False):
        raise AnchorFailed(f"An earlier write to {configuration().audit_anchor_file} has not come back.")
    try:
        had = datetime.fromisoformat(before.reached) if before.reached else None
        reached = append(configuration().audit_anchor_file, had)
    finally:
        _writing.release()
    return AnchorState(reached.isoformat() if reached else None, timezone.now().timestamp())


def _to_webhook(before: AnchorState) -> AnchorState:
    """Send what waits. Raises ``AnchorFailed`` at the first that is not taken; what was taken before is kept."""
    with sole_pass("audit-webhook", at_most_s=_LOST_AFTER_S) as alone:
        if not alone:
            return before
        state = state_of(AnchorKind.WEBHOOK)
        newest = waiting(state) if state.reached else AuditCheckpoint.objects.order_by("-at")[:1]
        for checkpoint in list(newest[:_MOST_SENT]):
            _send(checkpoint)
            state = AnchorState(checkpoint.at.isoformat(), timezone.now().timestamp())
            _keep(AnchorKind.WEBHOOK, state)
    return state


def _send(checkpoint: AuditCheckpoint) -> None:
    body = body_of(checkpoint)
    try:
        headers = signing.key_pair_headers(
            signing_keys.signer().sign,
            f"ckpt_{checkpoint.id.hex}",
            int(timezone.now().timestamp()),
            body,
        )
    except signing_keys.SigningKeyMissing as missing:
        raise AnchorFailed(str(missing)) from missing
    outcome = sending.send(configuration().audit_anchor_url, headers, body)
    if outcome.failure is not None:
        raise AnchorFailed(f"The receiver of SIGNALBOX_AUDIT_ANCHOR_URL did not take it: {outcome.message}")


def _failed(kind: AnchorKind, problem: str, now: datetime) -> None:
    # As it stands now: some may have been taken before one was not.
    state = state_of(kind)
    if problem != state.problem:
        _log.error("audit_anchor_failed", kind=kind.value, problem=problem)
    failures, next_at = state.failures + 1, 0.0
    if kind is AnchorKind.WEBHOOK:
        wait = wait_after(min(failures, _LONGEST_WAIT_AFTER), random.random())  # noqa: S311 — no secret
        next_at = (now + wait).timestamp()
    _keep(kind, AnchorState(state.reached, state.succeeded_at, failures, next_at, problem))


def _append(descriptor: int, path: Path, had: datetime | None) -> datetime | None:
    size = os.fstat(descriptor).st_size
    end = os.pread(descriptor, checkpoint_lines.END_BYTES, max(0, size - checkpoint_lines.END_BYTES))
    try:
        last, begun = checkpoint_lines.last_in(end)
    except checkpoint_lines.CheckpointFileError as error:
        raise AnchorFailed(
            f"{path} ends with a line that is none of ours. Move the file away. {error}"
        ) from error
    reached = last.at if last else None
    if had and (reached is None or reached < had):
        _log.warning(
            "audit_anchor_lost_lines", file=str(path), had=had.isoformat(), has=last and last.at.isoformat()
        )
    rows = list(waiting(AnchorState(reached.isoformat() if reached else None)))
    text = b"".join(checkpoint_lines.line(row).encode() + b"\n" for row in rows)
    if text:
        # A line that was begun is completed, or, where it is none of these, ended.
        _write(descriptor, text.removeprefix(begun) if text.startswith(begun) else b"\n" + text)
    if size == 0:
        _sync_directory(path.parent)
    return rows[-1].at if rows else reached


def _write(descriptor: int, text: bytes) -> None:
    left = memoryview(text)
    while left:
        left = left[os.write(descriptor, left) :]
    os.fsync(descriptor)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _ensure_own_directory(directory: Path) -> None:
    """Make the file's directory in the state directory. Elsewhere it has to be there: it may be a disk that is away."""
    if directory.is_relative_to(configuration().state_dir):
        ensure_directory(directory, "the directory of the audit's checkpoints")


def _slot(kind: AnchorKind) -> str:
    """One for each place: another file, or another receiver, has got nothing yet."""
    settings = configuration()
    place = str(settings.audit_anchor_file) if kind is AnchorKind.FILE else settings.audit_anchor_url
    return f"audit-anchor:{kind.value}:{hashlib.sha256(place.encode()).hexdigest()[:16]}"


def _keep(kind: AnchorKind, state: AnchorState) -> None:
    cache.set(_slot(kind), msgspec.to_builtins(state), timeout=None)
