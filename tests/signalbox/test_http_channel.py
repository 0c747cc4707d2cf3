"""The edges of an HTTP connection, over raw sockets: heads that cannot be taken, and clients that half-close."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPResponse

import pytest

from tests.signalbox.web_server import DEADLINE_S, Server, get, read_to_end, running

_CLOSE = "Connection: close\r\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from running(tmp_path_factory.mktemp("server"))


def half_closed(server: Server, request: str) -> socket.socket:
    connection = server.connect(request)
    connection.shutdown(socket.SHUT_WR)
    return connection


def answer(connection: socket.socket, method: str = "GET") -> tuple[int, bytes]:
    """The final status and the body; interim answers are skipped, as every client must."""
    response = HTTPResponse(connection, method=method)
    response.begin()
    return response.status, response.read()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "body"),
    [("/page", b"last"), ("/later", b"last"), ("/slow", b"first last")],
)
def test_a_client_that_half_closes_gets_its_answer_and_then_the_end(
    server: Server, path: str, body: bytes
) -> None:
    connection = half_closed(server, get(path))
    assert answer(connection) == (200, body)
    assert connection.recv(1) == b""


def test_a_stream_of_events_goes_on_for_a_client_that_half_closes(server: Server) -> None:
    connection = server.connect(get("/events"))
    assert b"first" in connection.recv(4096)
    connection.shutdown(socket.SHUT_WR)
    received = read_to_end(connection)
    assert b": half-closed\n" in received
    assert b"last" in received


def test_requests_sent_ahead_are_all_answered_after_a_half_close(server: Server) -> None:
    received = read_to_end(half_closed(server, get("/later") + get("/later")))
    assert received.count(b"HTTP/1.1 200 OK") == 2


def test_a_body_that_its_client_half_closed_behind_is_read(server: Server) -> None:
    request = "POST /later HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}"
    assert answer(half_closed(server, request), "POST") == (200, b"last")


def test_an_unfinished_request_ends_with_what_its_client_sends(server: Server) -> None:
    request = "POST /page HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\n{}"
    assert read_to_end(half_closed(server, request)) == b""
    assert read_to_end(half_closed(server, "GET /page HT")) == b""
    assert read_to_end(half_closed(server, "")) == b""


@pytest.mark.parametrize("path", ["/never", "/hang"])
def test_a_client_that_closes_before_or_in_its_answer_is_noticed(server: Server, path: str) -> None:
    ended = server.written.count(f"ended {path} client")
    with server.connect(get(path)) as connection:
        if path == "/hang":
            assert b"first" in connection.recv(4096)
    wait_for_another_end(server, path, ended)


def test_a_stream_of_events_ends_with_the_client_that_closes(server: Server) -> None:
    ended = server.written.count("ended /events client")
    with server.connect(get("/events")) as connection:
        assert b"first" in connection.recv(4096)
    wait_for_another_end(server, "/events", ended)


def test_an_http_1_0_client_that_half_closes_gets_what_is_answered_soon_and_else_its_end(
    server: Server,
) -> None:
    assert answer(half_closed(server, get("/later").replace("1.1", "1.0"))) == (200, b"last")
    ended = server.written.count("ended /never client")
    with half_closed(server, get("/never").replace("1.1", "1.0")):
        wait_for_another_end(server, "/never", ended)


def wait_for_another_end(server: Server, path: str, before: int) -> None:
    """The application writes it when its client's end reaches it while it still has something to say."""
    deadline = time.monotonic() + DEADLINE_S
    while server.written.count(f"ended {path} client") == before:
        assert time.monotonic() < deadline, server.process.tail()
        time.sleep(0.02)


_LONG = "x" * 70_000


@pytest.mark.parametrize(
    ("head", "status", "code"),
    [
        (f"GET /page HTTP/1.1\r\nHost: localhost\r\nX-Long: {_LONG}\r\n\r\n", 431, "headers_too_large"),
        (f"GET /page HTTP/1.1\r\nX-Long: {_LONG}", 431, "headers_too_large"),
        (
            "GET /page HTTP/1.1\r\n" + "".join(f"X-{i}: {'x' * 700}\r\n" for i in range(100)) + "\r\n",
            431,
            "headers_too_large",
        ),
        (
            "GET /page HTTP/1.1\r\n" + "".join(f"X-{i}: x\r\n" for i in range(501)) + "\r\n",
            431,
            "headers_too_large",
        ),
        (f"GET /{_LONG} HTTP/1.1\r\nHost: localhost\r\n\r\n", 414, "request_line_too_long"),
        (f"GET /{_LONG}", 414, "request_line_too_long"),
        ("GET\r\n\r\n", 400, "malformed_request"),
        ("GET /page HTTP/1.1\r\nno colon\r\n\r\n", 400, "malformed_request"),
        ("POST /page HTTP/1.1\r\nContent-Length: x\r\n\r\n", 400, "malformed_request"),
    ],
)
def test_a_head_that_cannot_be_taken_is_refused_in_the_apis_own_shape(
    server: Server, head: str, status: int, code: str
) -> None:
    connection = server.connect(head)
    # What a client still sends must not cost it the answer.
    with suppress(BrokenPipeError):
        connection.sendall(b"y" * 300_000)
    response = HTTPResponse(connection)
    response.begin()
    assert response.status == status
    assert response.headers["Connection"] == "close"
    error = json.loads(response.read())["error"]
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", code, None)
    assert connection.recv(1) == b""
    server.wait_for(f"refused {status} {code}")


def test_the_largest_head_is_taken(server: Server) -> None:
    line, host = "GET /page HTTP/1.1", "Host: localhost"
    rest = 16 * 1024 - len(line) - len(host) - len("Connection: close") - len("X-Long: ")
    request = f"{line}\r\n{host}\r\n{_CLOSE}X-Long: {'x' * rest}\r\n\r\n"
    assert answer(server.connect(request)) == (200, b"last")


def test_a_refused_client_that_never_closes_is_cut(server: Server) -> None:
    connection = server.connect(f"GET /{_LONG}")
    with pytest.raises(ConnectionError):  # noqa: PT012 — any of these sends meets the reset
        while True:
            connection.sendall(b"y")
            time.sleep(0.05)
