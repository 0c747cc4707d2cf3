"""What a drafter keeps of each sequence between its rounds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

_State = TypeVar("_State")

#: The slot's holder, those that may be parked beside it, and one to spare.
_KEPT: Final = 4


class Sessions(Generic[_State]):
    """A state for each of the last few sequences, by key; the one that was not asked for the longest is forgotten.

    A state only saves work: whoever is given one sets it by the sequence's own tokens, whatever it held before.
    """

    def __init__(self, make: Callable[[], _State]) -> None:
        self._make = make
        self._states: OrderedDict[str, _State] = OrderedDict()

    def of(self, key: str) -> _State:
        """The state of a sequence; a new one if there is none."""
        state = self._states.pop(key, None)
        if state is None:
            while len(self._states) >= _KEPT:
                self._states.popitem(last=False)
            state = self._make()
        self._states[key] = state
        return state

    def forget(self, key: str) -> None:
        """The sequence is over."""
        self._states.pop(key, None)

    def __iter__(self) -> Iterator[_State]:
        # A copy: what they hold is also counted on other threads.
        return iter([*self._states.values()])
