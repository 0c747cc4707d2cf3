"""Text that knows which of it the template's author wrote."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import SupportsIndex

#: Text, and whether it is literal.
Part = tuple[str, bool]


class TracedText(str):
    """A string that remembers which of its parts are *literal*: written in the template.

    What an ordinary string holds, and whatever an operation gives that is not traced here, counts as
    not literal. A template that does something unforeseen can therefore lose a control token of its own,
    but never lend that right to a client's text.
    """

    __slots__ = ("parts",)

    parts: tuple[Part, ...]

    @classmethod
    def of(cls, parts: Iterable[Part]) -> TracedText:
        joined = tuple(_merge(parts))
        text = cls("".join(content for content, _ in joined))
        text.parts = joined
        return text

    @classmethod
    def literal(cls, content: str) -> TracedText:
        return cls.of([(content, True)])

    def __add__(self, other: str) -> TracedText:
        if not isinstance(other, str):
            return NotImplemented
        return TracedText.of([*self.parts, *parts_of(other)])

    def __radd__(self, other: str) -> TracedText:
        if not isinstance(other, str):
            return NotImplemented
        return TracedText.of([*parts_of(other), *self.parts])

    def __str__(self) -> str:
        return self

    def __getitem__(self, key: SupportsIndex | slice) -> TracedText:
        if not isinstance(key, slice):
            index = range(len(self))[key]
            key = slice(index, index + 1)
        start, stop, step = key.indices(len(self))
        if step != 1:
            return TracedText.of([(super().__getitem__(key), False)])
        return TracedText.of(self._between(start, stop))

    def strip(self, characters: str | None = None, /) -> TracedText:
        return self.lstrip(characters).rstrip(characters)

    def lstrip(self, characters: str | None = None, /) -> TracedText:
        return self[len(self) - len(super().lstrip(characters)) :]

    def rstrip(self, characters: str | None = None, /) -> TracedText:
        return self[: len(super().rstrip(characters))]

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> TracedText:
        parts: list[Part] = []
        offset = 0
        for kept in super().split(old, count) if old else [self]:
            if offset:
                parts += parts_of(new)
            parts += self._between(offset, offset + len(kept))
            offset += len(kept) + len(old)
        return TracedText.of(parts)

    def lower(self) -> TracedText:
        return self._respelled(super().lower())

    def upper(self) -> TracedText:
        return self._respelled(super().upper())

    def title(self) -> TracedText:
        return self._respelled(super().title())

    def capitalize(self) -> TracedText:
        return self._respelled(super().capitalize())

    def _between(self, start: int, stop: int) -> Iterator[Part]:
        offset = 0
        for content, is_literal in self.parts:
            yield content[max(0, start - offset) : max(0, stop - offset)], is_literal
            offset += len(content)

    def _respelled(self, content: str) -> TracedText:
        if len(content) != len(self):  # "ß".upper() is "SS": which part is which is lost
            return TracedText.of([(content, False)])
        respelled, offset = [], 0
        for part, is_literal in self.parts:
            respelled.append((content[offset : offset + len(part)], is_literal))
            offset += len(part)
        return TracedText.of(respelled)


def parts_of(text: str) -> tuple[Part, ...]:
    """The parts of any string; an ordinary one is one part that is not literal."""
    return text.parts if isinstance(text, TracedText) else ((text, False),)


def joined(texts: Iterable[str]) -> TracedText:
    """All texts, one after another."""
    return TracedText.of(part for text in texts for part in parts_of(text))


def _merge(parts: Iterable[Part]) -> Iterator[Part]:
    """Neighbours of one kind as one part, empty ones left out."""
    contents: list[str] = []
    kind = False
    for content, is_literal in parts:
        if not content:
            continue
        if contents and is_literal != kind:
            yield "".join(contents), kind
            contents.clear()
        kind = is_literal
        contents.append(content)
    if contents:
        yield "".join(contents), kind
