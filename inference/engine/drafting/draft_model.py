"""A small model of the same tokenizer that guesses for a large one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, cast

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx_lm.models.cache import can_trim_prompt_cache, make_prompt_cache, trim_prompt_cache

from inference.engine.drafting.confidence import LEAST_CONFIDENCE
from inference.engine.drafting.drafter import DraftContext, DrafterFault
from inference.engine.drafting.sessions import Sessions
from inference.engine.model_loading import load_prepared
from inference.engine.preparation.problems import PreparationError
from inference.engine.row_prefixes import flat
from inference.tokenization import tokenizer as tokenizers
from inference.tokenization.tokenizer import Tokenizer, TokenizerError
from inference.tokenization.vocabulary import difference_between

#: Tokens of one forward pass when a sequence is bound for the first time.
_CHUNK_TOKENS: Final = 512


class DraftModel:
    """Guesses the most probable token, again and again, as long as it is sure enough.

    Each of the last few sequences has caches of its own. Binding cuts them back to what the sequence has in common
    with what was run, drafts that were not accepted included, and runs the rest.
    """

    name: str = "draft_model"

    def __init__(self, model_dir: Path, target: Tokenizer) -> None:
        """Load the prepared model in ``model_dir``; ``target`` is the tokenizer of the model it guesses for.

        Raises ``DrafterFault`` if it cannot be loaded, means other tokens by the same ids, or has caches that
        cannot be cut.
        """
        try:
            own = tokenizers.load(model_dir)
            _check_vocabulary(model_dir.name, own, target)
            self._model, record = load_prepared(model_dir)
        except (PreparationError, TokenizerError) as error:
            raise DrafterFault(f"The draft model in {model_dir} cannot be loaded: {error}") from error
        if not can_trim_prompt_cache(list(flat(make_prompt_cache(self._model)))):
            raise DrafterFault(
                f"The draft model {record.name} has caches that cannot be cut, so a wrong guess cannot be taken back. "
                "Choose one without recurrent states."
            )
        self._weight_bytes = record.size_bytes
        self._context_length = record.context_length
        self._vocab_size = target.vocab_size
        self._sessions: Sessions[_Session] = Sessions(lambda: _Session(self._model))
        self._bound: _Session | None = None
        self._tokens: Sequence[int] = ()

    @property
    def memory_bytes(self) -> int:
        """Its weights, and the caches of the sequences that it knows."""
        return self._weight_bytes + sum(session.nbytes for session in self._sessions)

    def bind(self, context: DraftContext) -> None:
        self._tokens = context.tokens
        if len(context.tokens) < self._context_length:
            self._bound = self._sessions.of(context.key)
            self._bound.follow(context.tokens[:-1])
        else:
            # Too long for this model. It has no guess, and the caches may be another's.
            self._sessions.forget(context.key)
            self._bound = None

    def draft(self, k: int) -> list[int]:
        if self._bound is None or not self._tokens:
            return []
        drafted: list[int] = []
        likely = 1.0
        token = self._tokens[-1]
        for _ in range(min(k, self._context_length - len(self._tokens))):
            token, confidence = self._bound.next(token)
            likely *= confidence
            # Ids without a token differ between models: the target may have no such row.
            if likely < LEAST_CONFIDENCE or token >= self._vocab_size:
                break
            drafted.append(token)
        return drafted

    def observe(self, committed: Sequence[int], proposed: int, accepted: int) -> None:
        """Nothing: the next binding brings what was committed, and takes back what was not."""

    def finish(self, context: DraftContext) -> None:
        self._sessions.forget(context.key)

    def release(self) -> None:
        self._bound, self._tokens = None, ()


class _Session:
    """One sequence's caches, and the tokens whose keys and values they hold."""

    def __init__(self, model: Module) -> None:
        self._model = model
        self._caches: list[Any] = make_prompt_cache(model)
        self._run: list[int] = []

    @property
    def nbytes(self) -> int:
        return sum(cache.nbytes for cache in flat(self._caches))

    def follow(self, tokens: Sequence[int]) -> None:
        """Hold exactly these tokens."""
        common = _common(self._run, tokens)
        surplus = len(self._run) - common
        if surplus and can_trim_prompt_cache(self._caches):
            trim_prompt_cache(self._caches, surplus)
            del self._run[common:]
        elif surplus:
            # A sliding window that has wrapped cannot be turned back.
            self._caches, self._run = make_prompt_cache(self._model), []
        while len(self._run) < len(tokens):
            chunk = list(tokens[len(self._run) : len(self._run) + _CHUNK_TOKENS])
            self._model(mx.array([chunk]), cache=self._caches)
            mx.eval([cache.state for cache in self._caches])
            self._run += chunk

    def next(self, token: int) -> tuple[int, float]:
        """Run one more token; the most probable one behind it, and its probability."""
        logits = self._model(mx.array([[token]]), cache=self._caches)[0, -1].astype(mx.float32)
        self._run.append(token)
        best = mx.argmax(logits)
        probability = mx.exp(logits[best] - mx.logsumexp(logits))
        mx.eval(best, probability)
        return cast("int", best.item()), cast("float", probability.item())


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    """How many tokens two sequences have in common at their beginning."""
    shorter = min(len(left), len(right))
    if list(left[:shorter]) == list(right[:shorter]):
        return shorter
    return next(index for index in range(shorter) if left[index] != right[index])


def _check_vocabulary(name: str, own: Tokenizer, target: Tokenizer) -> None:
    difference = difference_between(target, own)
    if difference is not None:
        raise DrafterFault(
            f"The draft model {name} has another vocabulary than the model it is to guess for ({difference}). Choose a "
            "model of the same family."
        )
