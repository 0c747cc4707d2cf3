"""No whole API key belongs on a command line: it stays in the shell's history, and messages repeat what was typed."""

from __future__ import annotations

from collections.abc import Iterable

from accounts.key_text import CONTAINS_KEY


def objection_to(arguments: Iterable[str]) -> str | None:
    """What is said to whoever types a whole key, which is shown as its prefix; None: nobody did."""
    for argument in arguments:
        if found := CONTAINS_KEY.search(argument):
            prefix = found[0].rpartition("_")[0]
            return (
                f"A whole API key was typed ({prefix}…), and nothing was done: it stays in your shell's history. Name "
                f"a key by its prefix, {prefix}; rotate this one if anybody may have seen it."
            )
    return None
