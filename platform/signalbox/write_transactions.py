"""A transaction that writes, where many threads of one process want one at once.

SQLite lets one connection write at a time, and the others ask again and again until their time is up: of a hundred
threads that ask, some never hit the moment. So the threads of a process wait for each other here, in a queue that
wakes them, and only processes are left to ask. PostgreSQL has such queues of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from django.db import connection, transaction

_sqlite_writer = threading.RLock()


@contextmanager
def write_transaction() -> Iterator[None]:
    """``transaction.atomic`` for what many threads write at once."""
    with _sqlite_writer if connection.vendor == "sqlite" else nullcontext(), transaction.atomic():
        yield
