"""What admission costs with every limit set, beside the same without any, on SQLite and on PostgreSQL.

    python -m benchmarks.admission_cost

Makes an installation of its own on each database, with Valkey and one web process and no worker: what is accepted
waits, so that nothing but admission is measured. Requests are accepted in two ways. ``accept()``: the one door to the
queue, called from so many threads of one process. ``HTTP``: streamed completions posted to the web process over so many
connections, from the request's first byte to the answer's head; connections are made before.

The tenant of one arm has all six limits set, on its entitlements and on its key, too high to be reached; that of the
other has none. The arms alternate, and each repeat begins with the other one; the ratio is of what they accept a
second, paired by repeat. PostgreSQL is a server of the script's own, on a local socket, with its shipped durability.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.accepting import MAX_TOKENS, PROMPT_TOKENS
from benchmarks.arguments import parser as arguments_parser
from benchmarks.processes import ROOT, Platform, free_port
from benchmarks.trust import percentile, refuse_when_busy, spread
from signalbox.configuration import Configuration
from signalbox.supervision import embedded_valkey
from tests.fixtures import postgresql

_ARMS = {"limits": "all limits", "none": "no limit"}
_DATABASES = ("SQLite", "PostgreSQL")
_READY_S = 60.0


@dataclass(frozen=True)
class Run:
    """So many acceptances: seconds of each, and of all."""

    each: list[float]
    all: float

    @property
    def per_second(self) -> float:
        return len(self.each) / self.all

    def milliseconds(self, share: float) -> float:
        return 1000 * percentile(self.each, share)


#: Arm, clients, requests.
Accept = Callable[[str, int, int], Run]


def main() -> None:
    parser = arguments_parser(__doc__)
    parser.add_argument("--databases", nargs="+", choices=_DATABASES, default=list(_DATABASES))
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 50, 200])
    parser.add_argument("--requests", type=int, default=120, help="of a run; at least one for each client")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    refuse_when_busy()
    print("| database | through | clients | arm | p50, ms | p95, ms | a second | of no limit, a second |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for database in arguments.databases:
        url = postgresql.start(durable=True) if database == "PostgreSQL" else ""
        with _installation(arguments.state / "models" / arguments.model, arguments.model, url) as ways:
            for way, accept in ways.items():
                for clients in arguments.clients:
                    runs = _alternate(accept, clients, max(arguments.requests, clients), arguments.repeats)
                    for row in _rows(runs):
                        print(f"| {' | '.join((database, way, str(clients), *row))} |", flush=True)


def _alternate(accept: Accept, clients: int, requests: int, repeats: int) -> dict[str, list[Run]]:
    """Runs of both arms by turns, after one of each that does not count."""
    runs: dict[str, list[Run]] = {arm: [] for arm in _ARMS}
    for arm in _ARMS:
        accept(arm, clients, clients)
    for repeat in range(repeats):
        for arm in reversed(_ARMS) if repeat % 2 else _ARMS:
            runs[arm].append(accept(arm, clients, requests))
    return runs


def _rows(runs: dict[str, list[Run]]) -> Iterator[tuple[str, ...]]:
    for arm, name in _ARMS.items():
        ratios = [run.per_second / peer.per_second for run, peer in zip(runs[arm], runs["none"], strict=True)]
        yield (
            name,
            spread([run.milliseconds(0.5) for run in runs[arm]], 1),
            spread([run.milliseconds(0.95) for run in runs[arm]], 1),
            spread([run.per_second for run in runs[arm]], 0),
            spread(ratios, 3),
        )


@contextlib.contextmanager
def _installation(model_directory: Path, model: str, database_url: str) -> Iterator[dict[str, Accept]]:
    """The ways to have a generation accepted by a fresh installation on that database (empty: SQLite)."""
    state = Path(tempfile.mkdtemp(prefix="signalbox-benchmark-"))
    site = Platform(state, free_port())
    site.env.update({"DATABASE_URL": database_url, "SIGNALBOX_QUEUE_LIMIT": "1000000"})
    configuration = Configuration(state_dir=state)
    try:
        with contextlib.ExitStack() as stack:
            embedded_valkey.prepare(configuration.valkey_dir, configuration.valkey_socket)
            valkey = embedded_valkey.command(configuration.valkey_dir, configuration.valkey_socket)
            stack.enter_context(_process(valkey, site, stdout=subprocess.DEVNULL))
            site.manage("migrate", "--verbosity", "0")
            site.manage("model", "add", str(model_directory), "--name", model)
            log = stack.enter_context((state / "web.log").open("wb"))
            stack.enter_context(_process([sys.executable, "manage.py", "web"], site, stdout=log, stderr=log))
            door = stack.enter_context(
                _process([sys.executable, "-m", "benchmarks.accepting", model], site, stdout=subprocess.PIPE)
            )
            keys = _line(door)
            _wait_for_web(site.port)
            yield {"accept()": _by_calls(door), "HTTP": _by_posts(site.port, model, keys)}
    finally:
        shutil.rmtree(state, ignore_errors=True)


@contextlib.contextmanager
def _process(
    command: list[str], site: Platform, *, stdout: Any, stderr: Any = None
) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        command, cwd=ROOT, env=site.env, stdin=subprocess.PIPE, stdout=stdout, stderr=stderr
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _line(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"{process.args!r} ended; run it by hand to see why")
    answer: dict[str, Any] = json.loads(line)
    return answer


def _wait_for_web(port: int) -> None:
    deadline = time.monotonic() + _READY_S
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health/live", timeout=5):
                return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _by_calls(door: subprocess.Popen[bytes]) -> Accept:
    def accept(arm: str, clients: int, requests: int) -> Run:
        assert door.stdin is not None
        asked = {"arm": arm, "clients": clients, "requests": requests}
        door.stdin.write(json.dumps(asked).encode() + b"\n")
        door.stdin.flush()
        return Run(**_line(door))

    return accept


def _by_posts(port: int, model: str, keys: dict[str, str]) -> Accept:
    def accept(arm: str, clients: int, requests: int) -> Run:
        return asyncio.run(_post_all(port, _request(model, keys[arm]), clients, requests))

    return accept


def _request(model: str, key: str) -> bytes:
    body = json.dumps(
        {
            "model": model,
            "prompt": [5] * PROMPT_TOKENS,
            "max_tokens": MAX_TOKENS,
            "stream": True,
            # The head comes at once, and hanging up behind it ends nothing.
            "stream_options": {"resumable": True},
        }
    ).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


async def _post_all(port: int, request: bytes, clients: int, requests: int) -> Run:
    """Post ``requests`` times, ``clients`` at a time."""
    each: list[float] = []
    left = requests
    # No more connections are made at once than a listening socket holds for its server.
    connecting = asyncio.Semaphore(32)

    async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        async with connecting:
            return await asyncio.open_connection("127.0.0.1", port)

    async def client(connection: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
        nonlocal left
        while left > 0:
            left -= 1
            reader, writer = connection
            sent = time.perf_counter()
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            each.append(time.perf_counter() - sent)
            writer.close()
            if b" 200 " not in head.partition(b"\r\n")[0]:
                raise RuntimeError(f"port {port} answered {head.decode(errors='replace')}")
            if left > 0:
                connection = await connect()
        connection[1].close()

    connections = await asyncio.gather(*(connect() for _ in range(clients)))
    started = time.perf_counter()
    await asyncio.gather(*(client(connection) for connection in connections))
    return Run(each, time.perf_counter() - started)


if __name__ == "__main__":
    main()
