"""The one drafter that all sequences of an engine share."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from inference.engine.drafting.drafter import DraftContext, Drafter, DrafterFault

_log: Final = logging.getLogger(__name__)

#: After so many faults without a good round between them, it is not made again.
_FAULTS_IN_A_ROW: Final = 3


class DrafterHandle:
    """Who has the drafter; and, when it failed, another one in its place.

    It is taken for one sequence at a time, and returned by ``give_back`` alone, whether a grant is over, the
    sequence has ended, or the drafter has failed. One that fails is dropped and made again from the factory, until
    it has failed three times in a row. None of that costs a sequence more than some drafts.
    """

    def __init__(self) -> None:
        #: Why there is no drafter, where there should be one.
        self.fault: DrafterFault | None = None
        #: Times that it was made again after it had failed.
        self.reloads = 0
        self._factory: Callable[[], Drafter] | None = None
        self._drafter: Drafter | None = None
        self._holder: str | None = None
        self._faults_in_a_row = 0

    @property
    def name(self) -> str | None:
        return self._drafter.name if self._drafter is not None else None

    @property
    def memory_bytes(self) -> int:
        """Bytes that the drafter holds beside the model; 0 if there is none."""
        return self._drafter.memory_bytes if self._drafter is not None else 0

    @property
    def holder(self) -> str | None:
        """The key of the sequence that has it; None also if there is none to have."""
        return self._holder if self._drafter is not None else None

    @property
    def available(self) -> bool:
        """Whether ``take`` is worth a try: there is a drafter, or one may be made yet."""
        return self._drafter is not None or self._factory is not None

    def set_factory(self, factory: Callable[[], Drafter] | None) -> None:
        """Make drafters by this from now on, beginning with one; with None there is none.

        Whoever holds the one before it goes on with this one.
        """
        self._factory = None
        holder = self._holder
        if holder is not None:
            self.give_back(holder)
        self._factory = factory
        self._drafter = None
        self.fault = None
        self._faults_in_a_row = 0
        self._make()
        self._holder = holder

    def take(self, context: DraftContext) -> bool:
        """Take the drafter for a sequence; whether it is to be had.

        Raises ``RuntimeError`` if another sequence has it.
        """
        if self.holder not in (None, context.key):
            raise RuntimeError(f"Sequence {context.key!r} takes the drafter while {self.holder!r} has it.")
        if self._drafter is None:
            self._make()
        drafter = self._drafter
        if drafter is None:
            return False
        self._holder = context.key
        try:
            drafter.bind(context)
        except Exception as error:  # noqa: BLE001 (logged; the sequence decodes without)
            self.give_back(context.key, error)
            return False
        return True

    def draft(self, context: DraftContext, k: int, vocab_size: int) -> tuple[list[int], DrafterFault | None]:
        """At most ``k`` guesses for the sequence that holds the drafter, and what it failed of, if it did.

        None where the drafter is lost. Raises ``RuntimeError`` if there is one that this sequence does not hold.
        """
        drafter = self._drafter
        if drafter is None:
            return [], self.fault
        if self._holder != context.key:
            raise RuntimeError(f"Sequence {context.key!r} drafts while {self._holder!r} has the drafter.")
        try:
            drafter.bind(context)
            guesses = [int(token) for token in drafter.draft(k)[:k]]
            if not all(0 <= token < vocab_size for token in guesses):
                raise ValueError(f"it proposed {guesses}, of a vocabulary of {vocab_size}")
        except Exception as error:  # noqa: BLE001 (logged and reported; the round goes on without guesses)
            return [], self._replace(context.key, error)
        return guesses, None

    def observe(
        self, key: str, committed: Sequence[int], proposed: int, accepted: int
    ) -> DrafterFault | None:
        """Tell the drafter what became of its guesses; what it failed of, if it did."""
        if self._drafter is None:
            return self.fault
        try:
            self._drafter.observe(committed, proposed, accepted)
        except Exception as error:  # noqa: BLE001 (logged and reported)
            return self._replace(key, error)
        self._faults_in_a_row = 0
        return None

    def learn_from(self, context: DraftContext) -> None:
        """Give the drafter a sequence that is over, whoever holds it."""
        if self._drafter is None:
            return
        try:
            self._drafter.finish(context)
        except Exception as error:  # noqa: BLE001 (logged)
            holder = self._holder
            if holder is not None:
                self._replace(holder, error)
            else:
                self._reload(error)

    def give_back(self, key: str, error: Exception | None = None) -> None:
        """Return the drafter, if this sequence has it. After an ``error`` of its own, or if it cannot let go, it is
        made again."""
        if self._holder != key:
            return
        self._holder = None
        if error is None and self._drafter is not None:
            try:
                self._drafter.release()
            except Exception as fault:  # noqa: BLE001 (logged)
                error = fault
        if error is not None:
            self._reload(error)

    def _replace(self, key: str, error: Exception) -> DrafterFault:
        """Return a drafter that failed; the sequence goes on with the one that is made in its place."""
        self.give_back(key, error)
        self._holder = key
        fault = DrafterFault(f"The drafter failed, and was returned: {error}")
        fault.__cause__ = error
        return fault

    def _reload(self, error: Exception) -> None:
        _log.warning("the drafter %s failed, and is made again", self.name, exc_info=error)
        self.reloads += 1
        self._drafter = None
        self._failed(error)
        self._make()

    def _make(self) -> None:
        if self._factory is None:
            return
        try:
            self._drafter = self._factory()
            self.fault = None
        except Exception as error:  # noqa: BLE001 (logged; sequences decode without)
            _log.warning("the drafter could not be made", exc_info=error)
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        self._faults_in_a_row += 1
        self.fault = DrafterFault(f"The drafter failed, or could not be made: {error}")
        self.fault.__cause__ = error
        if self._faults_in_a_row >= _FAULTS_IN_A_ROW:
            _log.error(
                "after %d faults in a row there is no drafter until one is configured", self._faults_in_a_row
            )
            self._factory = None
