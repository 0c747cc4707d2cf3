"""The tokens that every chat with one system prompt begins with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from inference.tokenization.template import render_chat
from inference.tokenization.template_limits import TemplateError, TemplateProblem
from inference.tokenization.tokenizer import Tokenizer

#: Two users whose words have nothing in common: what their chats begin with, all chats do.
_USERS: Final = ("A", "9?")


def system_prefix(tokenizer: Tokenizer, text: str) -> list[int]:
    """The tokens of a chat that consists of the system prompt ``text``, as far as every chat with it begins so.

    Raises ``TemplateError`` where the template renders no such chat, or where ``text`` is not wholly among what chats
    with it begin with: templates may leave it out, change it, or put it behind what a user says.
    """
    system: dict[str, Any] = {"role": "system", "content": text}
    prefix = render_chat(tokenizer, [system], add_generation_prompt=False)
    for words in _USERS:
        chat = render_chat(tokenizer, [system, {"role": "user", "content": words}])
        prefix = prefix[: _common(prefix, chat)]
    # What decoding the text alone gives: some tokenizers write spaces or characters their own way.
    if tokenizer.decode(tokenizer.encode(text)).strip() not in tokenizer.decode(prefix):
        raise TemplateError(
            TemplateProblem.REFUSED,
            "The model's chat template does not begin a chat with its system prompt, unchanged and whole.",
        )
    return prefix


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    """How many tokens two sequences have in common at their beginning."""
    different = (index for index, (one, other) in enumerate(zip(left, right, strict=False)) if one != other)
    return next(different, min(len(left), len(right)))
