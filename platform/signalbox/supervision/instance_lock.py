"""One supervisor for each state directory."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


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
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 32).decode() or "unknown"
            os.close(descriptor)
            raise AlreadyRunningError(
                f"Signalbox runs on {self._path.parent} already (process {holder.strip()}). Stop it first, or set "
                "SIGNALBOX_STATE_DIR and SIGNALBOX_PORT for a second installation."
            ) from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        self._descriptor = descriptor
