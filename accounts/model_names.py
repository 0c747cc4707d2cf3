"""Which language models there are, by name: asked of whoever serves them, for accounts know models by name only."""

from __future__ import annotations

from collections.abc import Callable, Iterable

_source: Callable[[], Iterable[str]] = tuple


def asked_of(source: Callable[[], Iterable[str]]) -> None:
    """Have ``source`` say which models are offered; called once, when the application starts."""
    global _source
    _source = source


def offered() -> list[str]:
    """The models that requests may name now, by name."""
    return sorted(_source())
