"""Finding stop strings in a stream of text, and hiding them."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Releases text up to the first stop string, and never any part of it.

    The match is the stop string that is *complete* first, whatever the cuts of the text; of several that
    are complete at the same character, the longest. Text is held back only while it may still become a stop
    string: exactly the longest suffix that is the beginning of one.

    The state depends on the pushed text alone. Cost: one step a character and stop string.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Raises ``ValueError`` for an empty stop string, which would match everywhere."""
        if not all(stops):
            raise ValueError("A stop string must not be empty.")
        self._automata = [_Automaton(stop) for stop in stops]
        self._held = ""
        self._hit = False

    def push(self, text: str) -> tuple[str, bool]:
        """Text released by ``text``, and whether a stop string is complete.

        After a hit nothing is released any more.
        """
        if self._hit:
            return "", True
        if not self._automata:
            return text, False
        pending = self._held + text
        for index, character in enumerate(text, start=len(self._held) + 1):
            complete = [automaton.length for automaton in self._automata if automaton.advance(character)]
            if complete:
                self._hit = True
                self._held = ""
                return pending[: index - max(complete)], True
        begun = max(automaton.matched for automaton in self._automata)
        self._held = pending[len(pending) - begun :]
        return pending[: len(pending) - begun], False

    def flush(self) -> str:
        """The text still held back, when the stream ended without a stop string."""
        held, self._held = self._held, ""
        return held


class _Automaton:
    """Knuth–Morris–Pratt: how much of one stop string the text so far ends with."""

    def __init__(self, stop: str) -> None:
        self._stop = stop
        self.length = len(stop)
        self.matched = 0
        self._fallback = [0] * (len(stop) + 1)
        border = 0
        for index in range(1, len(stop)):
            while border and stop[index] != stop[border]:
                border = self._fallback[border]
            border += stop[index] == stop[border]
            self._fallback[index + 1] = border

    def advance(self, character: str) -> bool:
        """Take one character; true when the stop string is complete."""
        while self.matched and self._stop[self.matched] != character:
            self.matched = self._fallback[self.matched]
        self.matched += self._stop[self.matched] == character
        return self.matched == self.length
