"""The worker's KV memory: what there is, what is given away, and what the prefix cache may have of the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from inference.scheduler_settings import SchedulerSettings
from inference.scheduling.memory import Capacity, Room
from inference.worker.holdings import NOBODY, Holdings

#: The prefix cache's share of the budget where the operator has set none.
_CACHE_SHARE: Final = 0.25
#: A model whose caches do not grow: no sequence is too long for its memory. More than any context has, and the most
#: that every database keeps in the model's row.
_UNLIMITED: Final = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class KvBudget:
    """Bytes: all of the caches together, what is kept free while rows decode, and the prefix cache's most."""

    total: int
    watermark: int
    prefix_cache: int

    @classmethod
    def of(cls, settings: SchedulerSettings, device_bytes: int, fixed_bytes: int) -> Self:
        """``device_bytes``: what the machine has for caches, for settings that name no budget. ``fixed_bytes``: what a
        sequence takes however short it is; it is set aside for every slot."""
        total = (settings.kv_budget_bytes or device_bytes) - settings.slots * fixed_bytes
        total = max(0, total)
        cache = settings.prefix_cache_bytes
        return cls(
            total=total,
            watermark=total * settings.kv_watermark_percent // 100,
            prefix_cache=min(total, int(total * _CACHE_SHARE) if cache is None else cache),
        )


class KvMemory:
    """Shared by the worker's threads: the tick thread tells what runs and is cached, the claim thread asks for room.

    What was claimed is the holdings' to know: a claim has its room from the moment it is made.
    """

    def __init__(self, holdings: Holdings, budget: KvBudget, *, bytes_per_token: int, step: int) -> None:
        """``bytes_per_token`` and ``step``: how a sequence's cache grows, see ``scheduling.memory``."""
        self.budget = budget
        #: Rows that decode, and bytes of the prefix cache, as of the last tick.
        self.decoding = 0
        self.cached = 0
        #: As ``longest_sequence``, of the other workers that serve the model, those included that may come back; None:
        #: not known, and what is too long for this one is not ended.
        self.longest_elsewhere: int | None = None
        self._holdings = holdings
        self._bytes_per_token = bytes_per_token
        self._step = step

    def capacity(self, leaving: Mapping[str, int] = NOBODY) -> Capacity:
        """What can be taken on now, or once ``leaving`` (epochs by generation) have left."""
        given = self._holdings.given(leaving)
        return Capacity(
            room=Room(
                budget=self.budget.total,
                watermark=self.budget.watermark,
                given=given,
                cached=self.cached,
            ),
            bytes_per_token=self._bytes_per_token,
            step=self._step,
            free_rows=self._holdings.slots - len(given),
            decoding=self.decoding > 0,
            longest_elsewhere=self.longest_elsewhere,
        )

    def longest_sequence(self) -> int:
        """Tokens of the longest sequence that fits when nothing else runs."""
        if not self._bytes_per_token:
            return _UNLIMITED
        return min(_UNLIMITED, self.budget.total // (self._bytes_per_token * self._step) * self._step)

    def longest_anywhere(self) -> int:
        """As ``longest_sequence``, of this worker or of whichever other has the most, as far as they are known."""
        return max(self.longest_sequence(), self.longest_elsewhere or 0)

    def cache_budget(self, reserved: int) -> int:
        """Bytes that the prefix cache may have beside the ``reserved`` ones, which sequences can take."""
        return max(0, min(self.budget.prefix_cache, self.budget.total - self.budget.watermark - reserved))
