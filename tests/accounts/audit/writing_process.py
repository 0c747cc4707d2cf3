"""A process that writes to the audit: appends events, gives lanes, seals; for tests that count, and for some that kill.

``python -m tests.accounts.audit.writing_process VERB COUNT …``: does each verb (``append``, ``assign``, ``seal``) so
often, in a thread of its own, all at once. Says ``writing`` when it begins.
``python -m tests.accounts.audit.writing_process die VERB``: for each number that it reads, a child of it does the verb
once, and kills itself behind that statement of it. Says how each child has ended, by its status.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import uuid
from collections.abc import Callable
from typing import Any

import django


def append() -> None:
    from django.db import transaction

    from accounts import audit
    from accounts.principal import Actor

    actor = Actor(kind="user", id=str(uuid.UUID(int=7)), name="ada", address="192.0.2.7")
    thing = audit.ObjectRef("thing", "1", "a thing")
    with transaction.atomic():
        audit.record(actor, "thing.change", thing, {"n": 1, "email": "ada@example.com"}, {"n": 2})


def assign() -> None:
    from accounts.tenancy import every_tenant
    from signalbox.write_transactions import write_transaction
    from tests.accounts.audit.chains import assignment

    with every_tenant("the process writes for any tenant"), write_transaction():
        assignment().save(force_insert=True)


def seal() -> None:
    from django.utils import timezone

    from accounts.audit import sealing

    sealing.seal(timezone.now())


_VERBS = {"append": append, "assign": assign, "seal": seal}


def write(counts: dict[str, int]) -> None:
    """Do each verb so many times, in a thread of its own, all at once."""
    failures: list[BaseException] = []

    def work(verb: Callable[[], None], count: int) -> None:
        from django.db import connections

        try:
            for _ in range(count):
                verb()
        except BaseException as error:  # noqa: BLE001 — told by the exit status
            failures.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=work, args=(_VERBS[verb], count)) for verb, count in counts.items()]
    for thread in threads:
        thread.start()
    print("writing", flush=True)
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def die(verb: Callable[[], None], statement: int) -> None:
    """Do it, and be killed behind the statement of that number."""
    from django.db import connection

    done = 0

    def count(execute: Any, *arguments: Any) -> Any:
        nonlocal done
        result = execute(*arguments)
        done += 1
        if done == statement:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    connection.ensure_connection()
    with connection.execute_wrapper(count):
        verb()


def let_children_die(verb: Callable[[], None]) -> None:
    """Nothing of the database is open here, so that nothing of it is the children's too."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            die(verb, int(line))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def main(*arguments: str) -> None:
    django.setup()
    if arguments[0] == "die":
        let_children_die(_VERBS[arguments[1]])
    else:
        write({verb: int(count) for verb, count in zip(arguments[::2], arguments[1::2], strict=True)})


if __name__ == "__main__":
    main(*sys.argv[1:])
