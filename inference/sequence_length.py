"""How long an answer may be: what its prompt leaves of the model's context, and of a worker's memory.

Pure: numbers in, a number or a refusal out. All of them are tokens.
"""

from __future__ import annotations

from enum import StrEnum


class Bound(StrEnum):
    """What prompt and answer must fit together."""

    CONTEXT = "context"
    #: A worker's memory for caches, when nothing else is in it.
    MEMORY = "memory"


class TooLong(Exception):
    """Prompt and answer can never be run together: they ``need`` more tokens than the ``most`` of their ``bound``."""

    def __init__(self, bound: Bound, need: int, most: int) -> None:
        super().__init__(f"{need} tokens exceed the {bound}, which is {most}")
        self.bound = bound
        self.need = need
        self.most = most


def answer_tokens(prompt: int, asked: int | None, *, default: int, context: int, memory: int | None) -> int:
    """The answer's limit: what was ``asked`` for, or the ``default``, at most what the prompt leaves.

    What was asked for is never shortened. ``memory``: the longest sequence that a worker has room for; None: no worker
    has said so yet, and the one that takes the request will. Raises ``TooLong``, for the context first: what exceeds
    that, no memory helps.
    """
    need = prompt + (1 if asked is None else asked)
    for bound, most in ((Bound.CONTEXT, context), (Bound.MEMORY, memory)):
        if most is not None and need > most:
            raise TooLong(bound, need, most)
    if asked is not None:
        return asked
    longest = context if memory is None else min(context, memory)
    return min(default, longest - prompt)
