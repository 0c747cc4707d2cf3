"""The state directory as this process finds it: its own to use, or an error that says what is not, and why."""

from __future__ import annotations

import os
import pwd
from pathlib import Path


class StateDirectoryError(RuntimeError):
    """Something in the state directory cannot be used. The message says what, where, why, and what to do."""


def ensure_directory(path: Path, what: str) -> None:
    """Make ``path`` closed to others, unless it is there. Raises ``StateDirectoryError`` when it cannot be written.

    ``what`` names it in the message, as in "the state directory".
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except FileExistsError:
        raise StateDirectoryError(
            f"{what.capitalize()} {path} is not a directory. Move it away, or set SIGNALBOX_STATE_DIR to another."
        ) from None
    except OSError as error:
        raise unusable(what, path, "made", error) from error
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise unusable(what, path, "written")


def check_file(path: Path, what: str) -> None:
    """Raise ``StateDirectoryError`` when ``path`` is there and cannot be read and written."""
    if os.path.lexists(path) and not os.access(path, os.R_OK | os.W_OK):
        raise unusable(what, path, "read and written")


def unusable(what: str, path: Path, verb: str, error: OSError | None = None) -> StateDirectoryError:
    """``what`` at ``path`` cannot be ``verb`` (a participle), for the reason of ``error`` or for want of permission."""
    if error is not None and not isinstance(error, PermissionError):
        return StateDirectoryError(
            f"{what.capitalize()} {path} cannot be {verb}: {error.strerror}. Mend that, or set SIGNALBOX_STATE_DIR to "
            "another directory."
        )
    place = _first_there(path)
    return StateDirectoryError(
        f"{what.capitalize()} {path} cannot be {verb} by {_name(os.geteuid())}: {_owned(place)}. Run this as that "
        f"user, or as root: chown -R {_name(os.geteuid())} {place}; or set SIGNALBOX_STATE_DIR to another directory."
    )


def _first_there(path: Path) -> Path:
    """``path``, or what is above it and can be looked at: there somebody has to give permission."""
    for place in (path, *path.parents):
        try:
            place.lstat()
        except OSError:
            continue
        return place
    return path


def _owned(path: Path) -> str:
    status = path.lstat()
    return f"{path} is {_name(status.st_uid)}'s, mode {status.st_mode & 0o7777:03o}"


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)
