"""A model's tokenizer, from the ``tokenizer.json`` of its prepared directory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import tokenizers

from inference.tokenization import detokenizer
from inference.tokenization.control_tokens import ControlTokens, clean
from inference.tokenization.pieces import UnsupportedDecoderError, piece_bytes

#: Names under which ``tokenizer_config.json`` gives special tokens, and templates read them.
_NAMED_TOKENS: Final = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token")


class TokenizerError(Exception):
    """A prepared directory whose tokenizer cannot be used; the message names the file and the remedy."""


class Tokenizer:
    """Text to token ids and back. Safe to share between threads.

    Attributes:
        vocab_size: token ids are below this. It is the model's count, which may exceed the tokenizer's.
        eos_ids: a token of these ends the text.
        chat_template: Jinja source of the model's chat template, if it has one.
        special_tokens: spelling of the tokens that templates know by name (``bos_token`` …).
        leading_spaces: spaces that the model's format takes off the beginning of a text.
    """

    def __init__(
        self,
        definition: dict[str, Any],
        *,
        vocab_size: int,
        eos_ids: Iterable[int],
        chat_template: str | None = None,
        special_tokens: Mapping[str, str] | None = None,
    ) -> None:
        """``definition`` is the content of a ``tokenizer.json``.

        Raises ``UnsupportedDecoderError`` for a format that no generating model uses.
        """
        added = definition.get("added_tokens", [])
        self.vocab_size: Final = vocab_size
        self.eos_ids: Final = frozenset(eos_ids)
        self.chat_template: Final = chat_template
        self.special_tokens: Final[Mapping[str, str]] = dict(special_tokens or {})
        self._control = ControlTokens(added)
        self._hidden = frozenset(token["id"] for token in added if token["special"])
        self._piece_bytes = piece_bytes(definition.get("decoder"))
        self.leading_spaces: Final = self._piece_bytes.leading_spaces
        sealed = self._control.seal_definition(definition)
        self._encoder = tokenizers.Tokenizer.from_str(json.dumps(sealed, ensure_ascii=False))

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Token ids of a client's text. Nothing in it becomes a control token, whatever it spells.

        ``add_special_tokens`` puts the model's own tokens around it (a beginning of text, say), as a raw
        completion wants; chat templates write theirs themselves.
        """
        return self._ids(clean(text), add_special_tokens=add_special_tokens)

    def encode_parts(self, parts: Iterable[tuple[str, bool]]) -> list[int]:
        """Token ids of a text made of ``(text, literal)`` parts.

        Only what lies wholly in literal parts (neighbours count as one) can be a control token.
        """
        sealed: list[str] = []
        literal: list[str] = []
        for text, is_literal in parts:
            if is_literal:
                literal.append(text)
            elif text:
                sealed += self._control.seal_literal("".join(literal)), clean(text)
                literal.clear()
        sealed.append(self._control.seal_literal("".join(literal)))
        return self._ids("".join(sealed), add_special_tokens=False)

    def _ids(self, text: str, *, add_special_tokens: bool) -> list[int]:
        # The batch call lets other threads run meanwhile; `encode` holds the interpreter for the whole text.
        return self._encoder.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of a whole sequence: what a ``Detokenizer`` gives, joined."""
        return detokenizer.decode(self, tokens)

    def token_bytes(self, token: int, *, first: bool = False) -> bytes:
        """What a token adds to a text's UTF-8; nothing for a hidden one. ``first``: it begins the text."""
        piece = self._piece(token)
        return b"" if piece is None else self._piece_bytes(piece, first=first)

    def is_hidden(self, token: int) -> bool:
        """Whether a token never shows: a special one, or an id that the model has and the tokenizer not."""
        return self._piece(token) is None

    def vocabulary(self) -> dict[int, str]:
        """Every token that the tokenizer knows, as the model's own files write it."""
        pieces = {token: piece for piece, token in self._encoder.get_vocab(with_added_tokens=True).items()}
        return {**pieces, **self._control.spellings}

    def _piece(self, token: int) -> str | None:
        if token in self._hidden:
            return None
        spelling = self._control.spellings.get(token)
        return self._encoder.id_to_token(token) if spelling is None else spelling


def load(model_dir: Path) -> Tokenizer:
    """The tokenizer of a prepared model directory.

    Raises ``TokenizerError`` when a file is missing or is not what a prepared directory holds.
    """
    definition = _read(model_dir / "tokenizer.json")
    config = _read(model_dir / "tokenizer_config.json")
    record = _read(model_dir / "signalbox.json")
    try:
        return Tokenizer(
            definition,
            vocab_size=record["vocab_size"],
            eos_ids=record["eos_token_ids"],
            chat_template=_default_template(config.get("chat_template")),
            special_tokens={
                name: spelling for name in _NAMED_TOKENS if (spelling := _spelling(config.get(name)))
            },
        )
    except UnsupportedDecoderError as error:
        raise TokenizerError(f"{model_dir / 'tokenizer.json'}: {error}") from error
    except KeyError as error:
        raise TokenizerError(
            f"The tokenizer files in {model_dir} lack {error}. Prepare the model again."
        ) from error


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise TokenizerError(f"{path} is missing: this is not a prepared model directory.") from error
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise TokenizerError(f"{path} is not valid JSON ({error}). Prepare the model again.") from error
    if not isinstance(content, dict):
        raise TokenizerError(f"{path} holds a {type(content).__name__} where an object belongs.")
    return content


def _default_template(template: str | list[dict[str, str]] | None) -> str | None:
    """Models with several templates name one of them ``default``."""
    if isinstance(template, list):
        return {named["name"]: named["template"] for named in template}.get("default")
    return template


def _spelling(token: str | dict[str, Any] | None) -> str | None:
    return token["content"] if isinstance(token, dict) else token
