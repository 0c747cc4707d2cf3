"""How long the audit takes to be verified: a million lane assignments, sealed in batches, on one core.

    python -m benchmarks.audit_verify --assignments 1000000 --databases SQLite PostgreSQL

Makes an installation of its own on each database, writes so many assignments, and has them sealed by the product's own
function. Then a fresh process walks the chain from scratch: every event, every batch's root, every leaf against its
assignment; and once more from where that ended. PostgreSQL is a server of the script's own, on a local socket.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.arguments import parser as arguments_parser
from benchmarks.processes import ROOT, Platform, free_port
from benchmarks.trust import refuse_when_busy, spread
from tests.fixtures import postgresql

_DATABASES = ("SQLite", "PostgreSQL")


def main() -> None:
    parser = arguments_parser(__doc__, installed=False)
    parser.add_argument("--assignments", type=int, default=1_000_000)
    parser.add_argument("--databases", nargs="+", choices=_DATABASES, default=["SQLite"])
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    refuse_when_busy()
    print(
        "| database | assignments | batches | to seal, s | from scratch, s | records a second | memory, MiB (its own) "
        "| incremental, s |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for database in arguments.databases:
        url = postgresql.start(durable=True) if database == "PostgreSQL" else ""
        print(
            f"| {database} | {' | '.join(_row(url, arguments.assignments, arguments.repeats))} |", flush=True
        )


def _row(database_url: str, assignments: int, repeats: int) -> list[str]:
    state = Path(tempfile.mkdtemp(prefix="signalbox-benchmark-"))
    site = Platform(state, free_port())
    site.env["DATABASE_URL"] = database_url
    try:
        site.manage("migrate", "--verbosity", "0")
        built = _asked(site, "build", str(assignments))
        runs = [_asked(site, "verify") for _ in range(repeats)]
    finally:
        shutil.rmtree(state, ignore_errors=True)
    if any(run["fault"] or run["assignments"] != assignments for run in runs):
        sys.exit(f"The chain does not hold, so that the run says nothing: {runs}")
    records = [run["events"] + run["assignments"] for run in runs]
    return [
        f"{assignments:,}",
        f"{runs[0]['events']:,}",
        f"{built['seconds']:.0f}",
        spread([run["seconds"] for run in runs], 1),
        spread([count / run["seconds"] for count, run in zip(records, runs, strict=True)], 0),
        f"{max(run['memory_mib'] for run in runs):.0f} "
        f"({max(run['memory_mib'] - run['memory_before_mib'] for run in runs):.0f})",
        spread([run["incremental_seconds"] for run in runs], 2),
    ]


def _asked(site: Platform, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.audit_chain", *arguments],
        cwd=ROOT,
        env=site.env,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


if __name__ == "__main__":
    main()
