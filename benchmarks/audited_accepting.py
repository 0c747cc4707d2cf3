"""The door to the queue with what the audit adds to it switched on and off: what ``benchmarks.audit_append`` measures.

Runs with an installation's environment. Reads one JSON request a line, and answers one JSON line.

``{"arm", "clients", "requests"}``: accepts so many; the seconds of each acceptance, and of all. In the arm
``none`` no lane assignment is written, in ``assigned`` it is, in ``sealed`` another process seals meanwhile.
Before each run all that waits is sealed. ``{"record", "clients"}``: appends so many events to the chain.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier
from typing import Any
from unittest import mock

from benchmarks.accepting import accept_all, key_of_new_tenant, submission_to

_EVERY_S = 1.0


def main(model_name: str) -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "signalbox.settings")
    import django

    django.setup()
    if model_name == "--seal":
        _seal_each_second()
    from accounts.authentication import authenticate_key
    from accounts.limits import Limits

    principal = authenticate_key(key_of_new_tenant("audited", Limits()))
    submission = submission_to(model_name)
    for line in sys.stdin:
        asked = json.loads(line)
        if "record" in asked:
            answer = _record_all(asked["record"], asked["clients"])
        else:
            _seal_all()
            with _arm(asked["arm"]):
                answer = accept_all(principal, submission, asked["clients"], asked["requests"])
        print(json.dumps(answer), flush=True)


@contextmanager
def _arm(name: str) -> Iterator[None]:
    if name == "none":
        from accounts import admission

        with mock.patch.object(admission, "LaneAssignment", _NoAssignments):
            yield
    elif name == "assigned":
        yield
    else:
        with subprocess.Popen(
            [sys.executable, "-m", "benchmarks.audited_accepting", "--seal"], stdout=subprocess.PIPE
        ) as sealer:
            assert sealer.stdout is not None
            sealer.stdout.readline()
            try:
                yield
            finally:
                sealer.terminate()


class _NoAssignments:
    """Stands for ``LaneAssignment`` where accepting writes everything but that."""

    class objects:  # noqa: N801 — the model's manager
        @staticmethod
        def create(**fields: Any) -> None:
            """As if it were written."""


def _seal_all() -> None:
    from django.utils import timezone

    from accounts.audit import sealing

    sealing.seal(timezone.now(), sweep=True)


def _seal_each_second() -> None:
    """As Celery does, until it is killed."""
    from django.utils import timezone

    from accounts.audit import sealing

    sealing.seal_alone(timezone.now())
    print("sealing", flush=True)
    while True:
        started = time.monotonic()
        sealing.seal_alone(timezone.now())
        time.sleep(max(0.0, started + _EVERY_S - time.monotonic()))


def _record_all(events: int, clients: int) -> dict[str, Any]:
    """Append so many events, ``clients`` at a time, each in a transaction of its own."""
    from django.db import connections

    from accounts import audit
    from accounts.actors import command_actor
    from signalbox.write_transactions import write_transaction

    actor = command_actor("benchmark")
    thing = audit.ObjectRef("thing", "1", "a thing")
    begun: list[float] = []
    together = Barrier(clients, action=lambda: begun.append(time.perf_counter()))
    numbers = itertools.count()

    def work(_: int) -> list[float]:
        seconds = []
        together.wait()
        while next(numbers) < events:
            started = time.perf_counter()
            with write_transaction():
                audit.record(
                    actor, "thing.change", thing, {"name": "before", "n": 1}, {"name": "after", "n": 2}
                )
            seconds.append(time.perf_counter() - started)
        connections.close_all()
        return seconds

    with ThreadPoolExecutor(clients) as pool:
        by_client = list(pool.map(work, range(clients)))
    return {"each": list(itertools.chain(*by_client)), "all": time.perf_counter() - begun[0]}


if __name__ == "__main__":
    main(*sys.argv[1:])
