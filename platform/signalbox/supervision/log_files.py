"""What the processes write, on the console with their name before it, and in a file each."""

from __future__ import annotations

import errno
import io
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import Final

#: Size at which a log is put aside. Old ones are deleted by the retention task.
ROTATE_BYTES = 10 * 1024 * 1024
#: How long a log that could not be written is left alone before it is tried again.
RETRY_S: Final = 1.0
_NAME_WIDTH = 8
_NO_ROOM: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class LogFile:
    """One process's log: ``<name>.log``, and older parts as ``<name>.<when it was put aside>.log``.

    Lines that cannot be written, on a full disk say, are left out and counted: the process that they come from must
    never wait for room. ``say`` is told when that begins and when it is over. Raises ``OSError`` when it cannot be
    opened at first.
    """

    def __init__(self, directory: Path, name: str, say: Callable[[str], None]) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path = directory / f"{name}.log"
        self._name = name
        self._say = say
        self._file: FileIO | None = self._opened()
        self._left_out = 0
        self._try_again_at = 0.0

    def write(self, line: bytes) -> None:
        """Append ``line``, or leave it out."""
        if self._left_out and time.monotonic() < self._try_again_at:
            self._left_out += 1
            return
        try:
            self._append(self._gap() + line)
        except OSError as error:
            self._leave_out(error)
        else:
            self._caught_up()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _append(self, data: bytes) -> None:
        if self._file is None:
            self._file = self._opened()
        if self._file.tell() >= ROTATE_BYTES:
            self._file.close()
            self._file = None
            when = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
            self.path.rename(self.path.with_name(f"{self.path.stem}.{when}.log"))
            self._file = self._opened()
        while data:
            # The last bytes of a disk are taken although the rest of the line finds no room.
            data = data[self._file.write(data) :]

    def _opened(self) -> FileIO:
        return self.path.open("ab", buffering=0)

    def _gap(self) -> bytes:
        """What is to stand in the log where lines are missing. The last one may have been torn."""
        return b"\n(%d lines could not be written here)\n" % self._left_out if self._left_out else b""

    def _leave_out(self, error: OSError) -> None:
        if not self._left_out:
            self._say(
                f"! {self.path} cannot be written: {error.strerror}. {self._name} goes on; its lines are left out "
                "of the log until they can be written."
            )
        self._left_out += 1
        self._try_again_at = time.monotonic() + RETRY_S

    def _caught_up(self) -> None:
        if self._left_out:
            self._say(f"! {self.path} is written again; {self._left_out} lines are missing from it.")
            self._left_out = 0


class Console:
    """The terminal, shared by the supervisor and all that it runs. Goes quiet when nobody is there to read."""

    def __init__(self) -> None:
        self._broken = False
        self.is_terminal = sys.stdout.isatty()
        if isinstance(sys.stdout, io.TextIOWrapper):
            # A terminal of another character set gets question marks, not an error.
            sys.stdout.reconfigure(errors="replace")

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
        except OSError as error:
            # The terminal was closed or the pipe's reader is gone: the log files go on. A full disk under a redirected
            # output may have room again for the next line.
            self._broken = error.errno not in _NO_ROOM
