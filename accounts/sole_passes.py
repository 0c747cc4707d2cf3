"""Work that one process, or thread, does at a time, so that what is slow in it is not done by all that could.

Nothing relies on it to be correct: work whose process was killed keeps the next one out for a while at most, and two at
once do no harm. Who does it leaves a mark of its own in Valkey, and takes away no other's: a pass that took longer than
it was given finds that of whoever came next.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import redis
import structlog

from signalbox import store

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Mark:
    """That the work ``slot`` is being done, and by whom."""

    slot: str
    token: str


def begin(name: str, *, at_most_s: float) -> Mark | None:
    """Begin the work ``name``; None: another is at it. Taken to be dead after ``at_most_s`` seconds.

    Raises ``redis.RedisError``.
    """
    mark = Mark(f"pass:{name}", secrets.token_urlsafe(12))
    begun = store.shared_client().set(mark.slot, mark.token, nx=True, px=round(1000 * at_most_s))
    return mark if begun else None


def end(mark: Mark) -> None:
    """It is done. Changes nothing where another has begun since; where Valkey cannot be told, the mark lapses."""
    try:
        _end_pass()(keys=[mark.slot], args=[mark.token])
    except redis.RedisError as error:
        _log.warning("pass_left_to_lapse", slot=mark.slot, error=str(error))


@contextmanager
def sole_pass(name: str, *, at_most_s: int) -> Iterator[bool]:
    """Whether this pass of the work ``name`` is the only one: as ``begin``, until the end of the block."""
    mark = begin(name, at_most_s=at_most_s)
    try:
        yield mark is not None
    finally:
        if mark is not None:
            end(mark)


@cache
def _end_pass() -> Any:
    source = (files("accounts") / "lua" / "end_pass.lua").read_text(encoding="utf-8")
    return store.shared_client().register_script(f"#!lua flags=allow-oom\n{source}")
