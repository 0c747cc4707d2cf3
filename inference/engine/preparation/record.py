"""``signalbox.json``: what a prepared model directory holds, and whether it still does.

It is the last file written, so a directory that has it was prepared to the end. Reading it needs
neither MLX nor Django.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from inference.engine.preparation.problems import PreparationError, Problem
from inference.engine.preparation.progress import Progress, unreported

RECORD_NAME = "signalbox.json"
_BLOCK = 1 << 20

#: ``native`` keeps the weights as the source has them, ``float32`` widens or dequantizes them.
Precision = Literal["native", "float32"]


class FileRecord(msgspec.Struct, frozen=True):
    """One file of a prepared model."""

    size_bytes: int
    sha256: str


class ModelRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What was prepared, from what.

    ``quantization`` describes the weights as they lie there ("" if they are not quantized), ``dtype`` the
    numbers that flow between the layers. ``eos_token_ids`` end a generation; ``vocab_size`` is the
    number of logits. ``source_checksum`` identifies the source's content, so that preparing
    it again is known to change nothing.
    """

    format: Literal[1] = 1
    name: str
    architecture: str
    context_length: int
    vocab_size: int
    eos_token_ids: list[int]
    has_chat_template: bool
    quantization: str
    dtype: str
    precision: Precision
    source: str
    source_checksum: str
    files: dict[str, FileRecord]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files.values())

    @property
    def checksum(self) -> str:
        """SHA-256 over the names and checksums of the files."""
        lines = "".join(f"{file.sha256}  {name}\n" for name, file in sorted(self.files.items()))
        return hashlib.sha256(lines.encode()).hexdigest()


@dataclass(frozen=True)
class PreparedModel:
    """A directory from which a worker can load, and its record."""

    directory: Path
    record: ModelRecord


def read_prepared(directory: Path) -> PreparedModel:
    """The prepared model in ``directory``.

    Raises ``PreparationError`` when there is none, or when its record is damaged.
    """
    try:
        content = (directory / RECORD_NAME).read_bytes()
    except FileNotFoundError:
        raise PreparationError(
            Problem.NOT_FOUND, f"{directory} holds no prepared model. Prepare one with `manage.py model add`."
        ) from None
    try:
        return PreparedModel(directory, msgspec.json.decode(content, type=ModelRecord))
    except msgspec.MsgspecError as damage:
        raise PreparationError(
            Problem.CORRUPT,
            f"{directory / RECORD_NAME} is damaged ({damage}). Remove the directory and add the model again.",
        ) from None


def write_record(directory: Path, record: ModelRecord) -> None:
    content = msgspec.json.format(msgspec.json.encode(record), indent=2)
    with (directory / RECORD_NAME).open("wb") as file:
        file.write(content + b"\n")
        file.flush()
        os.fsync(file.fileno())


def verify(prepared: PreparedModel, *, contents: bool = False, progress: Progress = unreported) -> None:
    """See that every file is there in its size and, with ``contents``, that its bytes are those written.

    Raises ``PreparationError`` naming the first file that differs.
    """
    with progress(f"Verifying {prepared.record.name}", prepared.record.size_bytes) as advance:
        for name, expected in prepared.record.files.items():
            path = prepared.directory / name
            if not path.is_file():
                raise _damaged(prepared, f"{name} is missing")
            if path.stat().st_size != expected.size_bytes:
                raise _damaged(
                    prepared, f"{name} has {path.stat().st_size} bytes instead of {expected.size_bytes}"
                )
            if contents:
                digest = hashlib.sha256()
                with path.open("rb") as file:
                    while block := file.read(_BLOCK):
                        digest.update(block)
                        advance(len(block))
                if digest.hexdigest() != expected.sha256:
                    raise _damaged(prepared, f"{name} does not have the checksum that was recorded")


def _damaged(prepared: PreparedModel, what: str) -> PreparationError:
    return PreparationError(
        Problem.CORRUPT,
        f"The prepared model {prepared.record.name} is damaged: {what}. Remove it with "
        f"`manage.py model remove {prepared.record.name}` and add it again.",
    )
