"""The pools of one model: a neutral one for all, and one for each tenant that wants it."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from inference.engine.drafting import pool_files
from inference.engine.drafting.pool_files import PoolContent, PoolFileError
from inference.engine.drafting.suffix_pool import CAPACITY_TOKENS, SuffixPool

_log: Final = logging.getLogger(__name__)

#: Tenants' pools in memory, unless more are still to be saved. Together some 64 MB.
_MOST_LOADED: Final = 32


@dataclass(frozen=True)
class PoolOwner:
    """The model whose texts they are. ``vocabulary``: the checksum of its tokens (``tokenization.vocabulary``)."""

    model: str
    model_checksum: str
    vocabulary: str


class PoolStore:
    """Hands out pools by tenant, and never one tenant's to another.

    ``of`` and ``learn`` are called on the engine's thread and write no file. ``synchronise`` is called on another,
    every few seconds and once when no more is learnt: it saves what was learnt and drops what was forgotten.
    A pool is read from its file when it is first asked for: once for a tenant, about as long as a decode tick.
    """

    def __init__(
        self,
        pools_dir: Path,
        owner: PoolOwner,
        neutral: SuffixPool | None = None,
        capacity_tokens: int = CAPACITY_TOKENS,
    ) -> None:
        """``neutral`` is read and never taught. ``capacity_tokens``: of each tenant's pool."""
        self.neutral: Final = neutral
        self._dir = pools_dir
        self._owner = owner
        self._capacity = capacity_tokens
        # Least recently used first.
        self._pools: OrderedDict[str, _Loaded] = OrderedDict()
        self._unsaved: set[str] = set()
        self._lock = threading.Lock()

    @property
    def memory_bytes(self) -> int:
        """Bytes of all pools that are in memory."""
        with self._lock:
            pools = [loaded.pool for loaded in self._pools.values()]
        return sum(pool.memory_bytes for pool in (*pools, *filter(None, [self.neutral])))

    def of(self, namespace: str) -> SuffixPool:
        """The pool of a tenant, empty if nothing was learnt for it yet."""
        with self._lock:
            if (known := self._pools.get(namespace)) is not None:
                self._pools.move_to_end(namespace)
                return known.pool
        # Before its file: what is forgotten in between is noticed.
        forgotten = pool_files.last_forgotten(self._dir, namespace)
        loaded = _Loaded(self._read(namespace), forgotten)
        with self._lock:
            saved = [each for each in self._pools if each not in self._unsaved]
            for each in saved[: max(len(self._pools) + 1 - _MOST_LOADED, 0)]:
                del self._pools[each]
            self._pools[namespace] = loaded
        return loaded.pool

    def learn(self, namespace: str, tokens: Sequence[int]) -> None:
        """Add what was produced for a tenant to its pool."""
        pool = self.of(namespace)
        with self._lock:
            if pool.learn(tokens) and namespace in self._pools:
                self._unsaved.add(namespace)

    def synchronise(self) -> None:
        """Drop the pools that were forgotten, then save those that have learnt. For any thread but the engine's.

        What cannot be saved is logged and tried again the next time.
        """
        try:
            self._synchronise()
        except OSError as error:
            _log.warning("no tenant's pool can be saved, and all will be tried again: %s", error)

    def _synchronise(self) -> None:
        with self._lock:
            if not self._pools:
                return
        with pool_files.locked(self._dir):
            with self._lock:
                pools = dict(self._pools)
                unsaved = {namespace: pools[namespace].pool.texts for namespace in self._unsaved}
                self._unsaved.clear()
            for namespace, loaded in pools.items():
                self._settle(namespace, loaded.forgotten, unsaved.get(namespace))

    def _settle(self, namespace: str, forgotten: str, texts: tuple[bytes, ...] | None) -> None:
        """Drop one tenant's pool if it was forgotten since it was loaded, else save its ``texts`` if it has learnt.

        Both within one hold of the files' lock: a pool that is forgotten meanwhile is not written back.
        """
        try:
            if pool_files.last_forgotten(self._dir, namespace) != forgotten:
                with self._lock:
                    self._pools.pop(namespace, None)
                    self._unsaved.discard(namespace)
            elif texts is not None:
                path = pool_files.tenant_path(self._dir, self._owner.model, namespace)
                pool_files.write(path, self._content(texts))
        except OSError as error:
            _log.warning(
                "the pool of tenant %s cannot be saved, and will be tried again: %s", namespace, error
            )
            with self._lock:
                if texts is not None and namespace in self._pools:
                    self._unsaved.add(namespace)

    def _content(self, texts: tuple[bytes, ...]) -> PoolContent:
        return PoolContent(
            vocabulary=self._owner.vocabulary,
            model=self._owner.model,
            model_checksum=self._owner.model_checksum,
            texts=texts,
        )

    def _read(self, namespace: str) -> SuffixPool:
        path = pool_files.tenant_path(self._dir, self._owner.model, namespace)
        try:
            content = pool_files.read(path)
            if content.vocabulary != self._owner.vocabulary:
                raise PoolFileError(f"{path} was learnt with other tokens than the model has.")
        except FileNotFoundError:
            return SuffixPool(capacity_tokens=self._capacity)
        except PoolFileError as error:
            _log.warning("a tenant's pool is not used, and will be learnt anew: %s", error)
            return SuffixPool(capacity_tokens=self._capacity)
        return SuffixPool(content.texts, self._capacity)


@dataclass(frozen=True)
class _Loaded:
    """A pool in memory, and when it was last forgotten before that."""

    pool: SuffixPool
    forgotten: str
