"""What a full disk, or anything else that the system runs out of, does to the supervisor and its processes: nothing
that lasts. The limit on this process's file sizes stands in for the disk; what is written meets it as it meets one.
"""

from __future__ import annotations

import asyncio
import io
import os
import resource
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from signalbox.supervision import processes
from signalbox.supervision.child import ProcessSpec
from signalbox.supervision.log_files import Console
from signalbox.supervision.supervisor import StartError, Supervisor

_DEADLINE_S = 60.0
#: More than the pipe between a process and the supervisor takes, by far.
_MUCH = 2 * 1024 * 1024
#: Writes lines without end, at first as fast as they are taken. ``beats`` grows by a byte for every 64 KiB.
_CHATTY = f"""
import sys, time
from pathlib import Path
directory = Path(sys.argv[1])
(directory / "pid").write_text(str(__import__("os").getpid()))
written = 0
while True:
    for _ in range(64):
        print("x" * 1023, flush=True)
    written += 64 * 1024
    with (directory / "beats").open("ab") as beats:
        beats.write(b".")
    time.sleep(0.05 if written > {_MUCH} else 0)
"""


class Chatty:
    """A process that says much, and what it leaves behind in ``directory``."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.logs_dir = directory / "logs"

    @property
    def spec(self) -> ProcessSpec:
        async def started() -> bool:
            return self.beats > 0

        command = [sys.executable, "-c", _CHATTY, str(self.directory)]
        return replace(processes.celery(), name="chatty", command=command, ready=started, on_console=False)

    @property
    def beats(self) -> int:
        path = self.directory / "beats"
        return path.stat().st_size if path.exists() else 0

    @property
    def pid(self) -> int:
        return int((self.directory / "pid").read_text() or 0)

    @property
    def log(self) -> bytes:
        return (self.logs_dir / "chatty.log").read_bytes()


@pytest.fixture
def chatty(tmp_path: Path) -> Chatty:
    return Chatty(tmp_path)


class Terminal:
    """What was said on the terminal so far."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self._text = ""

    @property
    def text(self) -> str:
        self._text += self._capsys.readouterr().out
        return self._text


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(capsys)


@contextmanager
def limited(kind: int, soft: int) -> Iterator[Callable[[], None]]:
    """A limit on this process; what is yielded lifts it."""
    before = resource.getrlimit(kind)

    def lift() -> None:
        resource.setrlimit(kind, before)

    resource.setrlimit(kind, (soft, before[1]))
    try:
        yield lift
    finally:
        lift()


@asynccontextmanager
async def supervised(chatty: Chatty) -> AsyncIterator[None]:
    supervisor = Supervisor(Console(), chatty.logs_dir)
    try:
        await supervisor.start([chatty.spec])
        yield
    finally:
        await supervisor.stop()


def _lowest_free_descriptor() -> int:
    descriptor = os.dup(0)
    os.close(descriptor)
    return descriptor


async def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        await asyncio.sleep(0.02)


async def test_a_full_disk_stops_no_process_and_keeps_none_from_being_started_again(
    chatty: Chatty, terminal: Terminal
) -> None:
    with limited(resource.RLIMIT_FSIZE, 16 * 1024) as make_room:
        async with supervised(chatty):
            # It writes on although nobody can keep what it writes.
            await wait_until(lambda: chatty.beats * 64 * 1024 > _MUCH)
            assert len(chatty.log) == 16 * 1024
            assert terminal.text.count("chatty.log cannot be written: File too large") == 1

            killed = chatty.pid
            os.kill(killed, signal.SIGKILL)
            await wait_until(lambda: chatty.pid not in (0, killed))
            assert "chatty ended with signal SIGKILL" in terminal.text

            make_room()
            await wait_until(lambda: b"lines could not be written here" in chatty.log)
            await wait_until(lambda: len(chatty.log) > 64 * 1024)
    assert terminal.text.count("cannot be written") == 1
    assert terminal.text.count("chatty.log is written again") == 1
    # Whole lines follow the gap.
    assert set(chatty.log.partition(b"written here)\n")[2].split(b"\n")) == {b"x" * 1023, b""}


async def test_a_process_that_cannot_be_started_again_is_tried_until_it_can(
    chatty: Chatty, terminal: Terminal
) -> None:
    async with supervised(chatty):
        killed = chatty.pid
        with limited(resource.RLIMIT_NOFILE, _lowest_free_descriptor()):  # no pipe can be made for its output
            os.kill(killed, signal.SIGKILL)
            await wait_until(lambda: "chatty cannot be started: [Errno 24]" in terminal.text)
        await wait_until(lambda: chatty.pid not in (0, killed))


async def test_a_process_that_cannot_be_started_at_all_is_named(chatty: Chatty) -> None:
    chatty.logs_dir.mkdir()
    with (
        limited(resource.RLIMIT_NOFILE, _lowest_free_descriptor() + 1),  # enough for its log, and no more
        pytest.raises(StartError, match=r"chatty cannot be started: .*Too many open files"),
    ):
        async with supervised(chatty):
            pytest.fail("it was started")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_output_that_is_redirected_to_a_full_disk_goes_on_when_there_is_room(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    console = Console()
    full = io.TextIOWrapper(io.FileIO("/dev/full", "w"))
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", full)
        console.say("lost")
    console.say("seen")
    assert capsys.readouterr().out == "seen\n"


def test_a_terminal_of_another_character_set_ends_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="ascii"))
    Console().line("web", "größer")
    assert shown.getvalue() == b"     web ? gr??er\n"
