"""The model at work: sequences go in, tokens come out, one action at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Final

import mlx.core as mx
from mlx_lm.sample_utils import LogitsProcessor
from mlx_lm.utils import maybe_set_recommended_wired_limit

from inference.engine.blas import loaded_blas
from inference.engine.decoding_rows import DecodingRows
from inference.engine.device_memory import cache_budget
from inference.engine.drafting.drafter import Drafter
from inference.engine.halves import cut
from inference.engine.kv_growth import measure_growth
from inference.engine.model_loading import load_prepared
from inference.engine.prefilling import finish, run_chunk
from inference.engine.prefix_cache import PrefixCounters
from inference.engine.results import RoundResult, StepResult
from inference.engine.row import Row, RowState
from inference.engine.row_batches import RowBatches
from inference.engine.row_prefixes import RowPrefixes
from inference.engine.speculative.drafter_handle import DrafterHandle
from inference.engine.speculative.rollback import cannot_roll_back
from inference.engine.speculative.rounds import run_round
from inference.engine.speculative.session import Session
from inference.messages import Sampling
from inference.tokenization import tokenizer

__all__ = ["Engine", "RoundResult", "StepResult"]

#: Steps between two returns of unused buffers to the system.
_STEPS_PER_CLEARING: Final = 512
#: Tokens that a row needs at least to be padded to a longer one. The last may be a pass of its own, and what is before
#: it must be several alone too: in passes of one token and of several the same token need not get the same bits.
_SHORTEST_PADDED: Final = 3


class Engine:
    """Owns one model on one machine; every method must be called on the thread that made it.

    A sequence is admitted, prefilled in chunks until its first token comes out, decoded with all others, and
    dropped. When it ends is the caller's decision: the engine knows no end token and no limit.

    Or it speculates: from its last chunk on (``slice_zero``) it has caches of its own, and gets several tokens at a
    time (``speculate``), for as long as its caller wants; then it may join the others (``into_classic``).

    A step that fails as a whole is taken apart: each of its sequences is run again alone, from the tokens
    that are known, in this step or the next ones, and only those that fail alone as well are faulted: all of them in
    one step, with the first token of the others, or once they are known to be all.

    What was run of a sequence is kept for others of its namespace that begin alike, within a byte budget; what was
    published of it, for all.
    """

    def __init__(self, model_dir: Path, prefix_cache_bytes: int = 0) -> None:
        """Load the prepared model in ``model_dir``; ``prefix_cache_bytes`` is the prefix cache's budget, 0 for none.

        Raises ``PreparationError`` or ``TokenizerError``, in one line, when it cannot be served.
        """
        self._thread = threading.get_ident()
        self.tokenizer: Final = tokenizer.load(model_dir)
        self.model, self.record = load_prepared(model_dir)
        self.context_length: Final = self.record.context_length
        self.device: Final = _device()
        self.blas: Final = str(loaded_blas() or "not chosen")
        maybe_set_recommended_wired_limit()
        growth = measure_growth(self.model, self.context_length)
        #: What a sequence's caches take: bytes for each token, by steps of so many, and bytes whatever its length.
        self.kv_bytes_per_token: Final = growth.bytes_per_token
        self.kv_step: Final = growth.step
        self.kv_fixed_bytes: Final = growth.fixed_bytes
        #: Bytes that this machine has for caches beside the model.
        self.device_cache_bytes: Final = cache_budget(self.record.size_bytes)
        self._halves = cut(self.model)
        self._prefixes = RowPrefixes(self.model, prefix_cache_bytes)
        self._row_batches = RowBatches(self.model, self.record.vocab_size, self._prefixes)
        #: The drafter that the sequences share; ``set_drafter`` says which.
        self.drafter: Final = DrafterHandle()
        self._rows: dict[str, Row] = {}
        self._decoding_rows = DecodingRows(self.model, self._row_batches, self._prefixes)
        self._steps = 0

    @property
    def keys(self) -> tuple[str, ...]:
        """Every admitted sequence that was not dropped, in admission order."""
        return tuple(self._rows)

    @property
    def decoding(self) -> int:
        """Sequences to which the next ``decode`` will give a token or a fault, if they are not being run again."""
        return sum(row.state in (RowState.DECODING, RowState.DOOMED) for row in self._rows.values())

    def remaining(self, key: str) -> int:
        """Prompt tokens still to run; 0 once the sequence decodes."""
        return self._rows[key].remaining

    def cached_tokens(self, key: str) -> int:
        """Tokens of the sequence's prompt that were found in the prefix cache instead of being run.

        ``look_up_prefixes`` may find more until its first chunk is run.
        """
        row = self._rows[key]
        return min(row.cached, row.prompt_length)

    @property
    def prefix_cache_bytes(self) -> int:
        """Bytes that the prefix cache holds; ``evict`` can free all of them."""
        return self._prefixes.cache.bytes

    @property
    def prefix_counters(self) -> PrefixCounters:
        return self._prefixes.cache.counters

    def set_prefix_budget(self, byte_budget: int, spare: Set[str] = frozenset()) -> None:
        """Change the prefix cache's budget, evicting what no longer fits, of the namespaces ``spare`` last.

        0 turns the cache off.
        """
        self._check_thread()
        self._prefixes.set_budget(byte_budget, spare)

    def publish(self, prefixes: Sequence[Sequence[int]]) -> None:
        """Share these prefixes between all namespaces, and none that was published before and is not among them.

        A prefix is kept for all when a sequence that begins with it has run it; nothing that follows it is. One that
        is no longer published cannot be found any more; sequences that have begun with it go on. Models whose caches
        cannot be cut (sliding windows, recurrent states) share none.
        """
        self._check_thread()
        self._prefixes.publish(prefixes)

    def evict(self, bytes_: int, spare: Set[str] = frozenset()) -> int:
        """Free ``bytes_`` of the prefix cache, of the namespaces ``spare`` last; how many were freed."""
        self._check_thread()
        return self._prefixes.cache.evict(bytes_, spare)

    def admit(
        self,
        key: str,
        prompt: Sequence[int],
        sampling: Sampling,
        emitted: Sequence[int] = (),
        *,
        namespace: str | None = None,
        processors: Sequence[LogitsProcessor] = (),
        draft_pool: str | None = None,
        teaches: bool = False,
    ) -> None:
        """Park a sequence for prefill.

        ``emitted`` are tokens that an earlier run produced: they are run with the prompt, and what follows
        is what would have followed there. ``processors`` are mlx-lm's: each takes the sequence's tokens and its
        logits, ``(1, vocabulary)``, and returns logits; it must depend on its arguments alone. ``namespace``: whose
        prefixes the sequence may begin with and leaves its own to, besides those published for all; with None it
        does neither. ``draft_pool``: whose texts a drafter may look in for it; it takes in what the sequence
        produces if that ``teaches``.

        Raises ``ValueError`` for an empty or too long sequence, a token that the model has not, or
        a key that is taken.
        """
        self._check_thread()
        if key in self._rows:
            raise ValueError(f"Sequence {key!r} is already admitted.")
        tokens = [*prompt, *emitted]
        row = Row(key, tokens, len(prompt), sampling, tuple(processors), namespace, draft_pool, teaches)
        row.check(self.context_length, self.record.vocab_size)
        self._row_batches.warm(row)
        self._rows[key] = row

    def look_up_prefixes(self) -> None:
        """Look in the prefix cache for all parked sequences of which nothing was run, as for one that is admitted.

        What it finds shortens ``remaining``: to be called before it is decided what to run. It costs nothing if nothing
        was kept since the last call.
        """
        self._check_thread()
        self._row_batches.warm_waiting(self._rows.values())

    def set_rerun_tokens(self, tokens: int) -> None:
        """Run so many tokens at most in a pass, and about as many beside a ``decode``, of what has to be run again."""
        self._check_thread()
        self._row_batches.chunk_tokens = tokens

    def prefill(self, keys: Sequence[str], chunk_tokens: int) -> StepResult:
        """Run at most ``chunk_tokens`` tokens of each of these parked prompts.

        Those that this finishes emit their first token. They run in one forward pass, padded to the longest; those with
        one token left in another, and those with two in a third.
        """
        result = StepResult()
        groups: dict[int, list[Row]] = {}
        for row in self._begin(keys):
            if run_chunk(row, chunk_tokens, result):
                groups.setdefault(min(row.remaining, _SHORTEST_PADDED), []).append(row)
        for rows in groups.values():
            finish(rows, self._decoding_rows, self._row_batches, self._prefixes, self._halves, result)
        return result

    def decode(self, *, more: bool = True) -> StepResult:
        """One token for every decoding sequence.

        A sequence that emitted its first token in a prefill since the last ``decode`` may get none: the
        batch is one step ahead, and its next token is only now being computed. Nor do those that failed together in an
        earlier step get any until they have been run again, a part a step. ``more``: whether any of them will be
        asked for another. If not, none is computed that nobody takes; and who was mistaken loses a step, and no token.
        """
        self._check_thread()
        result = StepResult()
        self._decoding_rows.step(self._rows, result, more=more)
        self._count_step()
        return result

    def set_drafter(self, factory: Callable[[], Drafter] | None) -> None:
        """Make the drafter by this from now on, on this thread; None for none. What it raises is in the log and in
        ``drafter.fault``, and costs no sequence anything but speed."""
        self._check_thread()
        self.drafter.set_factory(factory)

    def cannot_speculate(self, key: str) -> str | None:
        """Why a parked or speculating sequence can draft no (further) token; None if it can."""
        row = self._rows[key]
        if row.session is not None:
            return cannot_roll_back(row.session.batch.prompt_cache, len(row.tokens) - 1)
        if row.prefill is not None:
            return cannot_roll_back(row.prefill.prompt_cache, len(row.tokens))
        return f"it is {row.state}"

    def slice_zero(self, key: str, chunk_tokens: int) -> StepResult:
        """Run at most ``chunk_tokens`` tokens of a parked prompt; with the last of them comes the first token.

        From then on the sequence speculates: it has caches of its own, and ``decode`` passes it by.
        """
        result = StepResult()
        [row] = self._begin([key])
        if not run_chunk(row, chunk_tokens, result):
            return result
        try:
            batch = row.prompt_batch
            batch.prompt([row.take(row.remaining - 1)])
            row.session = Session(batch, row.take(1)[0])
            tokens = row.session.advance([])
        except Exception as fault:  # noqa: BLE001 (reported)
            row.fail(fault, result)
            return result
        if row.session.fault is not None:
            row.fail(row.session.fault, result)
            return result
        row.state, row.prefill = RowState.SPECULATING, None
        row.tokens += tokens
        result.tokens += [(key, token) for token in tokens]
        self._prefixes.keep(row.namespace, batch, key)
        return result

    def take_drafter(self, key: str) -> bool:
        """Take the drafter for a sequence; False: there is none to be had. ``RuntimeError`` if another has it."""
        self._check_thread()
        return self.drafter.take(self._rows[key].draft_context)

    def return_drafter(self, key: str) -> None:
        """Return the drafter, if this sequence has it: its grant is over. To drop a sequence returns it too."""
        self._check_thread()
        self.drafter.give_back(key)

    def speculate(self, key: str, draft_tokens: int) -> RoundResult:
        """One round of a speculating sequence: one forward pass over at most ``draft_tokens`` drafted tokens.

        It needs the drafter, unless ``draft_tokens`` is 0: that is a plain step, of one token.
        """
        session = self._session(key)
        row = self._rows[key]
        vocab_size = self.record.vocab_size
        round_ = run_round(row, session, self.drafter, draft_tokens, vocab_size, self._row_batches.run_again)
        if round_.fault is not None:
            row.fail(round_.fault, StepResult())
            self.drafter.give_back(key)
        self._count_step()
        return round_

    def into_classic(self, key: str) -> None:
        """Let a speculating sequence decode with the others from its next token on. Nothing of it is run again."""
        session = self._session(key)
        row = self._rows[key]
        self.drafter.give_back(key)
        row.session = None
        if session.fault is not None:
            row.doom(session.fault)
            return
        row.state, row.ahead = RowState.DECODING, True
        self._decoding_rows.join(session.into_batch())

    def learn_from(self, key: str, emitted: int) -> None:
        """The sequence is over, after ``emitted`` tokens: if it teaches, the drafter takes in what it produced."""
        self._check_thread()
        context = self._rows[key].draft_context
        tokens = context.tokens[: context.prompt_length + emitted]
        self.drafter.learn_from(replace(context, tokens=tokens))

    def drop(self, key: str) -> None:
        """Forget a sequence, wherever it is, and free its cache. Raises ``KeyError`` for an unknown one.

        What was run of it is kept in the prefix cache, unless it is faulted.
        """
        self._check_thread()
        row = self._rows.pop(key)
        self.drafter.give_back(key)
        if row.prefill is not None:
            self._prefixes.keep(row.namespace, row.prefill, key)
        if row.session is not None:
            self._prefixes.keep(row.namespace, row.session.batch, key)
        if row.state is RowState.DECODING:
            self._decoding_rows.leave(row)

    def _begin(self, keys: Sequence[str]) -> list[Row]:
        """These parked rows, ready for a chunk."""
        self._check_thread()
        self._decoding_rows.sweep()
        rows = [self._rows[key] for key in keys]
        for row in rows:
            if row.state is not RowState.PARKED:
                raise ValueError(f"Sequence {row.key!r} is {row.state}, not parked.")
            self._row_batches.begin(row)
        return rows

    def _session(self, key: str) -> Session:
        self._check_thread()
        row = self._rows[key]
        if row.session is None:
            raise ValueError(f"Sequence {key!r} is {row.state}, not speculating.")
        return row.session

    def _count_step(self) -> None:
        self._steps += 1
        if self._steps % _STEPS_PER_CLEARING == 0:
            mx.clear_cache()

    def _check_thread(self) -> None:
        if threading.get_ident() != self._thread:
            raise RuntimeError("The engine belongs to the thread that made it: MLX's streams are per thread.")


def _device() -> str:
    kind = "gpu" if mx.default_device().type == mx.DeviceType.gpu else "cpu"
    return f"{kind}: {mx.device_info().get('device_name', 'unknown')}"
