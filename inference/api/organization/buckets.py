"""Usage in buckets of time, a page of them at once, as OpenAI's usage routes give it. Pure.

Buckets are those of UTC: they begin with its minutes, hours and days. The first and the last are cut to what was asked
for. All times are whole seconds of Unix time.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

#: Widths by their names in the API, in seconds. No day of UTC has another length, as Unix time counts.
WIDTHS: Final = {"1m": 60, "1h": 3600, "1d": 86_400}
#: The last second that every calendar here knows: the end of the year 9998, UTC.
LAST: Final = 253_370_764_799

_PAGE: Final = re.compile(rb"from:([0-9]{1,12})")


class WrongPage(Exception):
    """The page is none that an answer to the same question named."""


@dataclass(frozen=True, slots=True)
class Slice:
    """The buckets of one page: of ``width`` seconds, from ``start`` to before ``end``.

    ``next_page`` names what follows, None where nothing does.
    """

    start: int
    end: int
    width: int
    next_page: str | None

    @property
    def since(self) -> datetime:
        return datetime.fromtimestamp(self.start, UTC)

    @property
    def until(self) -> datetime:
        return datetime.fromtimestamp(self.end, UTC)

    def bounds(self) -> Iterator[tuple[int, int]]:
        """Where each bucket begins and ends, in order, without gaps."""
        start = self.start
        while start < self.end:
            end = min(start - start % self.width + self.width, self.end)
            yield start, end
            start = end


def slice_of(start: int, end: int, *, width: int, limit: int, page: str | None) -> Slice:
    """The page of at most ``limit`` buckets, of those from ``start`` to before ``end``. Raises ``WrongPage``."""
    first = start if page is None else _read(page)
    if page is not None and not (start < first < end and first % width == 0):
        raise WrongPage
    last = min(first - first % width + limit * width, end)
    return Slice(first, last, width, _name(last) if last < end else None)


def _name(start: int) -> str:
    return urlsafe_b64encode(b"from:%d" % start).decode().rstrip("=")


def _read(page: str) -> int:
    try:
        text = urlsafe_b64decode(page.encode() + b"=" * (-len(page) % 4))
    except NotBase64 as error:
        raise WrongPage from error
    match = _PAGE.fullmatch(text)
    if match is None:
        raise WrongPage
    return int(match[1])
