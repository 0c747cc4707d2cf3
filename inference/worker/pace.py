"""How long the model's ticks take on this machine: what the operator's targets are reckoned with."""

from __future__ import annotations

import statistics
from collections import deque
from typing import Final

from inference.scheduling.speculation import added_cost

#: Ticks that a running figure looks back on: a few seconds of decoding, a few long prompts.
_DECODES: Final = 64
_CHUNKS: Final = 32
#: Ticks of as many rows, or rounds of as many drafted tokens, from which their cost is believed.
_FEWEST: Final = 4
#: Of the chunks looked back on, the share whose cost the longest stall is reckoned with is all but this one: late
#: chunks of a long prompt cost several times the early ones, and it is they that stall.
_DEAREST: Final = 0.9


class Pace:
    """Running figures, in milliseconds; None until something was measured. Belongs to the tick thread."""

    def __init__(self) -> None:
        self._decodes: deque[float] = deque(maxlen=_DECODES)
        self._by_rows = _CostByUnits(base=1)
        self._by_drafted = _CostByUnits(base=0)
        #: Of the tick before, if it was a decode tick.
        self._rows = 0
        self._chunks: deque[float] = deque(maxlen=_CHUNKS)
        self._full_chunk: float | None = None

    def decoded(self, rows: int, seconds: float) -> None:
        """A decode tick of so many rows took so long."""
        # A decode tick's step is started at the end of the one before. Where rows have left since, it was run with them
        # and is told in a fifth of the time; where another action came between, that has waited for a part of it.
        if self._rows or not self._decodes:
            self._decodes.append(seconds * 1000)
        if rows == self._rows:
            self._by_rows.took(rows, seconds * 1000)
        self._rows = rows

    def prefilled(self, padded_tokens: int, seconds: float, chunk_tokens: int) -> None:
        """A prefill tick, or a slice 0, of so many padded tokens took so long, while a chunk was ``chunk_tokens``."""
        self._rows = 0
        token_ms = seconds * 1000 / padded_tokens
        if padded_tokens <= chunk_tokens:  # a token of a larger tick, while nothing streams, is cheaper
            self._chunks.append(token_ms)
        if padded_tokens >= chunk_tokens:
            self._full_chunk = token_ms

    def disturbed(self) -> None:
        """In a tick something failed or was run again: how long it took tells nothing, nor does what a decode tick
        behind it takes."""
        self._rows = 0

    def speculated(self, drafted: int, ms: float) -> None:
        """A round with so many drafted tokens took so long."""
        self._rows = 0
        self._by_drafted.took(drafted, ms)

    @property
    def decode_ms(self) -> float | None:
        """A decode tick: the median."""
        return statistics.median(self._decodes) if self._decodes else None

    @property
    def batch_cost(self) -> float | None:
        """What one more row adds to a decode tick, as a share of a tick of one row."""
        return self._by_rows.added

    @property
    def token_cost(self) -> float | None:
        """What one more drafted token adds to a round, as a share of a single-token step."""
        return self._by_drafted.added

    @property
    def prompt_token_ms(self) -> float | None:
        """A prompt token: the median."""
        return statistics.median(self._chunks) if self._chunks else None

    @property
    def full_chunk_token_ms(self) -> float | None:
        """A prompt token in the last tick that ran a chunk or more."""
        return self._full_chunk

    @property
    def dear_prompt_token_ms(self) -> float | None:
        """A prompt token in a chunk that costs more than nine of ten."""
        ranked = sorted(self._chunks)
        return ranked[int(_DEAREST * (len(ranked) - 1))] if ranked else None


class _CostByUnits:
    """What one more unit of a tick adds, from how long ticks of so many units took.

    Each tick changes one median, however many numbers of units there are.
    """

    def __init__(self, base: int) -> None:
        """``base``: the units of the tick that the added cost is a share of."""
        self._base = base
        self._taken: dict[int, deque[float]] = {}
        self._medians: dict[int, float] = {}

    def took(self, units: int, ms: float) -> None:
        taken = self._taken.setdefault(units, deque(maxlen=_DECODES))
        taken.append(ms)
        if len(taken) >= _FEWEST:
            self._medians[units] = statistics.median(taken)

    @property
    def added(self) -> float | None:
        """See ``scheduling.speculation.added_cost``."""
        return added_cost(self._medians, self._base)
