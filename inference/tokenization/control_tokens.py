"""Control tokens that no text can spell.

A model's control tokens (``<|im_start|>``, ``</s>``, ``<tool_call>`` …) are found in text by their
spelling, so whoever can write the spelling can write the token: a chat message could end its own turn
and speak as the system. Here every control token is *sealed*: its spelling in the tokenizer is replaced by
a private one around a character that no text handed to the tokenizer can contain. Text of our own
(the literal parts of a chat template) is translated to the private spelling first; a client's never is.

One encoder therefore sees the whole prompt at once, with all rules of the original at the seams, and
the ids equal those of the ordinary rendering unless a client spelled a control token.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

#: A Unicode noncharacter: never assigned, not meant for interchange, left alone by every normalizer.
SEAL: Final = "\U0010ffff"
REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"


class ControlTokens:
    """The control tokens of one tokenizer.

    ``spellings`` maps each id to how the model's own files write it. *Control* is every added token
    but runs of white space: makers mark some of their turn delimiters as ordinary (``special: false``), so
    the mark alone is not trusted.
    """

    def __init__(self, added_tokens: list[dict[str, Any]]) -> None:
        self.spellings: Final[Mapping[int, str]] = {
            token["id"]: token["content"] for token in added_tokens if not _is_spacing(token["content"])
        }
        self._sealed = {spelling: f"{SEAL}{id_}{SEAL}" for id_, spelling in self.spellings.items()}
        # The longest first: of two tokens that begin alike the tokenizer takes the longer.
        ordered = sorted(self._sealed, key=lambda spelling: (-len(spelling), spelling))
        self._pattern = re.compile("|".join(map(re.escape, ordered))) if ordered else None

    def seal_definition(self, definition: dict[str, Any]) -> dict[str, Any]:
        """A copy of a ``tokenizer.json`` in which control tokens have their private spelling."""
        sealed = self._sealed
        model = dict(definition["model"])
        vocabulary = model["vocab"]
        if isinstance(vocabulary, dict):
            model["vocab"] = {sealed.get(piece, piece): id_ for piece, id_ in vocabulary.items()}
        else:
            model["vocab"] = [[sealed.get(piece, piece), score] for piece, score in vocabulary]
        if "merges" in model:
            model["merges"] = [merge for merge in model["merges"] if not self._makes_control(merge)]
        if isinstance(model.get("unk_token"), str):
            model["unk_token"] = sealed.get(model["unk_token"], model["unk_token"])
        added = [
            {**token, "content": sealed.get(token["content"], token["content"])}
            for token in definition.get("added_tokens", ())
        ]
        return {**definition, "model": model, "added_tokens": added, "truncation": None, "padding": None}

    def seal_literal(self, text: str) -> str:
        """Text of our own, every control token in it in its private spelling."""
        if self._pattern is None:
            return clean(text)
        return self._pattern.sub(lambda match: self._sealed[match[0]], clean(text))

    def _makes_control(self, merge: str | list[str]) -> bool:
        left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
        return left in self._sealed or right in self._sealed or left + right in self._sealed


def clean(text: str) -> str:
    """``text`` without what it must not hold: the seal, and halves of surrogate pairs (not Unicode)."""
    if SEAL in text:
        text = text.replace(SEAL, REPLACEMENT)
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _is_spacing(spelling: str) -> bool:
    return not spelling.strip().strip("\u2581")
