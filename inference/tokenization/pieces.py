"""From a tokenizer's pieces to bytes.

A vocabulary spells its pieces in an alphabet of its own: byte-level BPE gives each byte a printable
character, SentencePiece writes a space as ``▁`` and a byte outside the vocabulary as ``<0xE2>``. Text can
be cut at any byte, so bytes are the only honest value of one token.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

_SPACE: Final = "\u2581"
_BYTE_PIECE: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class UnsupportedDecoderError(ValueError):
    """A ``tokenizer.json`` whose decoder is not one that generating models use."""


class PieceBytes(Protocol):
    """Bytes of a piece. ``first`` is true for the first one of a text."""

    @property
    def leading_spaces(self) -> int:
        """Spaces that are taken off the beginning of a text."""
        ...

    def __call__(self, piece: str, *, first: bool) -> bytes: ...


@dataclass(frozen=True)
class ByteLevelPieces:
    """Byte-level BPE (GPT-2, Llama 3, Qwen, SmolLM): one character of a piece is one byte."""

    leading_spaces: int = 0

    def __call__(self, piece: str, *, first: bool) -> bytes:
        try:
            return bytes([_BYTE_OF_CHARACTER[character] for character in piece])
        except KeyError:  # an added token, spelled as it reads
            return piece.encode()


@dataclass(frozen=True)
class MetaspacePieces:
    """SentencePiece (Llama 2, Mistral, Gemma, Phi-3): ``▁`` for a space, ``<0x..>`` for a byte."""

    leading_spaces: int = 0
    byte_fallback: bool = False
    #: The first piece carries a marker for a space that was never in the text.
    first_marked: bool = False

    def __call__(self, piece: str, *, first: bool) -> bytes:
        if self.byte_fallback and (match := _BYTE_PIECE.fullmatch(piece)):
            return bytes([int(match[1], 16)])
        return piece.replace(_SPACE, "" if first and self.first_marked else " ").encode()


def piece_bytes(decoder: Mapping[str, Any] | None) -> PieceBytes:
    """The rule that a ``tokenizer.json``'s ``decoder`` describes.

    Raises ``UnsupportedDecoderError`` for any that needs more than a piece at a time (WordPiece, CTC).
    """
    steps = _steps(decoder)
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return ByteLevelPieces()
    if kinds == ["Metaspace"] and steps[0].get("replacement", _SPACE) == _SPACE:
        marked = steps[0].get("prepend_scheme", "always") != "never"
        return MetaspacePieces(first_marked=marked)
    if _is_sentencepiece(steps):
        strips = [step["start"] for step in steps if step["type"] == "Strip"]
        return MetaspacePieces(leading_spaces=sum(strips), byte_fallback="ByteFallback" in kinds)
    raise UnsupportedDecoderError(
        f"The tokenizer's decoder ({', '.join(kinds) or 'none'}) is not supported: byte-level BPE and "
        "SentencePiece ones are."
    )


def _steps(decoder: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if decoder is None:
        return []
    if decoder["type"] == "Sequence":
        return [step for inner in decoder["decoders"] for step in _steps(inner)]
    return [decoder]


def _is_sentencepiece(steps: list[Mapping[str, Any]]) -> bool:
    replaces = fused = False
    for step in steps:
        match step["type"]:
            case "Replace":
                if step["pattern"] != {"String": _SPACE} or step["content"] != " ":
                    return False
                replaces = True
            case "Fuse":
                fused = True
            case "Strip":  # of the whole text: before Fuse it would be of every piece
                if step["content"] != " " or step["stop"] != 0 or not fused:
                    return False
            case "ByteFallback":
                pass
            case _:
                return False
    return replaces


def _byte_characters() -> dict[str, int]:
    """The byte-level alphabet: printable Latin-1 as itself, every other byte from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + index): byte for index, byte in enumerate(others)
    }


_BYTE_OF_CHARACTER: Final = _byte_characters()
