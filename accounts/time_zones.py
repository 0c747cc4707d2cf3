"""The time zones that a tenant's calendar may be given."""

from __future__ import annotations

from typing import Final
from zoneinfo import available_timezones

#: In every machine's list, and no place: what *localtime* means is another thing on each, and *Factory* says that
#: nobody has set it.
_NO_PLACES: Final = frozenset({"Factory", "localtime"})


def time_zones() -> set[str]:
    """Their names, as in ``Asia/Seoul``."""
    return available_timezones() - _NO_PLACES
