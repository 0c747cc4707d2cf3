"""Prompts on their way to the first token: chunk by chunk alone, and their ends together."""

from __future__ import annotations

from collections.abc import Sequence

from inference.engine.batch import DecodeBatch, PrefillBatch
from inference.engine.decoding_rows import DecodingRows
from inference.engine.halves import Halves
from inference.engine.results import StepResult
from inference.engine.row import Row, RowState
from inference.engine.row_prefixes import RowPrefixes


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
    prefixes: RowPrefixes,
    halves: Halves | None,
    result: StepResult,
) -> None:
    """Run in one pass all that remains of these parked rows, and emit their first tokens: they decode from then on.

    Where the model cannot be cut before its head, the last tokens are a second pass.
    """
    if not rows:
        return
    try:
        started = _ended(rows, halves)
        tokens = started.peek()
    except Exception as error:  # noqa: BLE001 (reported, or each row's own is found)
        if len(rows) > 1:
            decoding.run_apart(error, rows, result)
        else:
            rows[0].fail(error, result)
        return
    for row in rows:
        # Of no use any more: it shares its list of tokens, which has grown, and not the caches that ran them.
        row.prefill = None
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
