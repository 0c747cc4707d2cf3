"""Text of a growing sequence of tokens, without ever cutting a character."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inference.tokenization.tokenizer import Tokenizer


class Detokenizer:
    """Turns token ids into text, one at a time.

    Bytes that do not yet make a whole character are held back until they do, or until ``flush``. All
    that ``push`` and ``flush`` returned, joined, is the same whatever the cuts, and equals the decoding
    of the whole sequence; the state depends on the ids alone, so replaying them restores it.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._first = True
        self._spaces_to_drop = tokenizer.leading_spaces

    def push(self, token: int) -> str:
        """The text that ``token`` completes, possibly none."""
        content = self._tokenizer.token_bytes(token, first=self._first)
        self._first = self._first and self._tokenizer.is_hidden(token)
        return self._trim(self._decoder.decode(content))

    def flush(self) -> str:
        """What is still held back: an unfinished character shows as U+FFFD. The text ends here."""
        return self._trim(self._decoder.decode(b"", final=True))

    def _trim(self, text: str) -> str:
        if not self._spaces_to_drop or not text:
            return text
        kept = text.lstrip(" ")
        dropped = min(self._spaces_to_drop, len(text) - len(kept))
        # Anything but a space begins the text, and then nothing more is dropped.
        self._spaces_to_drop = 0 if kept else self._spaces_to_drop - dropped
        return text[dropped:]


def decode(tokenizer: Tokenizer, tokens: Iterable[int]) -> str:
    """The text of a whole sequence."""
    detokenizer = Detokenizer(tokenizer)
    return "".join([*map(detokenizer.push, tokens), detokenizer.flush()])
