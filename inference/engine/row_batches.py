"""A batch for one row: begun behind what is known of it, or anew from its tokens."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from mlx.nn.layers.base import Module

from inference.engine.batch import PrefillBatch
from inference.engine.row import Row, RowState
from inference.engine.row_prefixes import Prefix, RowPrefixes
from inference.engine.sampling import RowSampler

_log: Final = logging.getLogger(__name__)


class RowBatches:
    """Makes the batches of rows that are alone.

    ``chunk_tokens``: how many tokens at most are run in one forward pass when a row is run again.
    """

    def __init__(self, model: Module, vocab_size: int, prefixes: RowPrefixes) -> None:
        self.chunk_tokens = 512
        self._model = model
        self._vocab_size = vocab_size
        self._prefixes = prefixes
        #: As much had been stored in the prefix cache when all waiting rows were looked up.
        self._stored = 0

    def warm(self, row: Row) -> None:
        """Begin a row with the longest prefix that is known by now."""
        behind = self._behind_known(row, beyond=row.run)
        if behind is not None:
            row.prefill = behind
            row.run = row.cached = len(behind.tokens[0])
        elif row.prefill is None:
            row.prefill = self._fresh(row)

    def warm_waiting(self, rows: Iterable[Row]) -> None:
        """Warm those of ``rows`` that have not begun, if anything was stored since the last time, by a sequence that
        was run while they waited."""
        if self._stored == self._prefixes.cache.stored:
            return
        self._stored = self._prefixes.cache.stored
        for row in rows:
            if row.state is RowState.PARKED and not row.begun:
                self.warm(row)

    def begin(self, row: Row) -> None:
        """Count a row, with what was found of it, when its first chunk is run."""
        if not row.begun:
            self._prefixes.count(row.namespace, row.cached)
            row.begun = True

    def renew(self, row: Row, known: Prefix | None = None) -> None:
        """Begin a row anew from its tokens: behind ``known``, or else behind what the prefix cache holds of them."""
        behind = self._behind_known(row) if known is None else self._fresh(row, known)
        row.prefill = self._fresh(row) if behind is None else behind
        row.run = len(row.prefill.tokens[0])

    def run_on(self, row: Row, most: int) -> int:
        """Run at most ``most`` of a row's tokens, in one forward pass, and never its last; how many were run."""
        count = min(most, len(row.tokens) - 1 - row.run)
        if count > 0:
            row.prompt_batch.prompt([row.take(count)])
        return count

    def run_again(self, row: Row, known: Prefix | None = None) -> PrefillBatch:
        """The row renewed, in a batch of its own that has run all of its tokens but the last."""
        self.renew(row, known)
        while self.run_on(row, self.chunk_tokens):
            pass
        prefill, row.prefill = row.prompt_batch, None
        return prefill

    def _behind_known(self, row: Row, beyond: int = 0) -> PrefillBatch | None:
        """The row behind the longest prefix that is known; None if that has no more than ``beyond`` tokens.

        Also None, and in the log, if looking it up fails: it costs the sequence nothing but the hit.
        """
        try:
            prefix = self._prefixes.find(row.namespace, row.tokens, beyond)
            return None if prefix is None else self._fresh(row, prefix)
        except Exception:  # noqa: BLE001 (logged)
            _log.warning("the prefixes of %s could not be looked up, and are run", row.key, exc_info=True)
            return None

    def _fresh(self, row: Row, prefix: Prefix | None = None) -> PrefillBatch:
        prompt, emitted = row.tokens[: row.prompt_length], row.tokens[row.prompt_length :]
        sampler = RowSampler(row.sampling, self._vocab_size, prompt, emitted)
        return PrefillBatch.of_one(self._model, row.key, sampler, row.processors, prefix)
