"""Where else a person's data is kept: asked of whoever keeps it, for accounts do not know of conversations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from uuid import UUID

#: Erases what it keeps of a user, in the caller's transaction; how much, by what it is called. May raise
#: ``ChangeRefused``: then nothing is erased.
Eraser = Callable[[UUID], Mapping[str, int]]

_erasers: list[Eraser] = []


def erased_by(eraser: Eraser) -> None:
    """Have ``eraser`` called for whoever is erased; to be said once, when the application starts."""
    if eraser not in _erasers:
        _erasers.append(eraser)


def erase(user_id: UUID) -> Mapping[str, int]:
    """Erase what is kept elsewhere of the user, in the caller's transaction; how much of what."""
    erased: Counter[str] = Counter()
    for eraser in _erasers:
        erased.update(eraser(user_id))
    return erased
