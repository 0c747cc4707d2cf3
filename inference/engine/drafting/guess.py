"""What may come next, and how likely that seems."""

from __future__ import annotations

from typing import NamedTuple


class Guess(NamedTuple):
    """``confidence``: the share of the occurrences looked at that this token followed, above 0 and at most 1."""

    token: int
    confidence: float
