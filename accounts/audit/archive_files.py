"""Archive files of the audit: written whole or not at all, read only as they were written.

A file holds the lines of a segment (``lines``), compressed with gzip in a way that gives the same bytes each time. Its
SHA-256 stands in the ``AuditArchive`` row and in the chain: nothing else needs to protect it, but it needs a backup.
"""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

from accounts.models import AuditArchive
from signalbox.configuration import configuration
from signalbox.state_directory import ensure_directory

_COMPRESSION: Final = 6
_PIECE: Final = 1024 * 1024


class ArchiveDamaged(RuntimeError):
    """An archive file is not there, cannot be read, or is not what was archived. The message says which, and why."""


@dataclass(frozen=True, slots=True)
class Written:
    """A file that is in place, all of it on the disk."""

    name: str
    sha256: str
    size: int


def name_of(first: int, last: int) -> str:
    """What the file of the events ``first`` to ``last`` is called; names sort as the chain does."""
    return f"audit-{first:012}-{last:012}.jsonl.gz"


def path_of(archive: AuditArchive, directory: Path | None = None) -> Path:
    """Where the archive's file is, or would be in ``directory`` instead of the configured one."""
    return (directory or configuration().audit_archive_dir) / archive.file_name


def checked(archive: AuditArchive, directory: Path | None = None) -> Path:
    """The archive's file, every byte of it looked at. Raises ``ArchiveDamaged``."""
    path = path_of(archive, directory)
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(cast("Any", file), "sha256").hexdigest()
    except OSError as error:
        raise _damaged(archive, path, f"cannot be read ({error.strerror})") from error
    if found != archive.file_sha256:
        raise _damaged(archive, path, f"is not what was archived: its SHA-256 is {found}")
    return path


def read(archive: AuditArchive, directory: Path | None = None) -> Iterator[dict[str, Any]]:
    """The archive's records in their order, from the header to the end, with the memory of one line.

    All of the file is looked at before the first. Raises ``ArchiveDamaged``.
    """
    path = checked(archive, directory)
    try:
        with gzip.open(path, "rb") as lines:
            for line in lines:
                yield json.loads(line)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise _damaged(archive, path, f"cannot be read ({error})") from error


def header_of(archive: AuditArchive, directory: Path | None = None) -> dict[str, Any]:
    """The first record of the archive's file, without a look at the rest. Raises ``ArchiveDamaged``."""
    path = path_of(archive, directory)
    try:
        with gzip.open(path, "rb") as lines:
            header: dict[str, Any] = json.loads(lines.readline())
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise _damaged(archive, path, f"cannot be read ({error})") from error
    return header


def write(first: int, last: int, lines: Iterable[bytes]) -> Written:
    """Put the file of a segment in place: it is there whole, and stays through a power loss, or is not there at all.

    Raises ``OSError``, ``StateDirectoryError``, ``FileExistsError`` (another has its name), and what ``lines`` does.
    """
    directory = _directory()
    path = directory / name_of(first, last)
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            _compress(lines, file)
            file.flush()
            os.fsync(file.fileno())
        if path.exists() and not _same_content(path, draft):
            raise FileExistsError(
                f"{path} is there already and holds something else: is it another database's? Move it away, or set "
                "SIGNALBOX_AUDIT_ARCHIVE_DIR to another directory."
            )
        draft.replace(path)
        _sync_directory(directory)
    finally:
        draft.unlink(missing_ok=True)
    with path.open("rb") as file:
        digest = hashlib.file_digest(cast("Any", file), "sha256").hexdigest()
    return Written(path.name, digest, path.stat().st_size)


@contextmanager
def sole_writer() -> Iterator[bool]:
    """Whether nobody else on this machine writes archives, until the end of the block, or of the process.

    What killed writers have left half done is deleted. Raises ``StateDirectoryError``.
    """
    directory = _directory()
    descriptor = os.open(directory / ".lock", os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        alone = _locked(descriptor)
        for draft in directory.glob(".audit-*.part") if alone else ():
            draft.unlink(missing_ok=True)
        yield alone
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _directory() -> Path:
    directory = configuration().audit_archive_dir
    ensure_directory(directory, "the audit's archive directory")
    return directory


def _compress(lines: Iterable[bytes], file: BinaryIO) -> None:
    # No name and no time in it: the same lines are the same file.
    with gzip.GzipFile("", "wb", _COMPRESSION, file, mtime=0) as packed:
        for line in lines:
            packed.write(line)


def _same_content(one: Path, other: Path) -> bool:
    try:
        return _content_digest(one) == _content_digest(other)
    except (OSError, EOFError, zlib.error):
        return False


def _content_digest(path: Path) -> bytes:
    digest = hashlib.sha256()
    with gzip.open(path, "rb") as content:
        while piece := content.read(_PIECE):
            digest.update(piece)
    return digest.digest()


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _damaged(archive: AuditArchive, path: Path, what: str) -> ArchiveDamaged:
    return ArchiveDamaged(
        f"The archive of {archive}, {path}, {what}. Restore it from your backup: it has {archive.file_bytes:,} bytes "
        f"and the SHA-256 {archive.file_sha256}."
    )
