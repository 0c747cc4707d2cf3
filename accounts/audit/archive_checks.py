"""Are the archived segments of the chain there, contiguous, and what was archived?

An ``AuditArchive`` row says which events a file holds, the chain's hash before and after them, and the file's SHA-256.
The chain vouches for the row (``archive_vouching``), so it cannot be changed unseen; by its SHA-256 neither can the
file. What is in the file is walked all the same when everything is verified: so it is known that it can be read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from accounts.audit import archive_files, merkle
from accounts.audit.archive_files import ArchiveDamaged
from accounts.audit.archive_vouching import ACTION, bad_archive
from accounts.audit.batches import ACTION as SEAL
from accounts.audit.canonical import canonical_json, content_hash, link_hash
from accounts.audit.faults import Broken, FaultKind, FaultReason
from accounts.audit.signing_keys import INTRODUCING
from accounts.audit.written_forms import UNREADABLE
from accounts.models import AuditArchive


@dataclass(frozen=True, slots=True)
class ArchivedEvent:
    """An event of an archive, which holds: its place and hash, its commitments, the assignments that it seals, the
    archive that it vouches for, as that is to be, and what it says of signing keys, by their ids.
    """

    sequence: int
    hash: str
    personal: dict[str, str]
    leaves: list[str]
    generations: list[UUID]
    vouches_for: dict[str, Any] | None
    introduces: dict[str, dict[str, Any]]


def is_there(archive: AuditArchive, directory: Path | None) -> bool:
    """Whether the archive's file is. Raises ``Broken`` where it is not, and ``directory`` was said to have it."""
    if archive.file_name != archive_files.name_of(archive.first_sequence, archive.last_sequence):
        # Nor is a path elsewhere looked at.
        raise bad_archive(archive, FaultReason.ALTERED, "has a file name that no archive of ours has.")
    if archive_files.path_of(archive, directory).exists():
        return True
    if directory is not None:
        raise bad_archive(archive, FaultReason.FILE_MISSING, f"is not in {directory}.")
    return False


def check_file(archive: AuditArchive, directory: Path | None) -> None:
    """Raise ``Broken`` unless the archive's file is byte by byte what was archived."""
    try:
        archive_files.checked(archive, directory)
    except ArchiveDamaged as error:
        raise _bad_file(archive, archive.first_sequence, str(error)) from error


def events_of(archive: AuditArchive, directory: Path | None) -> Iterator[ArchivedEvent]:
    """Walk what the archive's file holds. Raises ``Broken`` where that is not the segment that its row names."""
    expected, previous, assignments = archive.first_sequence, archive.previous_hash, 0
    try:
        for record, contents in _with_assignments(archive, directory):
            event = _checked(archive, record, contents, expected, previous)
            yield event
            expected, previous, assignments = expected + 1, event.hash, assignments + len(event.leaves)
    except ArchiveDamaged as error:
        raise _bad_file(archive, archive.first_sequence, str(error)) from error
    except UNREADABLE as error:
        raise _bad_content(archive, expected, f"cannot be read ({error})") from error
    if (expected - 1, previous, assignments) != (
        archive.last_sequence,
        archive.last_hash,
        archive.assignments,
    ):
        raise bad_archive(archive, FaultReason.FILE_ALTERED, "holds something else than its row says.")


def _checked(
    archive: AuditArchive,
    record: dict[str, Any],
    contents: list[dict[str, Any]],
    expected: int,
    previous: str,
) -> ArchivedEvent:
    """The event of ``record``, number ``expected``, behind the hash ``previous``. Raises ``Broken``, ``UNREADABLE``."""
    content = record["content"]
    if content["sequence"] != expected or expected > archive.last_sequence:
        raise _bad_content(archive, expected, "is not the next one in it")
    if record["hash"] != _chained(content, previous):
        raise _bad_content(archive, expected, "is not what was recorded")
    leaves = [merkle.leaf_hash(canonical_json(one)) for one in contents]
    if content["action"] == SEAL and not _is_whole(content["after"], leaves):
        raise _bad_content(archive, expected, "does not have the assignments that it seals")
    return ArchivedEvent(
        sequence=expected,
        hash=record["hash"],
        personal=content.get("personal", {}),
        leaves=leaves,
        generations=[UUID(one["generation"]) for one in contents],
        vouches_for=content["after"] if content["action"] == ACTION else None,
        introduces={content["object"][1]: content["after"]} if content["action"] in INTRODUCING else {},
    )


def _with_assignments(
    archive: AuditArchive, directory: Path | None
) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    event: dict[str, Any] | None = None
    contents: list[dict[str, Any]] = []
    for record in archive_files.read(archive, directory):
        if record["record"] == "event":
            if event is not None:
                yield event, contents
            event, contents = record, []
        elif record["record"] == "assignment":
            contents.append(record["content"])
    if event is not None:
        yield event, contents


def _chained(content: dict[str, Any], previous: str) -> str:
    if "format" not in content:
        return content_hash(content) if content["previous"] == previous else ""
    return link_hash(previous, content_hash(content))


def _is_whole(batch: dict[str, Any], leaves: list[str]) -> bool:
    return bool(leaves) and (len(leaves), merkle.root(leaves)) == (batch["count"], batch["root"])


def _bad_content(archive: AuditArchive, sequence: int, what: str) -> Broken:
    return _bad_file(
        archive,
        sequence,
        f"In the archive {archive.file_name}, event {sequence} {what}. Restore the file from your backup.",
    )


def _bad_file(archive: AuditArchive, sequence: int, message: str) -> Broken:
    return Broken(sequence, FaultKind.ARCHIVE, FaultReason.FILE_ALTERED, message, record_id=archive.file_name)
