"""Walking the chain: is everything there, unchanged and in its place? Names the first thing that is not.

From scratch: every event from the first one on, every batch against its leaves and their assignments, every archive's
file, every checkpoint. Incrementally: from the event at which the last walk that held has ended, which must still be
what it was then. Either reads page by page and holds no lock and no transaction; what is recorded meanwhile is left to
the next walk.

What was never sealed is counted, and not proved. That nothing was cut off at the end, and that the chain was not made
anew as a whole, only a checkpoint shows that lies outside of this database.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Final

import structlog
from django.utils import timezone

from accounts.audit import accepted_generations, anchors, checkpoint_lines, sealing, signing_keys
from accounts.audit.archived_generations import ArchivedGenerations, sealed_again
from accounts.audit.batch_checks import LATE
from accounts.audit.chain_walk import Found, Progress, Task, Walk
from accounts.audit.checkpoint_lines import Checkpoint, CheckpointFileError, SignedCheckpoint
from accounts.audit.faults import Broken, Fault, FaultKind, FaultReason
from accounts.audit.row_pages import page, require_database
from accounts.audit.sealing import Unsealed
from accounts.audit.written_forms import UNREADABLE_PAGE, WrittenForm
from accounts.formatting import counted
from accounts.models import AuditArchive, AuditVerification
from accounts.tenancy import every_tenant
from signalbox.configuration import configuration

__all__ = [
    "Fault",
    "FaultKind",
    "FaultReason",
    "Progress",
    "Verification",
    "last_good",
    "store",
    "verify",
    "verify_and_store",
]

_STORED: Final = WrittenForm(
    AuditVerification, [str(field.attname) for field in AuditVerification._meta.concrete_fields]
)
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What a walk along the chain has found.

    ``first_sequence``: the first event that was looked at. ``events`` and ``assignments`` are those that hold, and the
    chain holds up to the event ``last_sequence``. ``head_sequence``: where it ended when the walk began. ``unsealed``:
    assignments that wait for their batch. ``notes``: what is no fault, and worth knowing.
    """

    started_at: datetime
    first_sequence: int
    last_sequence: int
    last_hash: str
    events: int
    assignments: int
    unsealed: int
    head_sequence: int
    head_hash: str
    fault: Fault | None
    notes: tuple[str, ...] = ()


def verify(
    *,
    from_scratch: bool,
    progress: Progress | None = None,
    archives_dir: Path | None = None,
    checkpoints: Iterable[Checkpoint] | None = None,
) -> Verification:
    """Walk the chain to its head as it is now, and change nothing.

    ``archives_dir``: where the archives' files are, all of them; else those that are in the configured directory are
    looked at. ``checkpoints``: what somebody has kept of them outside; None: what this machine keeps, and what is wrong
    with that is noted. Without a walk that held, every walk is from scratch.
    """
    kept: Sequence[Checkpoint]
    notes: list[str] = []
    if checkpoints is None:
        kept, notes = _kept_outside()
    else:
        kept = list(checkpoints)
    with every_tenant("the chain is the installation's, and so are the assignments that are sealed in it"):
        while True:
            seen, archives = last_good(), AuditArchive.objects.count()
            task = Task(
                from_scratch=from_scratch or seen is None,
                seen=seen,
                archives_dir=archives_dir,
                checkpoints=kept,
                progress=progress,
            )
            found = _verify(task)
            # Rows that are archived meanwhile are missing where the walk looks for them.
            if found.fault is None or archives == AuditArchive.objects.count():
                return replace(found, notes=(*found.notes, *notes))


def store(found: Verification) -> AuditVerification:
    """Keep what a walk has found: the next incremental one begins where the last that held has ended."""
    return AuditVerification.objects.create(
        started_at=found.started_at,
        finished_at=timezone.now(),
        first_sequence=found.first_sequence,
        last_sequence=found.last_sequence,
        last_hash=found.last_hash,
        events=found.events,
        assignments=found.assignments,
        unsealed=found.unsealed,
        fault=found.fault.fields() if found.fault else None,
        notes=list(found.notes),
    )


def verify_and_store(
    *,
    from_scratch: bool,
    progress: Progress | None = None,
    archives_dir: Path | None = None,
    checkpoints: Iterable[Checkpoint] | None = None,
) -> AuditVerification:
    """As ``verify``, and keep what was found."""
    return store(
        verify(
            from_scratch=from_scratch, progress=progress, archives_dir=archives_dir, checkpoints=checkpoints
        )
    )


def last_good() -> AuditVerification | None:
    """The last walk that held; None: there is none, or what it found cannot be read any more."""
    held = AuditVerification.objects.filter(fault__isnull=True).order_by("-started_at")
    readable, _ = page(_STORED, held, 1)
    return held.first() if readable else None


def _kept_outside() -> tuple[Sequence[SignedCheckpoint], list[str]]:
    """The checkpoints in the file that they are anchored in, and what is to be said of the file."""
    path = configuration().audit_anchor_file
    kept: list[SignedCheckpoint] = []
    problem: CheckpointFileError | None = None
    try:
        if path.exists():
            kept, problem = checkpoint_lines.read_what_can_be(path)
    except CheckpointFileError as error:
        problem = error
    try:
        # Of a file that could not be read nobody knows what it has.
        notes = anchors.tell_lost(kept) if kept or problem is None else []
    except UNREADABLE_PAGE:
        # A row of a checkpoint: the walk names it.
        require_database()
        notes = []
    if problem is not None:
        _log.error("audit_checkpoints_not_read", problem=str(problem))
        notes.append(f"Not compared with all checkpoints that are kept outside: {problem}")
    return kept, notes


def _verify(task: Task) -> Verification:
    started_at, fault = timezone.now(), None
    with ArchivedGenerations() as archived:
        walk = Walk(task, archived)
        try:
            walk.run()
            _check_waiting(archived, sweep=task.from_scratch)
            all_read = task.from_scratch and not walk.found.unread_archives
            accepted_generations.check(
                archived, walked=None if task.from_scratch else task.seen, all_read=all_read
            )
        except Broken as broken:
            fault = broken.fault
    found = walk.found
    if fault is not None and fault.kind is FaultKind.EVENT and fault.sequence == found.sequence > 0:
        # It seemed to be whole, and what follows it has told that it does not belong there.
        found.step_back()
    unsealed = sealing.unsealed(sweep=task.from_scratch)
    return Verification(
        started_at=started_at,
        first_sequence=found.first_sequence,
        last_sequence=found.sequence,
        last_hash=found.hash,
        events=found.events,
        assignments=found.assignments,
        unsealed=unsealed.count,
        head_sequence=found.head_sequence,
        head_hash=found.head_hash,
        fault=fault,
        notes=(*_notes_on_keys(fault), *_notes(found, walk), *_notes_on_waiting(unsealed, started_at)),
    )


def _check_waiting(archived: ArchivedGenerations, *, sweep: bool) -> None:
    """Raise ``Broken`` where an assignment waits that cannot be sealed, or was before."""
    found = sealing.first_unsealable(sweep=sweep)
    if found is not None:
        whose = f"generation {found.generation_id}" if found.generation_id else "an unknown generation"
        raise Broken(
            0,
            FaultKind.ASSIGNMENT,
            FaultReason.ALTERED,
            f"The assignment of {whose} waits for its batch and cannot be sealed, so that it was changed "
            f"({found.problem}).",
            record_id=found.generation_id,
        )
    for generation_id in sealing.waiting_generations(sweep=sweep) if archived.known else ():
        if batch := archived.batch_of(generation_id):
            raise sealed_again(generation_id, batch, None)


def _notes_on_keys(fault: Fault | None) -> list[str]:
    return [] if fault is not None and fault.kind is FaultKind.KEY else signing_keys.notes()


def _notes_on_waiting(unsealed: Unsealed, now: datetime) -> list[str]:
    if unsealed.oldest_at is None or now - unsealed.oldest_at < LATE:
        return []
    return [
        f"An assignment of {unsealed.oldest_at:%Y-%m-%d %H:%M}Z waits to be sealed, the oldest of "
        f"{unsealed.count:,}: nothing seals, or somebody has put it there."
    ]


def _notes(found: Found, walk: Walk) -> list[str]:
    notes: list[str] = []
    if found.late:
        notes.append(
            f"Sealed more than an hour after the lane was given: {counted(found.late, 'assignment')}, first in batch "
            f"{found.first_late}."
        )
    if found.backwards:
        notes.append(
            f"The time runs backwards by more than a minute at {counted(found.backwards, 'event')}, first at event "
            f"{found.first_backwards}: a clock was set back, or those of two machines are apart."
        )
    if found.unread_archives:
        notes.append(
            f"Not read: {counted(len(found.unread_archives), 'archive')}, whose files are not here, from "
            f"{found.unread_archives[0]} on."
        )
    if found.uncompared:
        notes.append(
            f"Not compared: {counted(found.uncompared, 'record')} that the database still has of what is in them."
        )
    if found.unheard_archives:
        notes.append(
            f"Not vouched for by what was read: {counted(len(found.unheard_archives), 'archive')}, from "
            f"{found.unheard_archives[0]} on. The events that tell of them are in archives that were not read."
        )
    if walk.trail is not None and walk.trail.not_compared:
        notes.append(
            f"Not compared: {counted(walk.trail.not_compared, 'checkpoint')} of what is in archives that were not read."
        )
    return notes
