"""The web server as a process of its own, and raw sockets to it."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

from signalbox.configuration import ROOT
from tests.fixtures.live_stack import free_port
from tests.fixtures.processes import ManagedProcess

DEADLINE_S = 60.0


class Server:
    """A running server process and what it has written."""

    def __init__(self, directory: Path, *, stalled_s: float) -> None:
        self.port = free_port()
        self.process = ManagedProcess(
            "server",
            [sys.executable, "-m", "tests.signalbox.serving_process", str(self.port), str(stalled_s)],
            env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'platform'}"},
            cwd=ROOT,
            log=directory / "server.log",
            ready=self._listens,
        )

    def _listens(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True

    def connect(
        self, request: str, *, receive_buffer: int | None = None, send_buffer: int | None = None
    ) -> socket.socket:
        connection = socket.socket()
        if send_buffer:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        if receive_buffer:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.settimeout(DEADLINE_S)
        connection.connect(("127.0.0.1", self.port))
        connection.sendall(request.encode())
        return connection

    @property
    def written(self) -> str:
        return self.process.log.read_text()

    def wait_for(self, text: str) -> None:
        self.process.wait_for(text, DEADLINE_S)


def running(directory: Path) -> Iterator[Server]:
    server = Server(directory, stalled_s=1.5)
    server.process.start()
    yield server
    server.process.kill()


def get(path: str) -> str:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"


def read_to_end(connection: socket.socket) -> bytes:
    received = b""
    while block := connection.recv(65_536):
        received += block
    return received
