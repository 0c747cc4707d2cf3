"""What every kind of source can do, and what they share: hashing, copying, and asking for room first."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from inference.engine.preparation.problems import PreparationError, Problem
from inference.engine.preparation.progress import Advance, Progress
from inference.engine.preparation.record import FileRecord, Precision

_BLOCK = 1 << 20
#: Of the machine's memory, what a model's weights may take.
_MEMORY_SHARE = 0.85


@dataclass(frozen=True)
class Written:
    """What a source put into the directory. ``files`` holds those whose checksum is known already."""

    architecture: str
    context_length: int
    eos_token_ids: list[int]
    has_chat_template: bool
    quantization: str
    files: dict[str, FileRecord] = field(default_factory=dict)


class Source(Protocol):
    """Something that a model can be prepared from."""

    @property
    def description(self) -> str:
        """What the operator named, made unambiguous."""

    def checksum(self, progress: Progress) -> str:
        """Identify the content, so that equal checksums prepare equal models."""

    def write(self, directory: Path, precision: Precision, progress: Progress) -> Written:
        """Write configuration, weights and tokenizer into ``directory``, which is empty.

        Raises ``PreparationError``, or ``OSError`` as the file system has it.
        """

    def finish(self) -> None:
        """Drop what was only kept for another try: the model is in place."""


def hash_file(path: Path, advance: Advance) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            advance(len(block))
    return digest.hexdigest()


def hash_files(paths: Iterable[Path], label: str, progress: Progress) -> str:
    """One checksum over the names and contents of files."""
    chosen = sorted(paths)
    lines = []
    with progress(label, sum(path.stat().st_size for path in chosen)) as advance:
        lines = [f"{hash_file(path, advance)}  {path.name}\n" for path in chosen]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def copy_file(source: Path, directory: Path, advance: Advance) -> FileRecord:
    """Copy a file, durably, and return its record."""
    digest = hashlib.sha256()
    with source.open("rb") as reading, (directory / source.name).open("wb") as writing:
        while block := reading.read(_BLOCK):
            writing.write(block)
            digest.update(block)
            advance(len(block))
        writing.flush()
        os.fsync(writing.fileno())
        return FileRecord(writing.tell(), digest.hexdigest())


def write_text(directory: Path, name: str, text: str) -> None:
    with (directory / name).open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def require_space(directory: Path, needed: int) -> None:
    """Refuse before the first byte what would fill the disk."""
    free = shutil.disk_usage(directory).free
    if needed > free:
        raise PreparationError(
            Problem.NO_SPACE,
            f"The prepared model needs {gigabytes(needed)} in {directory.parent}, where {gigabytes(free)} are free. "
            "Free some space, or move the state directory (SIGNALBOX_STATE_DIR).",
        )


def require_memory(needed: int, precision: Precision) -> None:
    """Refuse what no worker on this machine could load."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > memory * _MEMORY_SHARE:
        advice = (
            " Add it with `--precision native` (slow on a CPU), or take a smaller model."
            if precision == "float32"
            else " Take a smaller model or a stronger quantization."
        )
        raise PreparationError(
            Problem.TOO_LARGE,
            f"The weights take {gigabytes(needed)} as {precision}, and this machine has {gigabytes(memory)}.{advice}",
        )


def gigabytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB"
