"""What the processes write, on the console with their name before it, and in a file each."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

#: Size at which a log is put aside. Old ones are deleted by the retention task.
ROTATE_BYTES = 10 * 1024 * 1024
_NAME_WIDTH = 8


class LogFile:
    """One process's log: ``<name>.log``, and older parts as ``<name>.<when it was put aside>.log``."""

    def __init__(self, directory: Path, name: str) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path = directory / f"{name}.log"
        self._file = self.path.open("ab", buffering=0)

    def write(self, line: bytes) -> None:
        if self._file.tell() >= ROTATE_BYTES:
            self._file.close()
            when = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
            self.path.rename(self.path.with_name(f"{self.path.stem}.{when}.log"))
            self._file = self.path.open("ab", buffering=0)
        self._file.write(line)

    def close(self) -> None:
        self._file.close()


class Console:
    """The terminal, shared by the supervisor and all that it runs. Goes quiet when nobody is there to read."""

    def __init__(self) -> None:
        self._broken = False

    def say(self, text: str) -> None:
        """A line of the supervisor's own."""
        self._write(text)

    def line(self, name: str, line: str) -> None:
        """A line of a process."""
        self._write(f"{name:>{_NAME_WIDTH}} │ {line}")

    def _write(self, text: str) -> None:
        if self._broken:
            return
        try:
            print(text, flush=True)
        except (BrokenPipeError, OSError):
            # The terminal was closed or the pipe's reader is gone: the log files go on.
            self._broken = True
