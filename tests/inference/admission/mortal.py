"""A process that dies in the middle of something, for tests that look at what is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import redis


class Death(BaseException):
    """The process is no more: nothing catches this, and the database rolls back what was not committed."""


@contextmanager
def mortal() -> Iterator[Callable[[], None]]:
    """Gives what kills the process that the block stands for: nothing that it does reaches Valkey from then on."""
    with pytest.MonkeyPatch.context() as patch:

        def die() -> None:
            patch.setattr(redis.Redis, "execute_command", _unreachable)

        yield die


def _unreachable(*_: object, **__: object) -> None:
    raise redis.ConnectionError("nobody is left to send it")
