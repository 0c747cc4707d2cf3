"""Periodic work that one process does at a time, so that what is slow in it does not hold up every task thread.

Nothing relies on it to be correct: a pass whose process was killed blocks the next one for a while at most, and two at
once do no harm.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.core.cache import cache


@contextmanager
def sole_pass(name: str, *, at_most_s: int) -> Iterator[bool]:
    """Whether this pass of the work ``name`` is the only one; it is taken to be dead after ``at_most_s`` seconds."""
    slot = f"pass:{name}"
    if not cache.add(slot, True, at_most_s):
        yield False
        return
    try:
        yield True
    finally:
        cache.delete(slot)
