"""The rows that decode together, and what becomes of those that fail together."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final

import mlx.core as mx
from mlx.nn.layers.base import Module

from inference.engine.batch import DecodeBatch
from inference.engine.results import StepResult
from inference.engine.row import Row, RowState
from inference.engine.row_batches import RowBatches
from inference.engine.row_prefixes import RowPrefixes

_log: Final = logging.getLogger(__name__)


class DecodingRows:
    """One batch of rows: a step gives each of them a token, or a fault of its own."""

    def __init__(self, model: Module, row_batches: RowBatches, prefixes: RowPrefixes) -> None:
        self._model = model
        self._row_batches = row_batches
        self._prefixes = prefixes
        self._batch = DecodeBatch.without_rows(model)
        self._leaving: set[str] = set()

    def join(self, batch: DecodeBatch) -> None:
        """Take in the rows of another batch, which must not be used any more."""
        self._batch.extend(batch)

    def leave(self, row: Row) -> None:
        """A row is dropped: keep in the prefix cache what was run of it. It is in the way until the next ``sweep``."""
        # Rows that leave together, leave in one go: the batch copies its caches each time.
        self._leaving.add(row.key)
        self._prefixes.keep(row.namespace, self._batch, row.key)
        if len(self._leaving) == len(self._batch):
            self.sweep()

    def sweep(self) -> None:
        """Take the rows out that have left."""
        self._batch.remove(self._leaving)
        self._leaving = set()

    def step(self, rows: Mapping[str, Row], result: StepResult, *, more: bool = True) -> None:
        """A token for every row; ``rows`` has them all, by key.

        One that is ``ahead`` gets none: the batch hands out again what it has. Without ``more``, and if none is, the
        tokens are handed out and not run: all rows are ahead then.
        """
        self.sweep()
        if not len(self._batch):
            return
        more = more or any(rows[key].ahead for key in self._batch.uids)
        try:
            handed_out = self._batch.step() if more else self._batch.hand_out()
        except Exception as error:  # noqa: BLE001 (logged, and then each row's own is found)
            self.run_apart(error, [rows[key] for key in self._batch.uids], result)
            return
        for key, token in handed_out:
            row = rows[key]
            if row.ahead:
                row.ahead = False
            else:
                row.tokens.append(token)
                row.ahead = not more
                result.tokens.append((key, token))
        _doom(self._batch, rows)

    def run_apart(self, error: Exception, rows: Sequence[Row], result: StepResult) -> None:
        """Run each of these rows again alone and emit its next token, after they failed together.

        They are all that decode, or all of a prefill. Those that decoded make up the batch again.
        """
        _log.warning("%d sequences failed together and are run again, each alone", len(rows), exc_info=error)
        if any(row.state is RowState.DECODING for row in rows):
            self._batch = DecodeBatch.without_rows(self._model)
        for row in rows:
            row.prefill = None
        mx.clear_cache()
        for row in rows:
            try:
                alone = self._row_batches.run_again(row).start(row.take(1))
                [token] = alone.peek()
            except Exception as fault:  # noqa: BLE001 (reported)
                row.fail(fault, result)
                continue
            if (own := alone.faults.get(row.key)) is not None:
                row.fail(own, result)
                continue
            row.state = RowState.DECODING
            row.ahead = False
            row.tokens.append(token)
            result.tokens.append((row.key, token))
            try:
                alone.step()
            except Exception as fault:  # noqa: BLE001 (reported when its turn comes)
                row.state, row.fault = RowState.DOOMED, fault
            else:
                _doom(alone, {row.key: row})
                self._batch.extend(alone)


def _doom(batch: DecodeBatch, rows: Mapping[str, Row]) -> None:
    """Take out of a batch the rows whose next token could not be computed."""
    for key, fault in batch.faults.items():
        rows[key].state, rows[key].fault = RowState.DOOMED, fault
    batch.remove(set(batch.faults))
