"""What can stand in the way of set-up, and the one line that says so."""

from __future__ import annotations

import errno
import re
import shutil
import sysconfig
from pathlib import Path

#: What clients of package registries write when they cannot reach them.
_UNREACHABLE = re.compile(
    r"name resolution|NameResolutionError|Network is unreachable|NewConnectionError|Connection refused|timed out"
    r"|Max retries exceeded|ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ETIMEDOUT|ProxyError",
    re.IGNORECASE,
)
_NO_SPACE = re.compile(r"No space left on device|ENOSPC", re.IGNORECASE)
#: What pip writes where a locked version is not to be had: the index has none for this machine, or does not answer and
#: pip was told to try once only.
_NOT_THERE = re.compile(r"No matching distribution found for (\S+)")


class SetUpError(Exception):
    """Set-up cannot go on. The message says what happened and what to do."""


class ObstacleError(SetUpError):
    """A full disk, or a package registry out of reach: whoever tries it another way meets the same."""


def need_space(path: Path, megabytes: int, purpose: str) -> None:
    """Raise ``SetUpError`` unless the file system of ``path`` has room."""
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    free = shutil.disk_usage(existing).free // 1_000_000
    if free < megabytes:
        raise SetUpError(
            f"{purpose} needs {megabytes} MB of disk at {existing}; {free} MB are free. Make room and try again."
        )


def explain(what: str, output: str) -> SetUpError:
    """The reason of a failed command, read from what it wrote."""
    if _NO_SPACE.search(output):
        return ObstacleError(f"{what}: the disk is full. Make room and try again.")
    if _UNREACHABLE.search(output):
        return ObstacleError(
            f"{what}: the package registry cannot be reached. The first set-up needs a network; later ones do not. "
            "Check the connection, or the proxy and index settings of pip and npm, which are used as they are.\n"
            + _tail(output, 3)
        )
    if missed := _NOT_THERE.search(output):
        return SetUpError(
            f"{what}: the package registry cannot be reached, or has no {missed[1]} for Python "
            f"{sysconfig.get_python_version()} on {sysconfig.get_platform()}. Check the connection, and pip's proxy "
            "and index settings.\n" + _tail(output, 3)
        )
    return SetUpError(f"{what} failed:\n{_tail(output, 20)}")


def refused(error: OSError) -> SetUpError:
    """What the system refused to set-up itself: to write a file, most of all."""
    where = f" ({error.filename})" if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return SetUpError(f"the disk is full{where}. Make room and try again.")
    return SetUpError(f"the system refuses it: {error.strerror or error}{where}. Mend that and try again.")


def _tail(output: str, lines: int) -> str:
    return "\n".join(f"  {line}" for line in output.strip().splitlines()[-lines:])
