"""At which shares of a budget somebody is told. Pure."""

from __future__ import annotations

#: In percent of the limit, ascending.
PERCENTS = (80, 100)


def reached(used: int, limit: int | None) -> int:
    """The highest of the percents that ``used`` has come to; 0: none of them.

    Of a limit that is not set no share is reached, nor of one of 0: that is no budget that somebody uses up.
    """
    if not limit:
        return 0
    return max((percent for percent in PERCENTS if used * 100 >= limit * percent), default=0)


def newly_reached(used: int, limit: int | None, told: int) -> tuple[int, ...]:
    """The percents that ``used`` has come to and that are above ``told``, the highest that was told, in order."""
    highest = reached(used, limit)
    return tuple(percent for percent in PERCENTS if told < percent <= highest)


def told_after_change(told: int, used: int, before: int | None, after: int | None) -> int:
    """What of ``told`` still stands when a limit is moved from ``before`` to ``after``.

    Where it is raised, or taken away, what ``used`` no longer reaches is to be told again when it comes to it. A limit
    that stays or is lowered takes nothing back.
    """
    raised = after is None or (before is not None and after > before)
    return min(told, reached(used, after)) if raised else told
