"""How far a command is that takes long."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def bar(title: str, total: int, unit: str) -> Iterator[Callable[[int], object]]:
    """A bar on the standard error, where that is a terminal, and nothing elsewhere; told how much more is done."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from tqdm import tqdm

    with tqdm(desc=title, total=total, unit=f" {unit}", file=sys.stderr) as shown:
        yield shown.update
