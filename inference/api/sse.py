"""Server-sent events, as bytes."""

from __future__ import annotations

import json
from typing import Any, Final

DONE: Final = b"data: [DONE]\n\n"
#: No blank line ends a comment: behind an event that has an id, OpenAI's client takes that for an event without data.
KEEP_ALIVE: Final = b": keep-alive\n"


def event(data: str, *, id_: str | None = None) -> bytes:
    """One event. ``data`` is a JSON text: it holds no line break."""
    head = f"id: {id_}\n" if id_ is not None else ""
    return f"{head}data: {data}\n\n".encode()


def comment(word: str, **fields: Any) -> bytes:
    """A comment, which clients skip: a word, and what it is about as JSON."""
    return f": {word} {json.dumps(fields)}\n".encode() if fields else f": {word}\n".encode()
