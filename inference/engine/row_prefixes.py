"""Between the caches of a batch, in which rows are padded and grow, and the prefix cache, which keeps one row's."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx_lm.models.cache import (
    ArraysCache,
    BatchRotatingKVCache,
    CacheList,
    KVCache,
    RotatingKVCache,
    make_prompt_cache,
)

from inference.engine.prefix_cache import PUBLISHED, KeyValues, PrefixCache

if TYPE_CHECKING:
    from inference.engine.batch import DecodeBatch, PrefillBatch

_log: Final = logging.getLogger(__name__)

#: The kinds of caches whose content can be taken out of a batch and put into another.
_KINDS: Final = (KVCache, RotatingKVCache, ArraysCache)


@dataclass(frozen=True)
class Prefix:
    """Tokens that need not be run, and the caches of a row that has run them; nobody else uses these."""

    tokens: list[int]
    caches: list[Any]


class RowPrefixes:
    """The prefix cache of one model, for rows of its batches.

    A model with other caches than attention's (whole or with a sliding window) and recurrent states is served
    without: what cannot be taken out of a batch for certain is not kept.
    """

    def __init__(self, model: Module, byte_budget: int) -> None:
        self._model = model
        kinds = {type(cache) for cache in flat(make_prompt_cache(model))}
        unknown = kinds - set(_KINDS)
        self._supported = not unknown
        self._cuttable = kinds == {KVCache}
        self._published: tuple[tuple[int, ...], ...] = ()
        if unknown:
            names = ", ".join(sorted(kind.__name__ for kind in unknown))
            _log.warning("prefixes are not kept: the model has caches of an unknown kind (%s)", names)
        self.cache: Final = PrefixCache(byte_budget if self._supported else 0)

    def set_budget(self, byte_budget: int, spare: Set[str] = frozenset()) -> None:
        """Change the cache's budget, where there is a cache."""
        if self._supported:
            self.cache.set_budget(byte_budget, spare)

    def publish(self, prefixes: Iterable[Sequence[int]]) -> None:
        """Keep these, and no other than these, for every namespace: each as soon as a row has run it.

        Models whose caches cannot be cut between any two tokens publish none.
        """
        self._published = tuple(tuple(prefix) for prefix in prefixes)
        if self._published and not self._cuttable:
            _log.warning("published prefixes are not used: the model has caches that cannot be cut")
            self._published = ()
        self.cache.retain(PUBLISHED, self._published)

    def find(self, namespace: str | None, tokens: Sequence[int], beyond: int = 0) -> Prefix | None:
        """The longest prefix of ``tokens`` that is known; None if it has no more than ``beyond`` tokens."""
        if namespace is None or not self.cache.byte_budget:
            return None
        hit = self.cache.lookup(namespace, tokens, beyond)
        return None if hit is None else self._prefix(tokens[: hit.length], hit.key_values)

    def taken_from(self, batch: PrefillBatch, key: str) -> Prefix | None:
        """What a batch has run of a sequence, to go on from whatever becomes of the batch; nothing is copied before.

        None if it has run nothing, or its caches cannot be taken out.
        """
        index = batch.uids.index(key)
        tokens = batch.tokens[index]
        if not tokens or not self._supported:
            return None
        try:
            key_values = _read(batch.prompt_cache, index, len(tokens), len(tokens), 0)
            return None if key_values is None else self._prefix(tokens, key_values)
        except Exception:  # noqa: BLE001 (logged: it may never be asked for)
            _log.warning("what was run of %s cannot be taken out of its batch", key, exc_info=True)
            return None

    def count(self, namespace: str | None, cached: int) -> None:
        """Count a sequence that begins to run, after ``cached`` tokens that were found."""
        if namespace is not None and self.cache.byte_budget:
            self.cache.record(cached)

    def keep(self, namespace: str | None, batch: PrefillBatch | DecodeBatch, key: str) -> None:
        """Keep what a batch has run of a sequence.

        A published prefix that it begins with is kept for all, that and not a token more. Copies are made and not
        waited for. The batch must not have failed: its caches and its list of tokens are taken to agree. What cannot be
        kept, for whatever reason, costs nobody a token: it is in the log, and will be run again.
        """
        if namespace is None or not self.cache.byte_budget:
            return
        try:
            index = batch.uids.index(key)
            tokens = batch.tokens[index]
            read = partial(_read, batch.prompt_cache, index, len(tokens))
            self.cache.store(namespace, tokens, partial(read, len(tokens)))
            for prefix in self._published:
                if tuple(tokens[: len(prefix)]) == prefix:
                    self.cache.store(PUBLISHED, prefix, partial(read, len(prefix)))
        except Exception:  # noqa: BLE001 (logged: no sequence may end of it)
            _log.warning("what was run of %s is not kept for others", key, exc_info=True)

    def _prefix(self, tokens: Sequence[int], key_values: KeyValues) -> Prefix:
        by_token, at_end = iter(key_values.by_token), iter(key_values.at_end)
        caches = make_prompt_cache(self._model)
        for cache in flat(caches):
            if isinstance(cache, ArraysCache):
                states: list[Any] = cache.cache
                states[:] = [next(at_end) for _ in states]
            elif isinstance(cache, RotatingKVCache):
                keys, values = next(at_end), next(at_end)
                cache.state = keys, values, len(tokens), cache.keep, cache.max_size, keys.shape[2]
            else:
                cache.state = next(by_token), next(by_token), len(tokens)
        return Prefix(list(tokens), caches)


def flat(caches: Iterable[Any]) -> Iterator[Any]:
    """The caches of a model, those in lists one by one."""
    for cache in caches:
        if isinstance(cache, CacheList):
            yield from flat(cache.caches)
        else:
            yield cache


def _read(caches: Iterable[Any], index: int, length: int, stop: int, start: int) -> KeyValues | None:
    """What a batch's caches hold of the tokens from ``start`` to ``stop`` of a row that has run ``length``.

    Copies, to be evaluated. ``stop`` is the ``length`` if any of the caches cannot be cut. None if a part of the
    row's state was never set: no batch takes such a row in. Raises ``ValueError`` for a cache that has not run as much.
    """
    by_token: list[mx.array] = []
    at_end: list[mx.array] = []
    for cache in flat(caches):
        if isinstance(cache, ArraysCache):
            states: Sequence[mx.array | None] = cache.cache
            if any(state is None for state in states):
                return None
            at_end += [mx.contiguous(state[index : index + 1]) for state in states if state is not None]
        elif isinstance(cache, BatchRotatingKVCache):
            row = cache.extract(index)  # type: ignore[no-untyped-call]
            _check_run(row.offset, length)
            at_end += [mx.contiguous(array[:, :, -row.max_size :]) for array in (row.keys, row.values)]
        else:
            # All rows end at the same position: the padding of the shorter ones is on their left.
            _check_run(cache.size(), length)
            begin = cache.size() - length
            by_token += [
                mx.contiguous(array[index : index + 1, :, begin + start : begin + stop])
                for array in cache.keys_and_values()
            ]
    return KeyValues(tuple(by_token), tuple(at_end))


def _check_run(has_run: int, length: int) -> None:
    if has_run < length:
        raise ValueError(f"a cache has run {has_run} tokens of {length}")
