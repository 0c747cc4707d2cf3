"""From chat messages to the tokens of a prompt, by the model's own chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import jinja2

from inference.tokenization.sandbox import ChatTemplateEnvironment
from inference.tokenization.template_limits import TemplateError, TemplateProblem, budget, check_size
from inference.tokenization.tokenizer import Tokenizer
from inference.tokenization.traced_text import Part, TracedText, parts_of

__all__ = ["ROLES", "TemplateError", "TemplateProblem", "render_chat"]

#: A role is a word of the template's language, never free text of a client.
ROLES: Final = frozenset({"system", "developer", "user", "assistant", "tool", "function"})

_environment: Final = ChatTemplateEnvironment()


def render_chat(
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    add_generation_prompt: bool = True,
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
) -> list[int]:
    """Token ids of the prompt that ``messages`` make.

    Messages are as in OpenAI's API: ``role``, and ``content`` as text, a list of text parts, null or
    absent. No text in them, their names, calls or ``tools`` becomes a control token.

    Raises ``TemplateError``, whose ``problem`` says why.
    """
    if tokenizer.chat_template is None:
        raise TemplateError(
            TemplateProblem.MISSING,
            "The model has no chat template, so it cannot take messages. Use /v1/completions with a prompt.",
        )
    template = _compiled(tokenizer.chat_template)
    variables: dict[str, Any] = {
        "messages": [_message(message, tokenizer.chat_template) for message in messages],
        "tools": tools,
        "documents": None,
        "add_generation_prompt": add_generation_prompt,
        **{name: TracedText.literal(spelling) for name, spelling in tokenizer.special_tokens.items()},
    }
    return tokenizer.encode_parts(_rendered(template, variables))


@lru_cache(maxsize=16)
def _compiled(source: str) -> jinja2.Template:
    return _environment.compile_metered(source)


def _rendered(template: jinja2.Template, variables: dict[str, Any]) -> list[Part]:
    parts: list[Part] = []
    size = 0
    with budget():
        try:
            for piece in template.root_render_func(template.new_context(variables)):
                parts += parts_of(piece)
                size += len(piece)
                check_size(size)
        except TemplateError:
            raise
        except Exception as error:
            # Whatever a stranger's program raises means one thing: it cannot render these messages.
            raise TemplateError(
                TemplateProblem.BROKEN, f"The model's chat template fails on these messages: {error}"
            ) from error
    return parts


def _message(message: Mapping[str, Any], template: str) -> dict[str, Any]:
    role = message.get("role")
    if role not in ROLES:
        raise TemplateError(
            TemplateProblem.UNKNOWN_ROLE, f"Role {role!r} is not one of {', '.join(sorted(ROLES))}."
        )
    if role == "developer" and role not in template:
        role = "system"  # the same under its older name
    return {**message, "role": TracedText.literal(role), "content": _text(message.get("content"))}


def _text(content: str | Sequence[Mapping[str, Any]] | None) -> str:
    """Templates of text models expect one string: parts are joined as they are, null is no text."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part["text"] for part in content)
