"""From messages or text to the token ids of a prompt, without MLX. Runs in a request's thread."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Final

from inference.api.chat_messages import Message, as_template_message, has_calls
from inference.api.errors import ApiError, ErrorCode
from inference.models import LanguageModel
from inference.tokenization import tokenizer as tokenization
from inference.tokenization.template import TemplateError, render_chat
from inference.tokenization.tokenizer import Tokenizer

#: Tokenizers kept in memory, a few tens of megabytes each.
_KEPT_TOKENIZERS: Final = 8

_loading: Final = Lock()


def tokenizer_of(model: LanguageModel) -> Tokenizer:
    """The model's tokenizer; read again when the model was prepared anew."""
    # One at a time: a burst of first requests must not read the same files many times over.
    with _loading:
        return _load(model.path, model.checksum)


@lru_cache(maxsize=_KEPT_TOKENIZERS)
def _load(directory: Path, checksum: str) -> Tokenizer:
    return tokenization.load(directory)


@lru_cache(maxsize=_KEPT_TOKENIZERS)
def _longest_token(tokenizer: Tokenizer) -> int:
    """Bytes of the tokenizer's longest token."""
    return max(len(tokenizer.token_bytes(token)) for token in range(tokenizer.vocab_size))


def chat_prompt(model: LanguageModel, messages: list[Message]) -> list[int]:
    """The token ids that the model's template makes of ``messages``, ready for the assistant's turn.

    Raises ``ApiError`` where the template cannot render them.
    """
    tokenizer = tokenizer_of(model)
    if has_calls(messages) and "tool_calls" not in (tokenizer.chat_template or ""):
        raise ApiError(
            ErrorCode.INVALID_PROMPT,
            f"`messages` hold tool calls, which the chat template of {model.name} cannot show to the model.",
            param="messages",
        )
    shaped = [as_template_message(message) for message in messages]
    _refuse_hopeless(model, tokenizer, sum(len(message["content"]) for message in shaped), "messages")
    try:
        prompt = render_chat(tokenizer, shaped)
    except TemplateError as error:
        raise ApiError(ErrorCode.INVALID_PROMPT, str(error), param="messages") from error
    return _not_empty(prompt, "messages")


def text_prompt(model: LanguageModel, text: str) -> list[int]:
    """The token ids of a raw prompt, with what the model's own format puts around a text."""
    tokenizer = tokenizer_of(model)
    _refuse_hopeless(model, tokenizer, len(text), "prompt")
    return _not_empty(tokenizer.encode(text, add_special_tokens=True), "prompt")


def checked_tokens(model: LanguageModel, tokens: list[int]) -> list[int]:
    """``tokens`` that a client gave itself. Raises ``ApiError`` for one that the model does not have."""
    vocab_size = tokenizer_of(model).vocab_size
    for index, token in enumerate(tokens):
        if not 0 <= token < vocab_size:
            raise ApiError(
                ErrorCode.INVALID_VALUE,
                f"`prompt[{index}]` must be a token id between 0 and {vocab_size - 1}.",
                param=f"prompt[{index}]",
            )
    return _not_empty(tokens, "prompt")


def check_logit_bias(model: LanguageModel, tokens: dict[int, float]) -> None:
    """Raises ``ApiError`` where a bias names a token that the model does not have."""
    vocab_size = tokenizer_of(model).vocab_size
    for token in tokens:
        if token >= vocab_size:
            raise ApiError(
                ErrorCode.INVALID_VALUE,
                f"`logit_bias` names token {token}; the model's token ids are between 0 and {vocab_size - 1}.",
                param="logit_bias",
            )


def _refuse_hopeless(model: LanguageModel, tokenizer: Tokenizer, characters: int, param: str) -> None:
    """Refuse a text that cannot fit whatever its tokens are: counting those of megabytes takes seconds."""
    least = characters // _longest_token(tokenizer)
    if least > model.context_length:
        raise ApiError(
            ErrorCode.CONTEXT_LENGTH_EXCEEDED,
            f"This model's context is {model.context_length} tokens; the prompt takes more than {least}. Shorten it.",
            param=param,
        )


def _not_empty(prompt: list[int], param: str) -> list[int]:
    if not prompt:
        raise ApiError(
            ErrorCode.INVALID_PROMPT, f"`{param}` must not be empty: there is nothing to go on.", param=param
        )
    return prompt
