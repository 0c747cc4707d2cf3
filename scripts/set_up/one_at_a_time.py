"""One set-up at a time in a checkout: two at once would fill the same environment over each other."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def only_one(directory: Path) -> Iterator[None]:
    """Hold the set-up of ``directory``; wait, and say so, while another process holds it.

    The kernel releases it when this process ends, by whatever way.
    """
    descriptor = os.open(directory / ".set-up.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode().strip() or "unknown"
            print(f"» Another set-up runs here (process {holder}); waiting for it to end", flush=True)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)
