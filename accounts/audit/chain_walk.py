"""One walk along the chain, from one end to the other: what holds is counted, and the first fault ends it.

What is looked at, in the order of the chain: the archives, the events in the database, behind each that seals a batch
its leaves, and behind each that a checkpoint was made at, that; then the head, and what stands behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from accounts.audit import archive_checks, chain_rows, event_checks
from accounts.audit.archive_checks import ACTION as ARCHIVE
from accounts.audit.archive_leftovers import Leftovers
from accounts.audit.batch_checks import batch_of, check_batch
from accounts.audit.batches import ACTION as SEAL
from accounts.audit.canonical import GENESIS_HASH
from accounts.audit.chain_rows import UNREADABLE, LeafRow, Leaves, PersonalRow
from accounts.audit.checkpoint_checks import CheckpointTrail, check_keys
from accounts.audit.checkpoints import Checkpoint
from accounts.audit.contents import EventRow
from accounts.audit.faults import Broken, FaultKind, FaultReason
from accounts.models import AuditArchive, AuditEvent, AuditHead, AuditVerification, SealedAssignment

#: Told how many records were looked at, and how many there are to look at, now and then.
Progress = Callable[[int, int], None]

#: How far an event's time may lie before that of the event before it: so far the clocks of two machines may be apart.
_CLOCKS_APART: Final = timedelta(minutes=1)
_TOLD_EVERY: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is to be looked at. ``seen``: the last walk that held; where it ended an incremental one begins."""

    from_scratch: bool
    seen: AuditVerification | None = None
    archives_dir: Path | None = None
    checkpoints: Sequence[Checkpoint] = ()
    progress: Progress | None = None


@dataclass(slots=True)
class Found:
    """What a walk has found to hold: up to the event ``sequence`` the chain does, and its hash there is ``hash``."""

    first_sequence: int = 1
    sequence: int = 0
    hash: str = GENESIS_HASH
    hash_before: str = GENESIS_HASH
    head_sequence: int = 0
    head_hash: str = GENESIS_HASH
    events: int = 0
    assignments: int = 0
    #: Assignments that were sealed late; events that are earlier than the one before them, and the first of them.
    late: int = 0
    backwards: int = 0
    first_backwards: int = 0
    #: The files of archives that are not here.
    unread_archives: list[str] = field(default_factory=list)

    def hold(self, sequence: int, chain_hash: str) -> None:
        """The chain holds up to there."""
        self.sequence, self.hash, self.hash_before = sequence, chain_hash, self.hash

    def step_back(self) -> None:
        """The last event does not hold after all."""
        self.sequence, self.hash, self.events = self.sequence - 1, self.hash_before, self.events - 1


class Walk:
    """One walk. ``found`` is true at any time, also when ``Broken`` has ended it."""

    def __init__(self, task: Task) -> None:
        self.found = Found()
        self.trail: CheckpointTrail | None = None
        self._task = task
        #: The hash that the next event is to follow; None: any.
        self._previous: str | None = GENESIS_HASH
        self._told = 0
        self._total = 0

    def run(self) -> None:
        """Walk to the head as it is now. Raises ``Broken`` at the first fault."""
        self._read_head()
        archives = archive_checks.rows()
        archived = archives[-1].last_sequence if archives else 0
        begins = self._begins_at(archived)
        first_signed = 0 if self._task.from_scratch else begins
        self.trail = CheckpointTrail(first_signed, archived, self._task.checkpoints)
        self._count(begins, archives)
        vouching = self._pass_archives(archives)
        self._walk(begins, self.trail)
        self._check_end()
        self._check_vouched(archives, vouching)
        self.trail.finish()
        check_keys()

    def _read_head(self) -> None:
        head = AuditHead.objects.filter(id=1).first()
        if head is None:
            raise Broken(0, FaultKind.HEAD, FaultReason.MISSING, "The head of the chain is gone.")
        if not isinstance(head.sequence, int):
            raise Broken(0, FaultKind.HEAD, FaultReason.ALTERED, "The head of the chain cannot be read.")
        self.found.head_sequence, self.found.head_hash = head.sequence, head.hash

    def _begins_at(self, archived: int) -> int:
        """The first event to look at in the database, behind the ``archived`` ones."""
        seen = self._task.seen
        if seen is not None and seen.last_sequence > self.found.head_sequence:
            raise Broken(
                self.found.head_sequence + 1,
                FaultKind.HEAD,
                FaultReason.TRUNCATED,
                f"The chain ends at event {self.found.head_sequence}. When it was last verified, on "
                f"{seen.started_at:%Y-%m-%d at %H:%M}Z, it went to event {seen.last_sequence}.",
            )
        if self._task.from_scratch or seen is None:
            return archived + 1
        return max(seen.last_sequence, archived + 1, 1)

    def _pass_archives(self, archives: list[AuditArchive]) -> dict[int, dict[str, Any]]:
        """Look at the archives; what was said of them, by the first event of each."""
        vouching = _vouching_events()
        for archive in archives:
            if archive.first_sequence in vouching:
                archive_checks.check_vouched(archive, vouching[archive.first_sequence])
            if not archive_checks.is_there(archive, self._task.archives_dir):
                self.found.unread_archives.append(archive.file_name)
            elif not self._task.from_scratch:
                archive_checks.check_file(archive, self._task.archives_dir)
            else:
                self._read_archive(archive, vouching)
            self._hold(archive.last_sequence, archive.last_hash)
        return vouching

    def _read_archive(self, archive: AuditArchive, vouching: dict[int, dict[str, Any]]) -> None:
        leftovers = Leftovers(archive)
        for event in archive_checks.events_of(archive, self._task.archives_dir):
            leftovers.compare(event)
            if event.vouches_for is not None:
                vouching[event.vouches_for["first_sequence"]] = event.vouches_for
            self.found.events += 1
            self.found.assignments += len(event.leaves)
            self._hold(event.sequence, event.hash)
            self._tell()

    def _walk(self, begins: int, trail: CheckpointTrail) -> None:
        found = self.found
        if begins > found.sequence + 1:
            # What comes before it, the walk before this one has looked at.
            found.sequence, self._previous = begins - 1, None
        else:
            self._previous = found.hash
        if not self._task.from_scratch:
            found.first_sequence = begins
        trail.pass_by(found.sequence, found.hash)
        leaves = Leaves(chain_rows.leaves(begins))
        latest = None
        for event, beside in chain_rows.events(begins, found.head_sequence):
            self._check(event, beside, leaves)
            if latest is not None and event.at < latest - _CLOCKS_APART:
                found.first_backwards = found.first_backwards or event.sequence
                found.backwards += 1
            latest = event.at
            self._hold(event.sequence, event.hash)
            found.events += 1
            self._tell()

    def _check(self, event: EventRow, beside: list[PersonalRow], leaves: Leaves) -> None:
        event_checks.check_event(event, beside, self.found.sequence + 1, self._previous)
        if event.action != SEAL:
            if (leaf := next(leaves.of(event.sequence), None)) is not None:
                raise _misplaced(leaf)
            return
        batch = batch_of(event)
        self.found.late += check_batch(event, batch, leaves.of(event.sequence))
        self.found.assignments += batch.count

    def _hold(self, sequence: int, chain_hash: str) -> None:
        """The chain holds up to there, unless it is another one than was seen, or signed."""
        seen = self._task.seen
        if seen is not None and sequence == seen.last_sequence and chain_hash != seen.last_hash:
            raise Broken(
                sequence,
                FaultKind.EVENT,
                FaultReason.REWRITTEN,
                f"Event {sequence} is whole, and has another hash than on {seen.started_at:%Y-%m-%d at %H:%M}Z, when "
                "the chain was last verified: it was written anew.",
            )
        if self.trail is not None:
            self.trail.pass_by(sequence, chain_hash)
        self.found.hold(sequence, chain_hash)
        self._previous = chain_hash

    def _check_end(self) -> None:
        found = self.found
        if found.sequence < found.head_sequence:
            raise Broken(
                found.sequence + 1,
                FaultKind.EVENT,
                FaultReason.TRUNCATED,
                f"From event {found.sequence + 1} on everything is gone: the head says that the chain goes to event "
                f"{found.head_sequence}.",
            )
        if found.hash != found.head_hash:
            raise Broken(
                found.head_sequence,
                FaultKind.HEAD,
                FaultReason.HEAD_MISMATCH,
                f"The head has another hash than event {found.head_sequence}: that event was made anew, or the head "
                "was changed.",
            )
        _check_behind_head()

    def _check_vouched(self, archives: list[AuditArchive], vouching: dict[int, dict[str, Any]]) -> None:
        """Of an archive that nothing was said of so far, the event may be in a later archive that is not read now."""
        for archive in archives:
            said = vouching.get(archive.first_sequence)
            if said is not None or archive is archives[-1]:
                archive_checks.check_vouched(archive, said)

    def _tell(self) -> None:
        done = self.found.events + self.found.assignments
        if self._task.progress is not None and done - self._told >= _TOLD_EVERY:
            self._told = done
            self._task.progress(done, max(done, self._total))

    def _count(self, begins: int, archives: list[AuditArchive]) -> None:
        """How much there is to look at."""
        if self._task.progress is None:
            return
        leaves = SealedAssignment.objects.filter(batch__gte=begins).count()
        self._total = self.found.head_sequence - begins + 1 + leaves
        if self._task.from_scratch:
            self._total += sum(
                archive.last_sequence - archive.first_sequence + 1 + archive.assignments
                for archive in archives
            )


def _check_behind_head() -> None:
    """Raise ``Broken`` where rows are behind the head. What was recorded since the walk began is before it now."""
    last_event = AuditEvent.objects.order_by("-sequence").values_list("sequence", flat=True).first() or 0
    last_batch = SealedAssignment.objects.order_by("-batch").values_list("batch", flat=True).first() or 0
    head = AuditHead.objects.get(id=1)
    if last_event > head.sequence:
        event, _ = next(chain_rows.events(head.sequence + 1, last_event))
        if event.previous_hash == head.hash:
            raise Broken(
                head.sequence,
                FaultKind.HEAD,
                FaultReason.HEAD_MISMATCH,
                f"The head says that event {head.sequence} is the last one, and event {event.sequence} follows it: the "
                "head was set back, or that event was put behind it.",
            )
        raise Broken(
            event.sequence,
            FaultKind.EVENT,
            FaultReason.INSERTED,
            f"Event {event.sequence} is behind the chain's end, and was not recorded.",
        )
    if not isinstance(last_batch, int) or last_batch > head.sequence:
        raise _misplaced(next(chain_rows.leaves(head.sequence + 1)))


def _misplaced(leaf: LeafRow) -> Broken:
    return Broken(
        leaf.batch if isinstance(leaf.batch, int) else 0,
        FaultKind.ASSIGNMENT,
        FaultReason.MISPLACED,
        f"The assignment of generation {leaf.generation_id} is said to be sealed in batch {leaf.batch}, and there is "
        "no such batch.",
        record_id=str(leaf.generation_id or ""),
    )


def _vouching_events() -> dict[int, dict[str, Any]]:
    """What the events say that were recorded with archives, by the first event that each holds."""
    vouching: dict[int, dict[str, Any]] = {}
    events = AuditEvent.objects.filter(action=ARCHIVE).order_by("sequence")
    for sequence in events.values_list("sequence", flat=True):
        try:
            event = EventRow._make(events.values_list(*EventRow._fields).get(sequence=sequence))
            if event.after is not None and event_checks.holds(event):
                vouching[int(event.after["first_sequence"])] = event.after
        except UNREADABLE:
            # Which the walk finds out about when it comes there.
            continue
    return vouching
