"""One attempt to hand a message over: one connection, to the address that was checked, five seconds for all of it.

No redirects, no proxies, no kept connections. TLS verifies the host's name, whatever its address. Of the answer the
status is read and nothing else: what a receiver writes does not get into the log.
"""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from ipaddress import ip_address
from typing import Any, Final

from accounts.webhooks.targets import Address, Target, TargetRefused, allowed_hosts, check, target_of
from signalbox.configuration import configuration

#: For an attempt as a whole, looking the name up included.
LONGEST_ATTEMPT_S: Final = 5.0
#: Of an answer's head; more is no answer.
_LONGEST_HEAD: Final = 64 * 1024
#: Of a host that are tried, in the resolver's order.
_MOST_ADDRESSES: Final = 4


class SendFailure(StrEnum):
    """Why a message was not taken: the same code in the log and the tests."""

    TARGET_REFUSED = "target_refused"
    NOT_FOUND = "not_found"
    TIMED_OUT = "timed_out"
    UNREACHABLE = "unreachable"
    NOT_TRUSTED = "not_trusted"
    NO_ANSWER = "no_answer"
    REDIRECTED = "redirected"
    NOT_TAKEN = "not_taken"
    NOT_SIGNED = "not_signed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an attempt: taken (``failure`` is None), or why not, in words too; the HTTP status if any."""

    status: int | None = None
    failure: SendFailure | None = None
    message: str = ""


class _Failed(Exception):
    def __init__(self, failure: SendFailure, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.outcome = Outcome(status, failure, message)


def send(url: str, headers: Mapping[str, str], body: bytes) -> Outcome:
    """POST ``body``, which is JSON, to ``url``. Any 2xx takes it. Never raises for what the receiver does or is.

    Touches no database: it may run on any thread.
    """
    deadline = _Deadline(LONGEST_ATTEMPT_S)
    try:
        try:
            target = target_of(url)
            addresses = [target.address] if target.address else _look_up(target, deadline)
            check(target, addresses, allowed_hosts(tuple(configuration().webhook_private_hosts)))
        except TargetRefused as refusal:
            raise _Failed(SendFailure.TARGET_REFUSED, str(refusal)) from refusal
        with _connect(target, addresses, deadline) as connection:
            status = _exchange(connection, target, headers, body, deadline)
    except _Failed as failed:
        return failed.outcome
    except TimeoutError:
        return Outcome(None, SendFailure.TIMED_OUT, f"No answer within {LONGEST_ATTEMPT_S:g} s.")
    if 200 <= status < 300:
        return Outcome(status)
    if 300 <= status < 400:
        return Outcome(status, SendFailure.REDIRECTED, f"Answered {status}: redirects are not followed.")
    return Outcome(status, SendFailure.NOT_TAKEN, f"Answered {status}.")


class _Deadline:
    def __init__(self, seconds: float) -> None:
        self._ends = time.monotonic() + seconds

    def remaining(self) -> float:
        """Seconds that are left. Raises ``TimeoutError`` when none are."""
        left = self._ends - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left


def _look_up(target: Target, deadline: _Deadline) -> list[Address]:
    """The host's addresses. The system's resolver knows no time limit: it is asked on a thread that is left to it."""
    found: list[Any] = []
    error: list[OSError] = []

    def ask() -> None:
        try:
            found.extend(socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as problem:
            error.append(problem if isinstance(problem, OSError) else OSError(str(problem)))

    asking = threading.Thread(target=ask, name="webhook-lookup", daemon=True)
    asking.start()
    asking.join(deadline.remaining())
    if asking.is_alive():
        raise TimeoutError
    if error:
        raise _Failed(SendFailure.NOT_FOUND, f"{target.host} has no address: {error[0].strerror}.")
    # In the resolver's order, each once.
    return list(dict.fromkeys(ip_address(entry[4][0]) for entry in found))


def _connect(target: Target, addresses: list[Address], deadline: _Deadline) -> ssl.SSLSocket:
    context = _trust(configuration().webhook_ca_file)
    addresses = addresses[:_MOST_ADDRESSES]
    problem: OSError | None = None
    for tried, address in enumerate(addresses):
        # One that is silent leaves the others their share of the time.
        share_s = deadline.remaining() / (len(addresses) - tried)
        try:
            plain = socket.create_connection((str(address), target.port), share_s)
        except OSError as error:
            problem = error
            continue
        return _secured(context, plain, target, deadline)
    if isinstance(problem, TimeoutError):
        raise problem
    reason = problem.strerror if problem else "it has no address"
    raise _Failed(SendFailure.UNREACHABLE, f"{target.host} cannot be reached: {reason}.")


def _secured(
    context: ssl.SSLContext, plain: socket.socket, target: Target, deadline: _Deadline
) -> ssl.SSLSocket:
    try:
        plain.settimeout(deadline.remaining())
        return context.wrap_socket(plain, server_hostname=target.host)
    except TimeoutError:
        plain.close()
        raise
    except ssl.SSLCertVerificationError as error:
        plain.close()
        raise _Failed(
            SendFailure.NOT_TRUSTED, f"{target.host} showed no valid certificate: {error.verify_message}."
        ) from error
    except OSError as error:
        plain.close()
        raise _Failed(SendFailure.NOT_TRUSTED, f"{target.host} speaks no TLS that is accepted.") from error


@cache
def _trust(ca_file: str) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if ca_file:
        try:
            context.load_verify_locations(ca_file)
        except OSError as error:
            raise _Failed(
                SendFailure.NOT_TRUSTED,
                f"The file of SIGNALBOX_WEBHOOK_CA_FILE cannot be used: {error.strerror}.",
            ) from error
    return context


def _exchange(
    connection: ssl.SSLSocket, target: Target, headers: Mapping[str, str], body: bytes, deadline: _Deadline
) -> int:
    """Send the request, read the answer's head; its status."""
    lines = [
        f"POST {target.path} HTTP/1.1",
        f"Host: {target.host_header}",
        "User-Agent: Signalbox",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    try:
        connection.settimeout(deadline.remaining())
        connection.sendall("\r\n".join(lines).encode("ascii") + b"\r\n\r\n" + body)
        answer = http.client.HTTPResponse(_Reading(connection, deadline), method="POST")  # type: ignore[arg-type]
        answer.begin()
    except TimeoutError:
        raise
    except (OSError, http.client.HTTPException) as error:
        raise _Failed(
            SendFailure.NO_ANSWER, f"{target.host} closed without an answer that is HTTP."
        ) from error
    return answer.status


class _Reading(io.RawIOBase):
    """What ``http.client`` reads an answer from: each read waits only as long as there is time left for all of them."""

    def __init__(self, connection: ssl.SSLSocket, deadline: _Deadline) -> None:
        super().__init__()
        self._connection = connection
        self._deadline = deadline
        self._left = _LONGEST_HEAD

    def makefile(self, mode: str) -> io.BufferedReader:
        """As ``http.client`` asks a socket for a file."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._left:
            raise http.client.HTTPException("the answer's head is too long")
        self._connection.settimeout(self._deadline.remaining())
        count = self._connection.recv_into(memoryview(buffer)[: self._left])
        self._left -= count
        return count
