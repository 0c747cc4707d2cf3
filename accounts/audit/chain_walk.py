"""One walk along the chain, from one end to the other: what holds is counted, and the first fault ends it.

What is looked at, in the order of the chain: what stands before its first event, the archives, the events in the
database, behind each that seals a batch its leaves, and behind each that a checkpoint was made at, that; then the head,
what stands behind it, and whether the chain vouches for the archives and the keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from accounts.audit import archive_checks, archive_leftovers, archive_vouching, chain_rows, event_checks
from accounts.audit.archive_leftovers import Leftovers
from accounts.audit.archive_vouching import Vouching
from accounts.audit.archived_generations import ArchivedGenerations, sealed_again
from accounts.audit.batch_checks import batch_of, check_batch
from accounts.audit.batches import ACTION as SEAL
from accounts.audit.canonical import GENESIS_HASH
from accounts.audit.chain_ends import check_before_first, check_behind_head, read_head
from accounts.audit.chain_rows import LeafRow, Leaves, PersonalRow
from accounts.audit.checkpoint_checks import CheckpointTrail, check_keys, check_keys_written
from accounts.audit.checkpoint_lines import Checkpoint
from accounts.audit.contents import EventRow
from accounts.audit.faults import Broken, FaultKind, FaultReason
from accounts.audit.storage_checks import check_constraints, check_indexes
from accounts.models import AuditArchive, AuditVerification, SealedAssignment

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
    #: Assignments that were sealed late, and the first batch with some; events that are earlier than the one before
    #: them, and the first of them.
    late: int = 0
    first_late: int = 0
    backwards: int = 0
    first_backwards: int = 0
    #: The files of archives that are not here, and how many rows the database still has of what is in them.
    unread_archives: list[str] = field(default_factory=list)
    uncompared: int = 0
    #: Archives of which the events are in files that were not read.
    unheard_archives: list[str] = field(default_factory=list)

    def hold(self, sequence: int, chain_hash: str) -> None:
        """The chain holds up to there."""
        self.sequence, self.hash, self.hash_before = sequence, chain_hash, self.hash

    def step_back(self) -> None:
        """The last event does not hold after all."""
        self.sequence, self.hash, self.events = self.sequence - 1, self.hash_before, self.events - 1


class Walk:
    """One walk. ``found`` is true at any time, also when ``Broken`` has ended it."""

    def __init__(self, task: Task, archived: ArchivedGenerations) -> None:
        """``archived``: is told of the generations of the archives that are read."""
        self.found = Found()
        self._archived = archived
        #: What events of archives say of keys, by key.
        self._introduced: dict[str, dict[str, Any]] = {}
        self.trail: CheckpointTrail | None = None
        self._task = task
        #: The hash that the next event is to follow; None: any.
        self._previous: str | None = GENESIS_HASH
        self._told = 0
        self._total = 0

    def run(self) -> None:
        """Walk to the head as it is now. Raises ``Broken`` at the first fault."""
        self.found.head_sequence, self.found.head_hash = read_head()
        check_constraints()
        check_keys_written()
        check_before_first()
        archives = archive_vouching.rows()
        archived = archives[-1].last_sequence if archives else 0
        begins = self._begins_at(archived)
        self.trail = CheckpointTrail(
            None if self._task.from_scratch else begins, archived, self._task.checkpoints
        )
        self._count(begins, archives)
        vouching = self._pass_archives(archives)
        self._walk(begins, self.trail)
        self._check_end()
        self.found.unheard_archives = [archive.file_name for archive in vouching.require()]
        self.trail.finish()
        check_keys(self._introduced, complete=self._task.from_scratch and not self.found.unread_archives)
        if self._task.from_scratch:
            # Last: of a record that was changed more can be said than that its table is not whole.
            check_indexes()

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

    def _pass_archives(self, archives: list[AuditArchive]) -> Vouching:
        """Look at the archives; what the chain says of them as far as that was read."""
        vouching = Vouching(archives)
        vouching.hear_database(self.found.head_sequence)
        for archive in archives:
            there = archive_checks.is_there(archive, self._task.archives_dir)
            if not there:
                self.found.unread_archives.append(archive.file_name)
            if there and self._task.from_scratch:
                self._read_archive(archive, vouching)
            else:
                vouching.pass_by(archive)
                if there:
                    archive_checks.check_file(archive, self._task.archives_dir)
                elif self._task.from_scratch:
                    self.found.uncompared += archive_leftovers.count(archive)
            self._hold(archive.last_sequence, archive.last_hash)
        return vouching

    def _read_archive(self, archive: AuditArchive, vouching: Vouching) -> None:
        leftovers = Leftovers(archive)
        for event in archive_checks.events_of(archive, self._task.archives_dir):
            leftovers.compare(event)
            vouching.hear(event.sequence, event.vouches_for)
            self._archived.add(event.generations, event.sequence)
            self._introduced.update(event.introduces)
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
        trail.pass_by(found.sequence, self._previous)
        leaves = Leaves(chain_rows.leaves(begins))
        latest = None
        for event, beside in self._events(begins):
            self._check(event, beside, leaves)
            if latest is not None and latest - event.at > _CLOCKS_APART:
                found.first_backwards = found.first_backwards or event.sequence
                found.backwards += 1
            latest = event.at
            self._hold(event.sequence, event.hash)
            found.events += 1
            self._tell()

    def _events(self, begins: int) -> Iterator[tuple[EventRow, list[PersonalRow]]]:
        try:
            yield from chain_rows.events(begins, self.found.head_sequence)
        except Broken as unreadable:
            expected = self.found.sequence + 1
            if unreadable.fault.sequence > expected:
                raise event_checks.missing(expected, self._previous) from unreadable
            raise

    def _check(self, event: EventRow, beside: list[PersonalRow], leaves: Leaves) -> None:
        event_checks.check_event(event, beside, self.found.sequence + 1, self._previous)
        if event.action != SEAL:
            for leaf in leaves.of(event.sequence):
                raise chain_rows.misplaced(leaf)
            return
        batch = batch_of(event)
        late = check_batch(event, batch, self._once(leaves.of(event.sequence)))
        if late:
            self.found.first_late = self.found.first_late or event.sequence
            self.found.late += late
        self.found.assignments += batch.count

    def _once(self, leaves: Iterator[LeafRow]) -> Iterator[LeafRow]:
        """The ``leaves`` of a batch. Raises ``Broken`` at one of a generation that an archived batch seals."""
        for leaf in leaves:
            if leaf.generation_id is not None and (batch := self._archived.batch_of(leaf.generation_id)):
                raise sealed_again(leaf.generation_id, batch, leaf.batch)
            yield leaf

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
        check_behind_head()

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
