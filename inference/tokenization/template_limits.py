"""What one rendering of a chat template may use: time, steps, memory. And how a rendering fails."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from inference.tokenization.traced_text import TracedText, joined

#: Loop turns and calls.
MAX_STEPS: Final = 200_000
MAX_SECONDS: Final = 2.0
#: Characters of a string, elements of a list.
MAX_SIZE: Final = 8_000_000
MAX_INTEGER_BITS: Final = 4096


class TemplateProblem(StrEnum):
    """Why no prompt could be made of messages."""

    MISSING = "missing"
    BROKEN = "broken"
    REFUSED = "refused"
    UNKNOWN_ROLE = "unknown_role"
    TOO_LARGE = "too_large"


class TemplateError(ValueError):
    """No prompt could be made of these messages.

    ``problem`` tells whose fault it is: ``REFUSED``, ``UNKNOWN_ROLE`` and ``TOO_LARGE`` are about the
    messages, ``MISSING`` and ``BROKEN`` about the model.
    """

    def __init__(self, problem: TemplateProblem, message: str) -> None:
        super().__init__(message)
        self.problem = problem


@dataclass
class _Budget:
    steps: int = MAX_STEPS
    deadline: float = field(default_factory=lambda: time.monotonic() + MAX_SECONDS)


_budget: ContextVar[_Budget] = ContextVar("_budget")


@contextmanager
def budget() -> Iterator[None]:
    """Everything rendered inside shares one budget."""
    token = _budget.set(_Budget())
    try:
        yield
    finally:
        _budget.reset(token)


def spend_step() -> None:
    """Count one loop turn or call; raises ``TemplateError`` when nothing is left."""
    left = _budget.get()
    left.steps -= 1
    if left.steps < 0 or time.monotonic() > left.deadline:
        raise TemplateError(
            TemplateProblem.TOO_LARGE,
            f"The model's chat template did not finish within {MAX_STEPS} steps and {MAX_SECONDS:g} s.",
        )


def metered(iterable: Iterable[Any]) -> Iterator[Any]:
    """The elements, each a step."""
    for item in iterable:
        spend_step()
        yield item


def check_size(size: int) -> None:
    """Raises ``TemplateError`` for anything larger than ``MAX_SIZE``."""
    if size > MAX_SIZE:
        raise TemplateError(
            TemplateProblem.TOO_LARGE,
            f"The model's chat template makes more than {MAX_SIZE} characters of these messages.",
        )


def bounded(result: Any) -> Any:
    """``result``, its size checked."""
    if isinstance(result, str | list | tuple | dict):
        check_size(len(result))
    elif isinstance(result, int):
        check_bits(result.bit_length())
    return result


def check_bits(bits: int) -> None:
    """Raises ``TemplateError`` for an integer of more than ``MAX_INTEGER_BITS``."""
    if bits > MAX_INTEGER_BITS:
        raise TemplateError(
            TemplateProblem.TOO_LARGE,
            f"The model's chat template makes a number of more than {MAX_INTEGER_BITS} bits.",
        )


def text(value: Any) -> str:
    """``value`` as text, traced if it is."""
    if isinstance(value, str):
        return value
    check_printed_size(value)
    return str(value)


def check_printed_size(value: Any) -> None:
    """Bound what printing a container takes: one that repeats an element is small until then."""
    size = 0
    pending = [value]
    while pending:
        item = pending.pop()
        size += len(item) if isinstance(item, str) else 1
        check_size(size)
        if isinstance(item, dict):
            pending += (*item.keys(), *item.values())
        elif isinstance(item, list | tuple):
            pending += item


def concatenated(values: Iterable[Any]) -> TracedText:
    """All values, as text, one after another."""
    texts: list[str] = []
    size = 0
    for value in values:
        texts.append(text(value))
        size += len(texts[-1])
        check_size(size)
    return joined(texts)
