"""Filters and functions of chat templates that are not, or not safely, Jinja's own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Final, NoReturn

from inference.tokenization.template_limits import (
    TemplateError,
    TemplateProblem,
    check_printed_size,
    check_size,
    concatenated,
    metered,
    text,
)
from inference.tokenization.traced_text import TracedText


def join(values: Iterable[Any], separator: str = "", attribute: str | None = None) -> TracedText:
    """Unlike Jinja's, keeps what is literal."""
    pieces: list[Any] = []
    for value in values:
        pieces += separator, value if attribute is None else value[attribute]
    return concatenated(pieces[1:])


def replace(value: str, old: str, new: str, count: int = -1) -> str:
    """Refuses to multiply a text beyond the limit."""
    check_size(len(value) + (value.count(old) + 1) * max(0, len(new) - len(old)))
    return value.replace(old, new, count)


def indent(value: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    """Every line but the first (unless ``first``) and empty ones (unless ``blank``) moved right."""
    margin = width if isinstance(width, str) else " " * min(width, 64)
    check_size(len(value) + len(margin) * (value.count("\n") + 1))
    lines = value.split("\n")
    indented = [
        margin + line if (index or first) and (line.strip() or blank) else line
        for index, line in enumerate(lines)
    ]
    return "\n".join(indented)


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is; Jinja's own filter escapes it for HTML."""
    check_printed_size(value)
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=None if indent is None else min(indent, 16),
        separators=separators,
        sort_keys=sort_keys,
    )


def raise_exception(message: str) -> NoReturn:
    """How a template refuses messages."""
    raise TemplateError(
        TemplateProblem.REFUSED, f"The model's chat template refuses these messages: {message}"
    )


def strftime_now(format_: str) -> str:
    """The date and time here, now."""
    return datetime.now().astimezone().strftime(format_)


FILTERS: Final[Mapping[str, Callable[..., Any]]] = {
    "indent": indent,
    "join": join,
    "metered": metered,
    "replace": replace,
    "safe": text,
    "string": text,
    "tojson": tojson,
}
FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "raise_exception": raise_exception,
    "strftime_now": strftime_now,
}
