"""Lanes with a floor: strict order while it is cheap, bounded delay where it is not."""

from __future__ import annotations

from collections.abc import Collection, Mapping


def pick_lane(
    waiting: Collection[int], skips: Mapping[int, int], cap: int = 4
) -> tuple[int | None, dict[int, int]]:
    """The lane that is served next, and the skips once it was.

    ``waiting``: ranks of the lanes in which something waits (0 is the highest lane). ``skips``: by rank, how often a
    lane was passed over while something waited in it; absent is 0. ``cap``: how often that may happen before the
    lane goes first.

    Among the waiting lanes, one that was skipped ``cap`` times or more is served, the most skipped first and the
    higher one of equals; else the highest lane. The served lane's skips become 0, every other waiting lane's
    grow by one, and lanes with nothing waiting are not in the answer, which means 0. Nothing waiting: ``(None, {})``.

    With L lanes always waiting, each is served at least once in every ``cap + L - 1`` grants.
    """
    if not waiting:
        return None, {}
    ranks = sorted(set(waiting))
    overdue = [rank for rank in ranks if skips.get(rank, 0) >= cap]
    # `max` keeps the first of equals, and the ranks are in order: the higher lane wins a tie.
    chosen = max(overdue, key=lambda rank: skips.get(rank, 0)) if overdue else ranks[0]
    return chosen, skips_after(chosen, ranks, skips)


def skips_after(served: int, waiting: Collection[int], skips: Mapping[int, int]) -> dict[int, int]:
    """The skips of the ``waiting`` lanes once ``served``, one of them, was."""
    return {rank: 0 if rank == served else skips.get(rank, 0) + 1 for rank in sorted(waiting)}
