"""The web server itself, as a process, around an application that sends as much as it may."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode
from websockets.sync.client import connect

from accounts import key_text
from tests.signalbox.web_server import DEADLINE_S, Server, get, read_to_end, running

_MIB = 1024 * 1024
_UPGRADE = (
    "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    "Sec-WebSocket-Protocol: signalbox.v1, key.sb_secret\r\n\r\n"
)


def upgrade(path: str) -> str:
    return _UPGRADE.format(path=path if "?" in path else f"{path}?key=sb_secret")


def client_frame(payload: bytes) -> bytes:
    """A text frame as clients send them, under a mask of zeros."""
    length = len(payload)
    size = bytes([0x80 | length]) if length < 126 else b"\xff" + length.to_bytes(8, "big")
    return b"\x81" + size + bytes(4) + payload


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that stays: do not stop it."""
    yield from running(tmp_path_factory.mktemp("server"))


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    """A server of the test's own, to stop."""
    yield from running(tmp_path)


def test_connections_that_come_at_once_wait_their_turn_while_the_server_is_at_something_else(
    own_server: Server,
) -> None:
    os.kill(own_server.process.pid, signal.SIGSTOP)
    try:
        with ExitStack() as waiting:
            for _ in range(100):  # macOS lets no more than 128 wait
                waiting.enter_context(socket.create_connection(("127.0.0.1", own_server.port), timeout=10))
    finally:
        os.kill(own_server.process.pid, signal.SIGCONT)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("request_text", "path"), [(get("/endless"), "/endless"), (upgrade("/flood"), "/flood")]
)
def test_a_client_that_never_reads_is_cut_and_costs_no_memory(
    server: Server, request_text: str, path: str
) -> None:
    memory = psutil.Process(server.process.pid).memory_info
    before = memory().rss
    silent = [server.connect(request_text, receive_buffer=4096) for _ in range(4)]
    largest = before
    deadline = time.monotonic() + DEADLINE_S
    while server.written.count(f"ended {path} slow_reader") < len(silent):
        largest = max(largest, memory().rss)
        assert time.monotonic() < deadline, server.process.tail()
        time.sleep(0.02)
    # Four connections, each with at most 256 KiB and one message unsent.
    assert largest - before < 8 * _MIB
    for connection in silent:
        connection.close()


@pytest.mark.slow
@pytest.mark.parametrize("frame", [b"x", b"x" * 65_536])
def test_a_client_that_sends_faster_than_its_frames_are_taken_costs_no_memory_and_loses_nothing(
    server: Server, tmp_path: Path, frame: bytes
) -> None:
    awake = tmp_path / "awake"
    memory = psutil.Process(server.process.pid).memory_info
    before = memory().rss
    # Small, or the system holds a million one-byte frames back that the server has to take afterwards.
    connection = server.connect(upgrade(f"/deaf?{awake}"), send_buffer=65_536)
    assert b"101" in connection.recv(1024)
    connection.settimeout(3)
    sent, message = 0, client_frame(frame) * max(1, 65_536 // len(frame) // 8)
    frames_each = len(message) // len(client_frame(frame))
    rest = b""
    try:
        while sent < 3000:  # some 200 MB, or 25 million one-byte frames
            rest = message
            while rest:
                rest = rest[connection.send(rest) :]
            sent += 1
    except TimeoutError:
        pass
    assert sent < 3000, "the server read on"
    assert memory().rss - before < 8 * _MIB
    awake.touch()
    connection.settimeout(DEADLINE_S)
    connection.sendall(rest + client_frame(b"close"))
    sent += bool(rest)
    messages = sent * frames_each
    server.wait_for(f"took {messages + 1} {messages * len(frame) + 5}")
    # The client does not answer the close, and is cut a second later: by then the server has looked at the application.
    closing = b""
    with suppress(ConnectionResetError):
        while block := connection.recv(1024):
            closing += block
    assert closing == b"\x88\x02\x03\xe8"
    server.wait_for("WEBSOCKET /deaf disconnected")
    assert "Exception inside application" not in server.written


@pytest.mark.parametrize("protocol", ["signalbox.v1, k\u00e9y", "\u00ff"])
def test_a_socket_protocol_that_is_no_ascii_is_a_bad_request(server: Server, protocol: str) -> None:
    request = upgrade("/silent").replace("signalbox.v1, key.sb_secret", protocol)
    connection = server.connect(request)
    assert connection.recv(1024).startswith(b"HTTP/1.1 400 ")
    assert "Traceback" not in server.written


def test_a_client_that_reads_slowly_is_waited_for(server: Server) -> None:
    with server.connect(get("/endless"), receive_buffer=4096) as connection:
        received = 0
        started = time.monotonic()
        while time.monotonic() - started < 4:  # far longer than a stalled connection is left alone
            received += len(connection.recv(16_384))
            time.sleep(0.02)
    assert received > 0
    server.wait_for("ended /endless client")


def test_a_client_that_hangs_up_is_told_apart_from_one_that_was_cut(server: Server) -> None:
    with server.connect(get("/hang")) as connection:
        assert connection.recv(4096)
    server.wait_for("ended /hang client")


def test_a_body_over_the_limit_is_refused_in_the_apis_own_shape_whether_its_length_is_told_or_not(
    server: Server,
) -> None:
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    body = "x" * 1_000_001
    told = server.connect(f"{head}Content-Length: {len(body)}\r\n\r\n{body}")
    untold = server.connect(f"{head}Transfer-Encoding: chunked\r\n\r\n{len(body):x}\r\n{body}\r\n0\r\n\r\n")
    for connection in (told, untold):
        answer = read_to_end(connection)
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert b'"code": "request_too_large"' in answer


def test_a_body_at_the_limit_is_let_through(server: Server) -> None:
    body = "x" * 1_000_000
    request = f"POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    assert read_to_end(server.connect(request)).startswith(b"HTTP/1.1 200 ")


@pytest.mark.slow
def test_sigterm_lets_answers_under_way_end_takes_no_new_ones_and_cuts_what_does_not_end(
    own_server: Server,
) -> None:
    ending, hanging = own_server.connect(get("/slow")), own_server.connect(get("/hang"))
    assert b"first" in ending.recv(4096)
    assert b"first" in hanging.recv(4096)
    with connect(f"ws://127.0.0.1:{own_server.port}/silent") as chat:
        own_server.process.send_signal(signal.SIGTERM)
        with pytest.raises(ConnectionClosed) as closed:
            chat.recv(timeout=DEADLINE_S)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == CloseCode.SERVICE_RESTART
    with pytest.raises(ConnectionError):
        own_server.connect(get("/page"))
    assert b"last" in read_to_end(ending)
    assert own_server.process.wait() == 0
    assert "ended /hang draining" in own_server.written
    assert "ended /silent draining" in own_server.written
    assert "ended /slow" not in own_server.written


@pytest.mark.slow
def test_a_second_sigterm_waits_for_nothing(own_server: Server) -> None:
    hanging = own_server.connect(get("/hang"))
    assert b"first" in hanging.recv(4096)
    own_server.process.send_signal(signal.SIGTERM)
    own_server.process.send_signal(signal.SIGTERM)
    assert own_server.process.wait() == 0


def test_a11_access_logs_hold_neither_query_strings_nor_socket_protocols(server: Server) -> None:
    request = "GET /page?key=sb_secret HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    read_to_end(server.connect(f"{request}Authorization: Bearer sb_secret\r\n\r\n"))
    chat = server.connect(upgrade("/socket"))
    assert b"101" in chat.recv(64)
    server.wait_for("WEBSOCKET /socket connected")
    assert "GET /page 200" in server.written
    assert "sb_secret" not in server.written


def test_a11_a_key_in_a_path_is_its_prefix_in_every_log(server: Server) -> None:
    key = str(key_text.draw())
    prefix, _, secret = key.rpartition("_")
    read_to_end(server.connect(f"GET /page/{key} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"))
    chat = server.connect(upgrade(f"/socket/{key}"))
    assert b"101" in chat.recv(64)
    read_to_end(server.connect(get(f"/fault/{key}").replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n")))
    server.wait_for(f"WEBSOCKET /socket/{prefix}_[hidden] connected")
    server.wait_for(f"GET /page/{prefix}_[hidden] 200")
    server.wait_for("RuntimeError: /fault/")
    assert secret not in server.written


def test_a_client_cannot_choose_the_root_path(server: Server) -> None:
    request = "GET /page HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nDaphne-Root-Path: /evil\r\n\r\n"
    assert read_to_end(server.connect(request)).startswith(b"HTTP/1.1 200 ")


def test_a_taken_port_is_one_line_and_status_1(server: Server, tmp_path: Path) -> None:
    (tmp_path / "second").mkdir()
    second = Server(tmp_path / "second", stalled_s=1)
    second.port = server.port
    second.process.command[-2] = str(server.port)
    second.process.start(wait=False)
    assert second.process.wait() == 1
    assert "in use" in second.written
