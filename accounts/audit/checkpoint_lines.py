"""Checkpoints as they are kept outside of the database: what is signed and the signature, as a line of JSON each.

A file of them only grows: its last line is the newest checkpoint.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from accounts.audit.canonical import canonical_json, utc_text
from accounts.models import AuditCheckpoint

_FORMAT: Final = 1
_FIELDS: Final = frozenset({"checkpoint", "sequence", "hash", "at", "key", "signature"})
_HEX: Final = re.compile(r"[0-9a-f]+")
#: No chain's events are numbered so high: databases have no larger numbers.
NO_EVENT: Final = 2**63
#: Of a file's end, what is looked at: a line is far shorter.
END_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class SignedCheckpoint:
    """A checkpoint as it is kept outside: at ``at`` the chain's last event was ``sequence``, and its hash ``hash``."""

    at: datetime
    sequence: int
    hash: str
    key_id: str
    signature: str


Checkpoint = AuditCheckpoint | SignedCheckpoint


class CheckpointFileError(ValueError):
    """A file of checkpoints cannot be read, or holds something else. The message names the line."""


def statement(checkpoint: Checkpoint) -> bytes:
    """What is signed."""
    return canonical_json(_stated(checkpoint))


def line(checkpoint: Checkpoint) -> str:
    """The checkpoint as it is kept outside, without the line's end."""
    return canonical_json(_stated(checkpoint) | {"signature": checkpoint.signature}).decode()


def parse(text: str | bytes) -> SignedCheckpoint:
    """The checkpoint that ``line`` wrote, in whatever spacing. Raises ``CheckpointFileError`` for what is none."""
    try:
        fields = json.loads(text)
        if not isinstance(fields, dict) or fields.keys() != _FIELDS or fields["checkpoint"] != _FORMAT:
            raise ValueError("it has other fields")
        at, sequence = datetime.fromisoformat(fields["at"]), fields["sequence"]
        if type(sequence) is not int or not 0 <= sequence < NO_EVENT or utc_text(at) != fields["at"]:
            raise ValueError("its place or its time is none")
        texts = [fields["hash"], fields["key"], fields["signature"]]
        if not all(isinstance(value, str) and _HEX.fullmatch(value) for value in texts):
            raise ValueError("its hash, key or signature is none")
    except (ValueError, TypeError, OverflowError) as error:
        raise CheckpointFileError(f"This is no checkpoint: {error}.") from error
    return SignedCheckpoint(at, sequence, *texts)


def read_file(path: Path) -> list[SignedCheckpoint]:
    """The checkpoints of a file, in its order; empty lines are passed over. Raises ``CheckpointFileError``."""
    found = []
    for one in _lines_of(path):
        if isinstance(one, CheckpointFileError):
            raise one
        found.append(one)
    return found


def read_what_can_be(path: Path) -> tuple[list[SignedCheckpoint], CheckpointFileError | None]:
    """The checkpoints of a file, and what is wrong with the first line that is none. Raises ``CheckpointFileError``.

    A line that somebody has spoiled is no reason not to look at the others. Nothing is wrong with a last one that was
    begun: it is being written, or whoever continues the file completes it.
    """
    found: list[SignedCheckpoint] = []
    problem: CheckpointFileError | None = None
    for one in _lines_of(path, may_be_begun=True):
        if isinstance(one, CheckpointFileError):
            problem = problem or one
        else:
            found.append(one)
    return found, problem


def last_of_file(path: Path) -> SignedCheckpoint | None:
    """The last whole line of a file of checkpoints; None: there is no such file, or that line is no checkpoint."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - END_BYTES))
            last, _ = last_in(file.read())
    except (FileNotFoundError, CheckpointFileError):
        # Whoever continues the file says what is wrong with its end.
        return None
    return last


def last_in(end: bytes) -> tuple[SignedCheckpoint | None, bytes]:
    """The last whole line in a file's ``END_BYTES``, empty ones passed over, and what was begun behind it.

    Raises ``CheckpointFileError`` where that line is no checkpoint.
    """
    *lines, begun = end.split(b"\n")
    whole = [one for one in lines if one.strip()]
    return (parse(whole[-1]) if whole else None), begun


def _lines_of(path: Path, *, may_be_begun: bool = False) -> Iterator[SignedCheckpoint | CheckpointFileError]:
    """What each line of a file is, or why it is no checkpoint. Raises ``CheckpointFileError``.

    ``may_be_begun``: a last line that has no end is passed over where it is no checkpoint yet.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointFileError(f"The checkpoints in {path} cannot be read: {error.strerror}.") from error
    lines = content.splitlines()
    begun = len(lines) if may_be_begun and not content.endswith(b"\n") else 0
    for number, text in enumerate(lines, start=1):
        if text.strip():
            try:
                yield parse(text)
            except CheckpointFileError as error:
                if number != begun:
                    yield CheckpointFileError(f"{path}, line {number}: {error}")


def _stated(checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        "checkpoint": _FORMAT,
        "sequence": checkpoint.sequence,
        "hash": checkpoint.hash,
        "at": utc_text(checkpoint.at),
        "key": checkpoint.key_id,
    }
