"""One supervisor for each state directory."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Final

#: Whoever only asks holds the lock for an instant: that must not look like a second supervisor.
_TRIES: Final = 5
_TRY_AGAIN_S: Final = 0.02


class AlreadyRunningError(RuntimeError):
    """Another supervisor runs on this state directory; the message names it."""


class InstanceLock:
    """Held from ``acquire`` until the process ends, by whatever way: the kernel releases it."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / "up.lock"
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Raises ``AlreadyRunningError`` when another process holds the lock."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        for _ in range(_TRIES):
            if _locked(descriptor, fcntl.LOCK_EX):
                os.ftruncate(descriptor, 0)
                os.write(descriptor, f"{os.getpid()}\n".encode())
                self._descriptor = descriptor
                return
            time.sleep(_TRY_AGAIN_S)
        holder = _written(descriptor)
        os.close(descriptor)
        raise self._already_running(holder)

    def holder(self) -> int | None:
        """The process that holds the lock, ``None`` when none does."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            return None if _locked(descriptor, fcntl.LOCK_SH) else _written(descriptor)
        finally:
            os.close(descriptor)

    def refuse_a_second(self) -> None:
        """Raises ``AlreadyRunningError`` when a process holds the lock; takes nothing."""
        holder = self.holder()
        if holder is not None:
            raise self._already_running(holder)

    def _already_running(self, holder: int) -> AlreadyRunningError:
        return AlreadyRunningError(
            f"Signalbox runs on {self._path.parent} already (process {holder}). Stop it first, or set "
            "SIGNALBOX_STATE_DIR and SIGNALBOX_PORT for a second installation."
        )


def _locked(descriptor: int, mode: int) -> bool:
    try:
        fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _written(descriptor: int) -> int:
    """The number of the process that holds the lock; 0 in the instant before it has written it."""
    return int(os.pread(descriptor, 32, 0).strip() or 0)
