"""One process of the installation, as the supervisor sees it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from signalbox.configuration import ROOT
from signalbox.supervision import launcher
from signalbox.supervision.log_files import Console, LogFile

#: Longest line that is kept whole.
_LINE_BYTES = 256 * 1024
_KILLED_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """What to run and how to treat it.

    ``ready`` tells whether it serves. ``drain_s`` is how long it may take to end when asked to; ``orphan_signal``
    is what it gets when the supervisor itself is gone; what it writes is shown ``on_console`` as well as logged,
    except, on a terminal, lines that hold ``not_on_terminal``.
    """

    name: str
    role: str
    model: str | None = None
    command: list[str]
    ready: Callable[[], Awaitable[bool]]
    drain_s: float
    ready_s: float = 60.0
    orphan_signal: int = signal.SIGKILL
    environment: dict[str, str] = field(default_factory=dict)
    on_console: bool = True
    not_on_terminal: str | None = None


class Child:
    """A running process of a ``ProcessSpec``, its output shown and logged."""

    def __init__(self, spec: ProcessSpec, console: Console, log: LogFile) -> None:
        self.spec = spec
        self._console = console
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._output: asyncio.Task[None] | None = None
        self._started = 0.0
        #: Unix seconds of the last start.
        self.since = 0.0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def lived_s(self) -> float:
        return time.monotonic() - self._started

    async def start(self) -> None:
        """Start it, in a session of its own so that the terminal's Ctrl-C reaches the supervisor only."""
        settings = [f"{name}={value}" for name, value in self.spec.environment.items()]
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", launcher.__file__),
            *(str(os.getpid()), str(int(self.spec.orphan_signal)), *settings, "--", *self.spec.command),
            cwd=ROOT,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            limit=_LINE_BYTES,
        )
        self._started, self.since = time.monotonic(), time.time()
        self._output = asyncio.create_task(self._copy_output(self._process))

    async def wait(self) -> int:
        """Its exit status, once it has ended and all that it wrote was shown."""
        if self._process is None or self._output is None:
            raise RuntimeError(f"{self.spec.name} was not started")
        status = await self._process.wait()
        await self._output
        return status

    async def stop(self) -> bool:
        """Ask it to end and wait; kill it when it takes longer than it may. Whether it ended by itself."""
        if not self.running:
            return True
        self.signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self.wait(), self.spec.drain_s)
        except TimeoutError:
            self.signal(signal.SIGKILL)
            await asyncio.wait_for(self.wait(), _KILLED_S)
            return False
        return True

    def signal(self, number: int) -> None:
        if self._process is not None and self.running:
            self._process.send_signal(number)

    async def _copy_output(self, process: asyncio.subprocess.Process) -> None:
        stream = process.stdout
        if stream is None:
            return
        while True:
            try:
                line = await stream.readline()
            except ValueError:
                # A line without end: what has come is dropped, what follows is shown.
                line = b"(a line longer than 256 KiB was left out)\n"
            if not line:
                return
            self._log.write(line)
            text = line.decode(errors="replace").rstrip("\n")
            if self.spec.on_console and not self._kept_from_terminal(text):
                self._console.line(self.spec.name, text)

    def _kept_from_terminal(self, text: str) -> bool:
        """A person watches for what happens to the site; what it answers, line by line, would scroll that away."""
        mark = self.spec.not_on_terminal
        return mark is not None and self._console.is_terminal and mark in text


def describe_status(status: int) -> str:
    """An exit status in words."""
    if status >= 0:
        return f"status {status}"
    return f"signal {signal.Signals(-status).name}"
