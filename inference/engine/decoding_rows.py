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
    """One batch of rows: a step gives each of them a token, or a fault of its own.

    Rows that fail together are run again from their tokens, each alone, for what a failed pass has left in their caches
    is no good. Each begins behind what the prefix cache holds of it, which is its prompt as a rule: that costs the
    tokens of its answer. Without that it costs its prompt too. (By halves would cost more: all rows but the bad one
    have to be run again in any case, and those beside it once more for each halving.) However much it is, a step runs
    about a chunk of it, row by row, and gives the others their tokens.

    Those that fail alone as well are faulted in one step: with the first token of another, which got on beside them, or
    once nobody is left that could.
    """

    def __init__(self, model: Module, row_batches: RowBatches, prefixes: RowPrefixes) -> None:
        self._model = model
        self._row_batches = row_batches
        self._prefixes = prefixes
        self._batch = DecodeBatch.without_rows(model)
        self._leaving: set[str] = set()
        #: Rows that are being run again, or wait for it.
        self._apart: dict[str, Row] = {}

    def join(self, batch: DecodeBatch) -> None:
        """Take in the rows of another batch, which must not be used any more."""
        self.sweep()
        self._batch.extend(batch)

    def leave(self, row: Row) -> None:
        """A row is dropped: keep in the prefix cache what was run of it. It is in the way until the next ``sweep``."""
        if self._apart.pop(row.key, None) is not None:
            return
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
        tokens are handed out and not run: all rows are ahead then. Nor does one get any that is still being run again.
        """
        self.sweep()
        if len(self._batch):
            self._step_batch(rows, result, more=more)
        if self._apart:
            self._run_apart(result)
        self._tell_doomed(rows, result)

    def _step_batch(self, rows: Mapping[str, Row], result: StepResult, *, more: bool) -> None:
        more = more or any(rows[key].ahead for key in self._batch.uids)
        try:
            handed_out = self._batch.step() if more else self._batch.hand_out()
        except Exception as error:  # noqa: BLE001 (logged, and then each row's own is found)
            failed = [rows[key] for key in self._batch.uids]
            log_failed_together(failed, error)
            self._batch = DecodeBatch.without_rows(self._model)
            self._apart |= {row.key: row for row in failed}
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

    def _run_apart(self, result: StepResult) -> None:
        """Run about a chunk of what is to be run again; who is done with it has a token, and is in the batch again."""
        result.rerun = True
        mx.clear_cache()
        left = self._row_batches.chunk_tokens
        for row in list(self._apart.values()):
            if left <= 0:
                return
            try:
                if row.prefill is None:
                    self._row_batches.renew(row)
                left -= self._row_batches.run_on(row, left)
                if row.run < len(row.tokens) - 1:
                    return
                alone = row.prompt_batch.start(row.take(1))
                [token] = alone.peek()
            except Exception as fault:  # noqa: BLE001 (reported when it is seen who got on)
                del self._apart[row.key]
                row.doom(fault)
                continue
            left -= 1
            del self._apart[row.key]
            if (own := alone.faults.get(row.key)) is not None:
                row.doom(own)
                continue
            row.prefill = None
            row.ahead = False
            row.tokens.append(token)
            result.tokens.append((row.key, token))
            try:
                alone.step()
            except Exception as fault:  # noqa: BLE001 (reported when its turn comes)
                row.doom(fault)
            else:
                _doom(alone, {row.key: row})
                self._batch.extend(alone)

    def _tell_doomed(self, rows: Mapping[str, Row], result: StepResult) -> None:
        """Fault the doomed, once it is known who got on beside them. Not yet who has a token of this step: it may be
        the last that is wanted."""
        doomed = [row for row in rows.values() if row.state is RowState.DOOMED]
        if not doomed or (self._apart and not result.tokens):
            return
        served = dict(result.tokens)
        for row in doomed:
            if row.key not in served and row.fault is not None:
                row.fail(row.fault, result)


def log_failed_together(rows: Sequence[Row], error: Exception) -> None:
    """Say that these are run again, each alone, and why."""
    _log.warning("%d sequences failed together and are run again, each alone", len(rows), exc_info=error)


def _doom(batch: DecodeBatch, rows: Mapping[str, Row]) -> None:
    """Take out of a batch the rows whose next token could not be computed."""
    for key, fault in batch.faults.items():
        rows[key].doom(fault)
    batch.remove(set(batch.faults))
