"""One round of a sequence: the drafter guesses, the model confirms, both know what came of it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Final

from inference.engine.batch import PrefillBatch
from inference.engine.results import RoundResult
from inference.engine.speculative.drafter_handle import DrafterHandle
from inference.engine.speculative.session import Session
from inference.engine.speculative.verification import confirmed

if TYPE_CHECKING:
    from inference.engine.row import Row

_log: Final = logging.getLogger(__name__)


def run_round(
    row: Row,
    session: Session,
    drafter: DrafterHandle,
    draft_tokens: int,
    vocab_size: int,
    run_again: Callable[[Row], PrefillBatch],
) -> RoundResult:
    """One round of a row, with at most ``draft_tokens`` guesses; with 0 the drafter is not asked.

    A round that fails is run once more from the row's tokens, without guesses: ``run_again`` gives the row in a
    batch of its own, all but its last token run. Only if that fails too it is the row's fault.
    """
    begin = perf_counter()
    asked = min(draft_tokens, session.room)
    guesses, drafter_fault = drafter.draft(row.draft_context, asked, vocab_size) if asked > 0 else ([], None)
    drafted = perf_counter()
    fault: Exception | None = None
    rerun = False
    try:
        tokens = session.advance(guesses)
        fault = None if tokens else session.fault
    except Exception as error:  # noqa: BLE001 (logged; the row's own is found)
        _log.warning("a round of %s failed, and is run again without guesses", row.key, exc_info=error)
        rerun = True
        try:
            row.session = session = Session(run_again(row), row.tokens[-1])
            tokens = session.advance([])
            fault = None if tokens else session.fault
        except Exception as own:  # noqa: BLE001 (reported)
            tokens, fault = [], own
    row.tokens += tokens
    accepted = confirmed(guesses, tokens)
    verified = perf_counter()
    if asked > 0 and drafter_fault is None and tokens:
        drafter_fault = drafter.observe(row.key, tokens, len(guesses), accepted)
    observed = perf_counter()
    return RoundResult(
        tokens,
        len(guesses),
        accepted,
        draft_ms=(drafted - begin + observed - verified) * 1000,
        verify_ms=(verified - drafted) * 1000,
        rerun=rerun,
        fault=fault,
        drafter_fault=drafter_fault,
    )
