"""How much a grant is, and whether so much takes a second operator. Pure.

The size of a grant is the most tokens that it can let through in one calendar month, by those of its budgets that are
set. What is counted is the sum over all live and requested grants of a tenant in a lane: of a large grant that is cut
into small ones, one goes over the mark all the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from accounts.limits import LimitName, Limits

#: How often each budget is given in one calendar month, at most: 31 days touch as many as six weeks.
_TIMES_A_MONTH: Final = {
    LimitName.TOKENS_PER_DAY: 31,
    LimitName.TOKENS_PER_WEEK: 6,
    LimitName.TOKENS_PER_MONTH: 1,
}


def size_of(limits: Limits) -> int | None:
    """The most tokens that a grant with ``limits`` can use in a calendar month; None: without limit."""
    most = [limit * times for name, times in _TIMES_A_MONTH.items() if (limit := limits.of(name)) is not None]
    return min(most, default=None)


def together(sizes: Iterable[int | None]) -> int | None:
    """The size of several grants together; None: without limit, as soon as one of them is."""
    total = 0
    for size in sizes:
        if size is None:
            return None
        total += size
    return total


def needs_approval(approval_above: int | None, total: int | None) -> bool:
    """Whether grants of the size ``total`` together take a second operator, where a lane asks for one above so much.

    ``approval_above`` None: never; 0: always, even for a grant that lets nothing through.
    """
    if approval_above is None:
        return False
    return approval_above == 0 or total is None or total > approval_above
