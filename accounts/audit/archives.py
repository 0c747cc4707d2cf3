"""Archives: old segments of the chain move to files, and the chain stays provable.

A segment is a run of events with all assignments that its batches sealed. Its file is written and on the disk before
one transaction records it: an ``AuditArchive`` row, and an event of the chain. Only then its rows are deleted, some
hundred at a time, so that requests never wait long for the database. Whoever dies in between leaves rows that are in
the file as well; the next run deletes them. What an archive covers is read from its file, whether rows are left or not.

Personal values stay in the database: from a file they could not be erased.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from django.db import IntegrityError, transaction
from django.db.models import Max, Min

from accounts.audit import archive_files, archive_vouching, batches, lines, merkle, stored
from accounts.audit.archive_files import ArchiveDamaged, path_of, read
from accounts.audit.canonical import GENESIS_HASH, canonical_json, content_hash, link_hash, utc_text
from accounts.audit.faults import Broken
from accounts.audit.lines import Lines
from accounts.audit.recording import record
from accounts.audit.selection import Selection
from accounts.audit.stored import ChainBroken, Stored
from accounts.models import (
    AuditArchive,
    AuditCheckpoint,
    AuditEvent,
    AuditHead,
    AuditSettings,
    AuditSigningKey,
    LaneAssignment,
    SealedAssignment,
)
from accounts.principal import Actor
from accounts.tenancy import every_tenant

__all__ = ["ArchiveDamaged", "ArchiveRefused", "archive", "path_of", "read"]

#: What one file holds at most: events, or assignments if they are more.
MOST_EVENTS: Final = 10_000
MOST_ASSIGNMENTS: Final = 200_000
#: Events and assignments that are worth a file, where nobody has asked for one.
LEAST: Final = 100
#: Rows deleted in one transaction.
_PIECE: Final = 500
_ACTOR: Final = Actor.system("archiving")


class ArchiveRefused(RuntimeError):
    """Nothing (more) is archived. The message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class _Segment:
    """The events ``first`` to ``last``, behind what the archives ``earlier`` hold."""

    earlier: list[AuditArchive]
    first: int
    last: int

    @property
    def previous(self) -> str:
        """The chain's hash before the first event."""
        return self.earlier[-1].last_hash if self.earlier else GENESIS_HASH


def archive(
    now: datetime,
    before: datetime | None = None,
    *,
    actor: Actor = _ACTOR,
    least: int = LEAST,
    advance: Callable[[int], object] = lambda events: None,
) -> list[AuditArchive]:
    """Move what was recorded before ``before`` to files (None: as old as the audit's settings say). The new archives.

    Moves nothing that is younger than the last checkpoint, and no segment of fewer than ``least`` events and
    assignments. May be killed at any time, and repeated. ``advance`` is told how many events were written. Raises
    ``ArchiveRefused`` (the chain does not hold there, does not vouch for an archive that there is, or another run is at
    work), ``StateDirectoryError``, ``OSError``.
    """
    if before is None:
        days = AuditSettings.objects.get(id=1).archive_after_days
        if days is None:
            return []
        before = now - timedelta(days=days)
    made: list[AuditArchive] = []
    with archive_files.sole_writer() as alone:
        if not alone:
            raise ArchiveRefused("Another run is archiving. Wait until it has ended.")
        there = _vouched_for()
        for earlier in there:
            _delete_what_is_left(earlier)
        while segment := _next([*there, *made], before, least):
            made.append(_move(segment, now, actor, advance))
    return made


def waiting(before: datetime) -> int:
    """How many events would be archived now."""
    archived: int | None = AuditArchive.objects.aggregate(last=Max("last_sequence"))["last"]
    return max(0, _last_that_may(before) - (archived or 0))


def _vouched_for() -> list[AuditArchive]:
    """The archives that there are. What one that somebody has put there covers would be taken for archived."""
    try:
        return archive_vouching.vouched_for()
    except Broken as broken:
        raise ArchiveRefused(
            f"Nothing is archived: {broken} `manage.py audit verify --from-scratch` tells more."
        ) from broken


def _next(earlier: list[AuditArchive], before: datetime, least: int) -> _Segment | None:
    first, until = (earlier[-1].last_sequence + 1 if earlier else 1), _last_that_may(before)
    last = min(until, first + MOST_EVENTS - 1)
    assignments = 0
    sealed = AuditEvent.objects.filter(sequence__range=(first, last), action=batches.ACTION)
    for sequence, after in sealed.order_by("sequence").values_list("sequence", "after"):
        count = int((after or {}).get("count", 0))
        if assignments + count > MOST_ASSIGNMENTS and sequence > first:
            last = sequence - 1
            break
        assignments += count
    # A file that ends at a checkpoint is proved to its end without another one.
    signed = AuditCheckpoint.objects.filter(sequence__range=(first, last)).aggregate(last=Max("sequence"))
    last = signed["last"] or last
    if last < first or (last - first + 1 + assignments < least):
        return None
    return _Segment(earlier, first, last)


def _last_that_may(before: datetime) -> int:
    """The last event that is old enough, and not younger than the last checkpoint.

    What no checkpoint proves yet is left where it is: the rows are what an auditor would compare with.
    """
    signed: int | None = AuditCheckpoint.objects.aggregate(last=Max("sequence"))["last"]
    young = AuditEvent.objects.filter(at__gte=before).aggregate(first=Min("sequence"))["first"]
    old = young - 1 if young else AuditHead.objects.get(id=1).sequence
    return min(old, signed or 0)


def _move(segment: _Segment, now: datetime, actor: Actor, advance: Callable[[int], object]) -> AuditArchive:
    writer = _Writer(segment, advance)
    try:
        file = archive_files.write(segment.first, segment.last, writer.lines())
    except (ChainBroken, FileExistsError) as error:
        raise ArchiveRefused(str(error)) from error
    made = AuditArchive(
        first_sequence=segment.first,
        last_sequence=segment.last,
        previous_hash=segment.previous,
        last_hash=writer.hash,
        assignments=writer.assignments,
        file_name=file.name,
        file_sha256=file.sha256,
        file_bytes=file.size,
        created_at=now,
    )
    try:
        with transaction.atomic():
            made.save(force_insert=True)
            # Behind all that is archived, and so in the database until another archive has one that tells of this too.
            said = archive_vouching.hashed_fields(segment.earlier, made)
            record(actor, archive_vouching.ACTION, made, None, said)
    except IntegrityError as error:
        raise ArchiveRefused(
            f"Event {segment.first} was archived meanwhile, by another machine. Its file is there, if both have one "
            "directory; nothing was changed here."
        ) from error
    _delete_rows(made)
    return made


def _delete_what_is_left(earlier: AuditArchive) -> None:
    """Delete the rows that a killed run has left of an archive, if its file has them: they may be the only ones."""
    span = (earlier.first_sequence, earlier.last_sequence)
    if not (
        AuditEvent.objects.filter(sequence__range=span).exists()
        or SealedAssignment.objects.filter(batch__range=span).exists()
    ):
        return
    try:
        archive_files.checked(earlier)
    except ArchiveDamaged as error:
        raise ArchiveRefused(
            f"{error} Rows of it are left in the database, and stay there until then."
        ) from error
    try:
        _delete_rows(earlier)
    except IntegrityError as error:
        # The database sees no event any more that tells of the archive: nothing of it was left when that was archived.
        raise ArchiveRefused(
            f"Nothing is archived: rows of {earlier.file_name} stand in the database that no run has left there. "
            "`manage.py audit verify --from-scratch` names them."
        ) from error


def _delete_rows(made: AuditArchive) -> None:
    """Delete what the archive covers; may be repeated. An assignment goes before its leaf, and that before its event:
    the database lets nothing go that it cannot see to be archived.
    """
    span = (made.first_sequence, made.last_sequence)
    leaves = SealedAssignment.objects.filter(batch__range=span).order_by("batch", "index")
    while generations := list(leaves.values_list("generation_id", flat=True)[:_PIECE]):
        with transaction.atomic(), every_tenant("segments of the audit hold the assignments of all tenants"):
            LaneAssignment.objects.filter(generation_id__in=generations).delete()
            SealedAssignment.objects.filter(generation_id__in=generations).delete()
    events = AuditEvent.objects.filter(sequence__range=span).order_by("sequence")
    while sequences := list(events.values_list("sequence", flat=True)[:_PIECE]):
        with transaction.atomic():
            AuditEvent.objects.filter(sequence__in=sequences).delete()


class _Writer:
    """A segment's lines, each checked before it is written: what does not hold is not put away."""

    def __init__(self, segment: _Segment, advance: Callable[[int], object]) -> None:
        self._segment = segment
        self._advance = advance
        self.hash = segment.previous
        self.assignments = 0

    def lines(self) -> Iterator[bytes]:
        segment, file = self._segment, Lines()
        span = (segment.first, segment.last)
        times = AuditEvent.objects.filter(sequence__range=span).aggregate(first=Min("at"), last=Max("at"))
        signed: dict[int, list[AuditCheckpoint]] = {}
        for one in AuditCheckpoint.objects.filter(sequence__range=span).order_by("sequence", "at"):
            signed.setdefault(one.sequence, []).append(one)
        yield file.line(
            lines.header(
                kind="archive",
                first=segment.first,
                last=segment.last,
                previous=segment.previous,
                at=utc_text(times["last"]),
                selection=_everything(utc_text(times["first"]), utc_text(times["last"])),
            )
        )
        # Keys and checkpoints are as they were when the segment ended: a file that is made twice is the same.
        for key in _keys_until({one.key_id for group in signed.values() for one in group}):
            yield file.line(lines.key(key))
        for page in stored.pages(segment.first, segment.last, Selection()):
            for event in page:
                self._check(event)
                yield file.line(lines.event(event.content, event.hash, {}))
                for leaf in event.leaves:
                    yield file.line(
                        lines.assignment(
                            leaf.content,
                            batch=event.sequence,
                            index=leaf.index,
                            size=len(event.leaves),
                            path=None,
                        )
                    )
                for one in signed.get(event.sequence, []):
                    yield file.line(lines.checkpoint(one))
            self._advance(len(page))
        yield file.end(sequence=segment.last, chain_hash=self.hash)

    def _check(self, event: Stored) -> None:
        content = event.content
        linked = content_hash(content)
        if "format" in content:
            linked = link_hash(self.hash, linked)
        elif content["previous"] != self.hash:
            linked = ""
        if linked != event.hash or not _holds(event):
            raise ArchiveRefused(
                f"Event {event.sequence} does not hold: nothing from it on is archived. See `manage.py audit verify`."
            )
        self.hash = event.hash
        self.assignments += len(event.leaves)


def _everything(first_at: str, last_at: str) -> dict[str, str | bool | None]:
    """What a segment shows, as exports say it: all from its first event's time to its last one's, without people."""
    return {"tenant": None, "lane": None, "first_at": first_at, "last_at": last_at, "personal": False}


def _holds(event: Stored) -> bool:
    """Whether the assignments are those that the event seals."""
    if event.content["action"] != batches.ACTION:
        return not event.leaves
    leaves = [merkle.leaf_hash(canonical_json(leaf.content)) for leaf in event.leaves]
    return bool(leaves) and merkle.root(leaves) == event.content["after"]["root"]


def _keys_until(used: set[str]) -> list[AuditSigningKey]:
    """The keys up to the last one that is ``used``, the oldest first."""
    keys = list(AuditSigningKey.objects.order_by("created_at"))
    newest = max((at for at, key in enumerate(keys) if key.id in used), default=-1)
    return keys[: newest + 1]
