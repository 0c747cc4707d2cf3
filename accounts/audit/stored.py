"""The chain in order, page by page, from wherever it lies: archive files first, then the database's tables.

Between two pages nothing is held but an open archive file: no transaction, no cursor. Old segments may be archived
meanwhile. What an archive covers is read from its file, whether its rows are deleted already or not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from accounts.audit import archive_files, batches, merkle
from accounts.audit.canonical import canonical_json, utc_text
from accounts.audit.contents import AssignmentRow, EventRow, assignment_content, event_content
from accounts.audit.lines import Record
from accounts.audit.selection import Selection
from accounts.models import AuditArchive, AuditEvent, LaneAssignment, SealedAssignment
from accounts.tenancy import every_tenant

#: Events of a page; one that seals assignments ends its page, once they are so many.
PAGE: Final = 250
_ASSIGNMENTS_A_PAGE: Final = 4096


class ChainBroken(RuntimeError):
    """A row that must be there is not. The message says which."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """An assignment of a batch; ``path`` is its proof, None where all of the batch is at hand."""

    index: int
    content: dict[str, Any]
    path: list[str] | None


@dataclass(frozen=True, slots=True)
class Stored:
    """An event as it is stored, and of the assignments that it seals those that were asked for."""

    content: dict[str, Any]
    hash: str
    leaves: list[Leaf]

    @property
    def sequence(self) -> int:
        return int(self.content["sequence"])


def pages(first: int, last: int, wanted: Selection | None) -> Iterator[list[Stored]]:
    """The events ``first`` to ``last``, every one, with the assignments that ``wanted`` shows; None: without them.

    Raises ``ChainBroken`` where a row is missing, and ``ArchiveDamaged``.
    """
    while first <= last:
        archive = archive_of(first)
        if archive is not None:
            until = min(last, archive.last_sequence)
            yield from _archived(archive, first, until, wanted)
            first = until + 1
            continue
        page = _from_tables(first, last, wanted)
        if page:
            yield page
            first = page[-1].sequence + 1
        elif archive_of(first) is None:
            raise ChainBroken(
                f"Event {first} is not there, or not all that it seals: the chain is broken. `manage.py audit verify` "
                "tells more."
            )


def archive_of(sequence: int) -> AuditArchive | None:
    """The archive that covers the event ``sequence``."""
    return AuditArchive.objects.filter(first_sequence__lte=sequence, last_sequence__gte=sequence).first()


def first_at_or_after(at: datetime) -> int | None:
    """The first event that was recorded at ``at`` or later. Raises ``ArchiveDamaged``."""
    text = utc_text(at)
    for archive in AuditArchive.objects.order_by("first_sequence"):
        if archive_files.header_of(archive)["selection"]["last_at"] >= text:
            return next(int(one["sequence"]) for one in _contents(archive) if one["at"] >= text)
    row = AuditEvent.objects.filter(at__gte=at).order_by("sequence").first()
    return row.sequence if row else None


def last_before(at: datetime) -> int | None:
    """The last event that was recorded before ``at``. Raises ``ArchiveDamaged``."""
    row = AuditEvent.objects.filter(at__lt=at).order_by("-sequence").first()
    if row:
        return row.sequence
    text = utc_text(at)
    for archive in AuditArchive.objects.order_by("-first_sequence"):
        if archive_files.header_of(archive)["selection"]["first_at"] < text:
            return max(int(one["sequence"]) for one in _contents(archive) if one["at"] < text)
    return None


def last_of_first_format() -> int:
    """The last event of format 1, whose place in the chain only its content proves; 0: there is none.

    Format 1 comes before all others. Raises ``ArchiveDamaged``.
    """
    row = AuditEvent.objects.filter(format=1).order_by("-sequence").first()
    if row:
        return row.sequence
    last = 0
    for archive in AuditArchive.objects.order_by("first_sequence"):
        for content in _contents(archive):
            if "format" in content:
                return last
            last = content["sequence"]
    return last


def hash_before(sequence: int) -> str:
    """The chain's hash before the event ``sequence``. Raises ``ChainBroken``, ``ArchiveDamaged``."""
    archive = archive_of(sequence)
    if archive is None:
        row = AuditEvent.objects.filter(sequence=sequence).first()
        if row:
            return row.previous_hash
        archive = archive_of(sequence)
    if archive is None:
        raise ChainBroken(
            f"Event {sequence} is not there: the chain is broken. See `manage.py audit verify`."
        )
    previous = archive.previous_hash
    for record in archive_files.read(archive):
        if record["record"] == "event":
            if record["content"]["sequence"] == sequence:
                break
            previous = record["hash"]
    return previous


def _contents(archive: AuditArchive) -> Iterator[dict[str, Any]]:
    return (one["content"] for one in archive_files.read(archive) if one["record"] == "event")


def _archived(
    archive: AuditArchive, first: int, last: int, wanted: Selection | None
) -> Iterator[list[Stored]]:
    page: list[Stored] = []
    held = 0
    for event, leaves in _events_with_leaves(archive):
        sequence = event["content"]["sequence"]
        if sequence > last:
            break
        if sequence < first:
            continue
        stored = Stored(event["content"], event["hash"], _wanted(leaves, wanted) if wanted else [])
        page.append(stored)
        held += len(stored.leaves)
        if len(page) == PAGE or held >= _ASSIGNMENTS_A_PAGE:
            yield page
            page, held = [], 0
    if page:
        yield page


def _events_with_leaves(archive: AuditArchive) -> Iterator[tuple[Record, list[dict[str, Any]]]]:
    """Each event of an archive with the contents of the assignments that it seals, in their order."""
    event: Record | None = None
    leaves: list[dict[str, Any]] = []
    for record in archive_files.read(archive):
        if record["record"] == "event":
            if event is not None:
                yield event, leaves
            event, leaves = record, []
        elif record["record"] == "assignment":
            leaves.append(record["content"])
    if event is not None:
        yield event, leaves


def _wanted(contents: list[dict[str, Any]], wanted: Selection) -> list[Leaf]:
    """Of a whole batch what is asked for, with proofs where that is not all."""
    chosen = [index for index, content in enumerate(contents) if wanted.shows_assignment(content)]
    if len(chosen) == len(contents):
        return [Leaf(index, contents[index], None) for index in chosen]
    if not chosen:
        return []
    proofs = merkle.proofs([merkle.leaf_hash(canonical_json(content)) for content in contents])
    return [Leaf(index, contents[index], proofs[index]) for index in chosen]


def _from_tables(first: int, last: int, wanted: Selection | None) -> list[Stored]:
    """A page from the tables; empty where its first row is not there, or was moved away meanwhile."""
    found = AuditEvent.objects.filter(sequence__range=(first, last)).order_by("sequence")
    rows: Any = found.values_list(*EventRow._fields)[:PAGE]
    page: list[Stored] = []
    held = 0
    for expected, row in enumerate(map(EventRow._make, rows), first):
        leaves = _sealed(row, wanted) if wanted and row.action == batches.ACTION else []
        if row.sequence != expected or leaves is None:
            break
        page.append(Stored(event_content(row), row.hash, leaves))
        held += len(leaves)
        if held >= _ASSIGNMENTS_A_PAGE:
            break
    return page


def _sealed(event: EventRow, wanted: Selection) -> list[Leaf] | None:
    """Of the batch that ``event`` seals what is asked for. None: not all of the batch's leaves are there."""
    batch = SealedAssignment.objects.filter(batch=event.sequence).order_by("index")
    with every_tenant("whoever exports has been asked for the tenants that they may see"):
        assignments = LaneAssignment.objects.filter(generation_id__in=batch.values("generation_id"))
        if wanted.tenant_id is not None:
            assignments = assignments.filter(tenant_id=wanted.tenant_id)
        if wanted.lane is not None:
            assignments = assignments.filter(given_lane=wanted.lane)
        rows: Any = assignments.order_by().values_list(*AssignmentRow._fields)
        contents = {row.generation_id: assignment_content(row) for row in map(AssignmentRow._make, rows)}
    # Read after the assignments: one that is moved away meanwhile takes its leaf along, and is missed here.
    leaves = list(batch.values_list("generation_id", "hash"))
    size = (event.after or {}).get("count")
    if len(leaves) != size or (wanted.is_whole and len(contents) != size):
        return None
    if not contents:
        return []
    proofs = merkle.proofs([leaf for _, leaf in leaves]) if len(contents) < len(leaves) else None
    return [
        Leaf(index, contents[generation], proofs[index] if proofs else None)
        for index, (generation, _) in enumerate(leaves)
        if generation in contents
    ]
