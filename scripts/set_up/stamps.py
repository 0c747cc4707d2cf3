"""What was done already, and from what: a step with an unchanged digest is not repeated."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path


def digest(paths: Iterable[Path], *further: str) -> str:
    """One digest of the files' names and contents and of ``further`` text. Directories count with all they hold."""
    sha = hashlib.sha256("\0".join(further).encode())
    for path in paths:
        files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        for file in files:
            sha.update(f"\0{file.relative_to(path.parent)}\0".encode())
            sha.update(file.read_bytes() if file.exists() else b"")
    return sha.hexdigest()


def done(stamp: Path, expected: str) -> bool:
    """Whether the step that writes ``stamp`` was completed with this digest."""
    return stamp.exists() and stamp.read_text().strip() == expected


def mark(stamp: Path, value: str) -> None:
    """Record that the step was completed with this digest."""
    stamp.parent.mkdir(parents=True, exist_ok=True)
    # In one step: whoever is killed here, or finds the disk full, leaves no half of it.
    draft = stamp.with_name(f"{stamp.name}.new")
    draft.write_text(value + "\n")
    draft.replace(stamp)
