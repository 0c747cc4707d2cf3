"""Secrets that live outside the database: one file each, mode 600, made when first needed."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from signalbox.configuration import configuration
from signalbox.state_directory import StateDirectoryError, unusable


def read_or_create(name: str, nbytes: int = 32) -> str:
    """The secret ``name`` as URL-safe text; made with ``nbytes`` random bytes when it is not there.

    Several processes may ask at once: the file is linked into place whole, and the first one wins. Raises
    ``StateDirectoryError`` when it can be neither read nor made.
    """
    try:
        return read(name)
    except FileNotFoundError:
        create(name, secrets.token_urlsafe(nbytes))
    return read(name)


def read(name: str) -> str:
    """The secret ``name``, which is there. Raises ``FileNotFoundError``, and ``StateDirectoryError`` as above."""
    path = configuration().secrets_dir / name
    try:
        secret = path.read_text().strip()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise unusable("the secret", path, "read", error) from error
    except UnicodeDecodeError:
        secret = ""
    if not secret:
        raise StateDirectoryError(f"The secret {path} holds no text. Restore it from your backup.")
    return secret


def create(name: str, text: str) -> None:
    """Write ``text`` as the secret ``name``, unless that is there. Raises ``StateDirectoryError`` when it cannot."""
    path = configuration().secrets_dir / name
    try:
        _create(path, text)
    except OSError as error:
        raise unusable("the secret", path, "made", error) from error


def _create(path: Path, text: str) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            path.hardlink_to(draft)
        except FileExistsError:
            return
    finally:
        draft.unlink()
