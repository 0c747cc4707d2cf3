"""When a message is sent again. Pure."""

from __future__ import annotations

from datetime import timedelta

#: Attempts that a message gets, over about a day.
MOST_ATTEMPTS = 8

_FIRST_S, _FACTOR, _LONGEST_S = 10.0, 6.0, 10 * 3600.0
#: Of a wait, more or less: so that what failed together does not come again together.
_SPREAD = 0.2
#: A last attempt that is not done by then was lost with its process.
_LOST_AFTER = timedelta(minutes=1)


def wait_after(attempt: int, draw: float) -> timedelta:
    """How long after the beginning of attempt number ``attempt`` (from 1 on) the next one is due, if it fails.

    10 s, 1 min, 6 min, 36 min, 3.6 h, then 10 h, each up to a fifth more or less by ``draw``, which is from 0 to 1.
    After the last one: when it is taken to be lost.
    """
    if attempt >= MOST_ATTEMPTS:
        return _LOST_AFTER
    wait_s = min(_LONGEST_S, _FIRST_S * _FACTOR ** (attempt - 1))
    return timedelta(seconds=wait_s * (1 + _SPREAD * (2 * draw - 1)))
