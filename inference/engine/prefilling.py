"""Prompts on their way to the first token: chunk by chunk alone, and their ends together."""

from __future__ import annotations

from collections.abc import Sequence

from inference.engine.decoding_rows import DecodingRows
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


def finish(rows: Sequence[Row], decoding: DecodingRows, prefixes: RowPrefixes, result: StepResult) -> None:
    """Run in one pass all that remains of these parked rows, and emit their first tokens: they decode from then on."""
    if not rows:
        return
    first, *others = rows
    batch = first.prompt_batch
    try:
        for row in others:
            batch.extend(row.prompt_batch)  # type: ignore[no-untyped-call]
        batch.prompt([row.take(row.remaining - 1) for row in rows])
        started = batch.start([row.take(1)[0] for row in rows])
        tokens = started.peek()
    except Exception as error:  # noqa: BLE001 (reported, or each row's own is found)
        if others:
            decoding.run_apart(error, rows, result)
        else:
            first.fail(error, result)
        return
    for row, token in zip(rows, tokens, strict=True):
        if (fault := started.faults.get(row.key)) is not None:
            row.fail(fault, result)
            continue
        row.state = RowState.DECODING
        row.prefill = None
        row.ahead = True
        row.tokens.append(token)
        result.tokens.append((row.key, token))
        prefixes.keep(row.namespace, started, row.key)
    started.remove(set(started.faults))
    decoding.join(started)
