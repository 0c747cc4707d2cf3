"""One attempt against real HTTPS servers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler

import pytest

from accounts.webhooks import sending
from accounts.webhooks.sending import Outcome, SendFailure, send
from tests.accounts.webhooks.conftest import Allow, Resolver
from tests.accounts.webhooks.receiver import HOST, OTHER_HOST, Receiver

HEADERS = {"webhook-id": "evt_1", "webhook-timestamp": "1700000000", "webhook-signature": "v1,c2ln"}
BODY = b'{"type":"budget.warning"}'


def test_a_message_arrives_as_it_was_signed(receiver: Receiver, allow: Allow) -> None:
    allow(HOST)
    assert send(receiver.url("/in?team=a"), HEADERS, BODY) == Outcome(204)
    [message] = receiver.received
    assert (message.path, message.body) == ("/in?team=a", BODY)
    assert HEADERS.items() <= message.headers.items()
    assert message.headers["content-type"] == "application/json"
    assert message.headers["host"] == f"{HOST}:{receiver.port}"


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_every_2xx_takes_it(receiver: Receiver, allow: Allow, status: int) -> None:
    allow(HOST)
    receiver.status = status
    assert send(receiver.url(), HEADERS, BODY) == Outcome(status)


@pytest.mark.parametrize("status", [400, 401, 404, 410, 429, 500, 503])
def test_every_other_answer_does_not(receiver: Receiver, allow: Allow, status: int) -> None:
    allow(HOST)
    receiver.status = status
    outcome = send(receiver.url(), HEADERS, BODY)
    assert (outcome.status, outcome.failure) == (status, SendFailure.NOT_TAKEN)
    assert str(status) in outcome.message


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed(receiver: Receiver, allow: Allow, status: int) -> None:
    allow(HOST)
    receiver.status = status
    receiver.headers = {"Location": receiver.url("/elsewhere")}
    outcome = send(receiver.url(), HEADERS, BODY)
    assert (outcome.status, outcome.failure) == (status, SendFailure.REDIRECTED)
    assert len(receiver.received) == 1


def test_a_host_whose_address_is_not_public_is_not_even_connected_to(receiver: Receiver) -> None:
    outcome = send(receiver.url(), HEADERS, BODY)
    assert outcome.failure is SendFailure.TARGET_REFUSED
    assert "127.0.0.1" in outcome.message
    assert send(receiver.url(host="127.0.0.1"), HEADERS, BODY).failure is SendFailure.TARGET_REFUSED
    assert receiver.connections == 0


def test_an_allowed_network_may_be_called_by_its_addresses(
    new_receiver: Callable[..., Receiver], allow: Allow
) -> None:
    allow("127.0.0.0/8")
    receiver = new_receiver("127.0.0.1")
    assert send(receiver.url(host="127.0.0.1"), HEADERS, BODY) == Outcome(204)


def test_a_name_that_moves_after_it_was_checked_gets_nothing(
    new_receiver: Callable[..., Receiver], resolver: Resolver, allow: Allow
) -> None:
    allow("127.0.0.1")
    checked = new_receiver(HOST)
    inside = new_receiver(HOST, address="127.0.0.2", port=checked.port)
    resolver.knows(HOST, ["127.0.0.1"], ["127.0.0.2"])
    assert send(checked.url(), HEADERS, BODY) == Outcome(204)
    assert len(checked.received) == 1
    assert resolver.asked == [HOST]
    assert send(checked.url(), HEADERS, BODY).failure is SendFailure.TARGET_REFUSED
    assert inside.connections == 0


def test_one_private_address_among_public_ones_refuses_them_all(
    receiver: Receiver, resolver: Resolver
) -> None:
    resolver.knows(HOST, ["93.184.216.34", "127.0.0.1"])
    assert send(receiver.url(), HEADERS, BODY).failure is SendFailure.TARGET_REFUSED
    assert receiver.connections == 0


def test_the_next_address_is_tried_where_one_refuses(
    receiver: Receiver, resolver: Resolver, allow: Allow
) -> None:
    allow("127.0.0.0/8")
    resolver.knows(HOST, ["127.0.0.3", "127.0.0.1"])
    assert send(receiver.url(), HEADERS, BODY) == Outcome(204)


def test_a_certificate_of_another_name_is_not_trusted(receiver: Receiver, allow: Allow) -> None:
    allow(OTHER_HOST)
    outcome = send(receiver.url(host=OTHER_HOST), HEADERS, BODY)
    assert outcome.failure is SendFailure.NOT_TRUSTED
    assert "certificate" in outcome.message
    assert receiver.received == []


def test_a_certificate_of_an_unknown_authority_is_not_trusted(
    receiver: Receiver, allow: Allow, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow(HOST)
    without = sending.configuration().model_copy(update={"webhook_ca_file": ""})
    monkeypatch.setattr(sending, "configuration", lambda: without)
    assert send(receiver.url(), HEADERS, BODY).failure is SendFailure.NOT_TRUSTED
    assert receiver.received == []


def test_a_file_of_authorities_that_is_missing_is_said(
    receiver: Receiver, allow: Allow, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow(HOST)
    missing = sending.configuration().model_copy(update={"webhook_ca_file": "/nonexistent/ca.pem"})
    monkeypatch.setattr(sending, "configuration", lambda: missing)
    outcome = send(receiver.url(), HEADERS, BODY)
    assert outcome.failure is SendFailure.NOT_TRUSTED
    assert "SIGNALBOX_WEBHOOK_CA_FILE" in outcome.message


def test_a_proxy_of_the_environment_is_not_used(
    receiver: Receiver, allow: Allow, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow(HOST)
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert send(receiver.url(), HEADERS, BODY) == Outcome(204)


def test_a_name_without_an_address_and_a_closed_port_are_told_apart(
    receiver: Receiver, resolver: Resolver, allow: Allow
) -> None:
    allow(HOST)
    assert send("https://nowhere.example.com/", HEADERS, BODY).failure is SendFailure.NOT_FOUND
    resolver.knows(HOST, ["127.0.0.3"])
    assert send(receiver.url(), HEADERS, BODY).failure is SendFailure.UNREACHABLE


def test_a_server_that_speaks_no_tls_and_one_that_speaks_no_http_are_failures(
    receiver: Receiver, allow: Allow
) -> None:
    allow(HOST)

    def no_http(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"SSH-2.0-OpenSSH_9.2\r\n")

    receiver.answer = no_http
    assert send(receiver.url(), HEADERS, BODY).failure is SendFailure.NO_ANSWER

    def hang_up(handler: BaseHTTPRequestHandler) -> None:
        handler.connection.close()

    receiver.answer = hang_up
    assert send(receiver.url(), HEADERS, BODY).failure is SendFailure.NO_ANSWER


def test_a_server_that_drips_its_answer_is_cut_off(
    receiver: Receiver, allow: Allow, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow(HOST)
    monkeypatch.setattr(sending, "LONGEST_ATTEMPT_S", 0.5)

    def drip(handler: BaseHTTPRequestHandler) -> None:
        # Each byte comes well within any wait for a single read; all of them never do.
        while True:
            handler.wfile.write(b"H")
            time.sleep(0.05)

    receiver.answer = drip
    outcome = send(receiver.url(), HEADERS, BODY)
    assert outcome == Outcome(None, SendFailure.TIMED_OUT, "No answer within 0.5 s.")


def test_an_answer_s_endless_head_is_not_read_to_its_end(receiver: Receiver, allow: Allow) -> None:
    allow(HOST)

    def flood(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
        for number in range(90):
            handler.wfile.write(b"X-%d: %s\r\n" % (number, b"a" * 4000))

    receiver.answer = flood
    assert send(receiver.url(), HEADERS, BODY).failure is SendFailure.NO_ANSWER


def test_a_resolver_that_does_not_answer_is_not_waited_for(
    resolver: Resolver, allow: Allow, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = threading.Event()
    monkeypatch.setattr(sending, "LONGEST_ATTEMPT_S", 0.3)

    def never_answer(*_: object, **__: object) -> list[object]:
        asked.wait(30)
        return []

    monkeypatch.setattr("socket.getaddrinfo", never_answer)
    try:
        assert send(f"https://{HOST}/", HEADERS, BODY).failure is SendFailure.TIMED_OUT
    finally:
        asked.set()
