"""How a long step reports how far it is, without knowing who looks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

#: Tells a stage how many further bytes are done.
Advance = Callable[[int], object]
#: ``progress("Converting", total_bytes)`` opens a stage.
Progress = Callable[[str, int], AbstractContextManager[Advance]]


@contextmanager
def unreported(label: str, total_bytes: int) -> Iterator[Advance]:
    """A stage that nobody watches."""
    yield lambda amount: None
