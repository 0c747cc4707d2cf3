"""Prompts on their way to the first token: chunk by chunk alone, and their ends together."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from inference.engine.batch import DecodeBatch, PrefillBatch
from inference.engine.decoding_rows import DecodingRows, log_failed_together
from inference.engine.halves import Halves
from inference.engine.results import StepResult
from inference.engine.row import Row, RowState
from inference.engine.row_batches import RowBatches
from inference.engine.row_prefixes import Prefix, RowPrefixes


def run_chunk(row: Row, chunk_tokens: int, result: StepResult) -> bool:
    """Run a chunk of a parked row, unless it would be its last; whether it would."""
    if row.remaining <= chunk_tokens:
        return True
    try:
        row.prompt_batch.prompt([row.take(chunk_tokens)])
    except Exception as fault:  # noqa: BLE001 (reported)
        row.fail(fault, result)
    return False


def finish(
    rows: Sequence[Row],
    decoding: DecodingRows,
    row_batches: RowBatches,
    prefixes: RowPrefixes,
    halves: Halves | None,
    result: StepResult,
) -> None:
    """Run in one pass all that remains of these parked rows, and emit their first tokens: they decode from then on.

    Where the model cannot be cut before its head, the last tokens are a second pass. If the pass fails, what remained
    of each row is run again alone, behind what had been run of it before: that costs as much as the pass did.
    """
    if not rows:
        return
    before = [prefixes.taken_from(row.prompt_batch, row.key) for row in rows] if len(rows) > 1 else [None]
    ended = _try_to_end(rows, halves, result)
    for row in rows:
        # Of no use any more: it shares its list of tokens, which has grown, and not the caches that ran them.
        row.prefill = None
    if ended is None:
        mx.clear_cache()
        for row, known in zip(rows, before, strict=True):
            if row.state is not RowState.FAULTED and _renewed(row, known, row_batches, result):
                finish([row], decoding, row_batches, prefixes, halves, result)
        return
    started, tokens = ended
    for row, token in zip(rows, tokens, strict=True):
        if (fault := started.faults.get(row.key)) is not None:
            row.fail(fault, result)
            continue
        row.state = RowState.DECODING
        row.ahead = True
        row.tokens.append(token)
        result.tokens.append((row.key, token))
        prefixes.keep(row.namespace, started, row.key)
    started.remove(set(started.faults))
    decoding.join(started)


def _try_to_end(
    rows: Sequence[Row], halves: Halves | None, result: StepResult
) -> tuple[DecodeBatch, list[int]] | None:
    """These rows as decoding ones, and their first tokens. None if the pass fails: one that was alone is faulted."""
    try:
        started = _ended(rows, halves)
        return started, started.peek()
    except Exception as error:  # noqa: BLE001 (reported, or each row's own is found)
        if len(rows) > 1:
            log_failed_together(rows, error)
        else:
            rows[0].fail(error, result)
        return None


def _renewed(row: Row, known: Prefix | None, row_batches: RowBatches, result: StepResult) -> bool:
    """Begin a parked row again behind what is ``known`` of it, and run all but its last token; whether it could be."""
    result.rerun = True
    try:
        row.prefill = row_batches.run_again(row, known)
    except Exception as fault:  # noqa: BLE001 (reported)
        row.fail(fault, result)
        return False
    return True


def _ended(rows: Sequence[Row], halves: Halves | None) -> DecodeBatch:
    batch = _merged([row.prompt_batch for row in rows])
    if halves is not None:
        return batch.end([row.take(row.remaining) for row in rows], halves)
    batch.prompt([row.take(row.remaining - 1) for row in rows])
    return batch.start([row.take(1)[0] for row in rows])


def _merged(batches: Sequence[PrefillBatch]) -> PrefillBatch:
    """All rows in one batch, in order. None of these must be used any more.

    Pair by pair, and then pairs of pairs: each merging copies the caches of both, so one after the other the first
    would be copied as often as there are rows.
    """
    while len(batches) > 1:
        pairs = [batches[start : start + 2] for start in range(0, len(batches), 2)]
        for pair in pairs:
            for other in pair[1:]:
                pair[0].extend(other)  # type: ignore[no-untyped-call]
        batches = [pair[0] for pair in pairs]
    return batches[0]
