"""What the audit costs: the lane assignment and its sealing on the way in, and events a second of the chain.

    python -m benchmarks.audit_append

Makes an installation of its own on each database, with Valkey and nothing else. Requests are accepted in three arms,
from so many threads of one process: without a lane assignment (which the product cannot do: it is the zero), with one,
and with one while another process seals each second. The arms alternate, and each repeat begins with another one; the
ratio is of what they accept a second, paired by repeat. Then events are appended to the chain, each in a transaction of
its own. PostgreSQL is a server of the script's own, on a local socket, with its shipped durability.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.arguments import parser as arguments_parser
from benchmarks.processes import ROOT, Platform, free_port
from benchmarks.trust import percentile, refuse_when_busy, spread
from signalbox.configuration import Configuration
from signalbox.supervision import embedded_valkey
from tests.fixtures import postgresql

_ARMS = {"none": "no assignment", "assigned": "assignment", "sealed": "assignment, sealed beside"}
_DATABASES = ("SQLite", "PostgreSQL")


@dataclass(frozen=True)
class Run:
    """So many acceptances, or events: seconds of each, and of all."""

    each: list[float]
    all: float

    @property
    def per_second(self) -> float:
        return len(self.each) / self.all

    def milliseconds(self, share: float) -> float:
        return 1000 * percentile(self.each, share)


class Door:
    """The process that accepts and appends, asked over a pipe."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def run(self, **asked: Any) -> Run:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked).encode() + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args!r} ended; run it by hand to see why")
        return Run(**json.loads(line))


def main() -> None:
    parser = arguments_parser(__doc__)
    parser.add_argument("--databases", nargs="+", choices=_DATABASES, default=list(_DATABASES))
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 50])
    parser.add_argument("--requests", type=int, default=400, help="of a run; at least one for each client")
    parser.add_argument("--events", type=int, default=1000, help="of a run")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    refuse_when_busy()
    print("| database | what | clients | p50, ms | p95, ms | a second | of no assignment, a second |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for database in arguments.databases:
        url = postgresql.start(durable=True) if database == "PostgreSQL" else ""
        with _installation(arguments.state / "models" / arguments.model, arguments.model, url) as door:
            for clients in arguments.clients:
                accepted = _alternate(door, clients, max(arguments.requests, clients), arguments.repeats)
                for row in _rows(accepted):
                    _print(database, clients, row)
                appended = [
                    door.run(record=arguments.events, clients=clients) for _ in range(arguments.repeats)
                ]
                _print(database, clients, ("events appended", *_figures(appended), ""))


def _print(database: str, clients: int, row: tuple[str, ...]) -> None:
    what, *figures = row
    print(f"| {' | '.join((database, what, str(clients), *figures))} |", flush=True)


def _alternate(door: Door, clients: int, requests: int, repeats: int) -> dict[str, list[Run]]:
    """Runs of all arms by turns, after one of each that does not count."""
    arms = list(_ARMS)
    runs: dict[str, list[Run]] = {arm: [] for arm in arms}
    for arm in arms:
        door.run(arm=arm, clients=clients, requests=clients)
    for repeat in range(repeats):
        first = repeat % len(arms)
        for arm in arms[first:] + arms[:first]:
            runs[arm].append(door.run(arm=arm, clients=clients, requests=requests))
    return runs


def _rows(runs: dict[str, list[Run]]) -> Iterator[tuple[str, ...]]:
    for arm, name in _ARMS.items():
        ratios = [run.per_second / peer.per_second for run, peer in zip(runs[arm], runs["none"], strict=True)]
        yield (f"accepted: {name}", *_figures(runs[arm]), spread(ratios, 3))


def _figures(runs: list[Run]) -> tuple[str, ...]:
    return (
        spread([run.milliseconds(0.5) for run in runs], 1),
        spread([run.milliseconds(0.95) for run in runs], 1),
        spread([run.per_second for run in runs], 0),
    )


@contextlib.contextmanager
def _installation(model_directory: Path, model: str, database_url: str) -> Iterator[Door]:
    """The door of a fresh installation on that database (empty: SQLite)."""
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
            door = [sys.executable, "-m", "benchmarks.audited_accepting", model]
            yield Door(stack.enter_context(_process(door, site, stdout=subprocess.PIPE)))
    finally:
        shutil.rmtree(state, ignore_errors=True)


@contextlib.contextmanager
def _process(command: list[str], site: Platform, *, stdout: Any) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, cwd=ROOT, env=site.env, stdin=subprocess.PIPE, stdout=stdout)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
