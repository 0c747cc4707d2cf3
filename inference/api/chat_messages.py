"""The messages of a chat, for every role that OpenAI's API has, and as a chat template takes them."""

from __future__ import annotations

import json
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from inference.api.bodies import BRANCH
from inference.api.fields import RequestModel, invalid

_MAX_NAME_LENGTH: Final = 256
_MAX_PARTS: Final = 2048
_MAX_CALLS: Final = 128
_TEXT: Final = f"{BRANCH}text"
_PARTS: Final = f"{BRANCH}parts"


def _only_text(kind: Any) -> Any:
    if isinstance(kind, str) and kind != "text":
        raise invalid(
            'must be "text": images, audio and files are not supported, as the models read text only'
        )
    return kind


class TextPart(RequestModel):
    """A piece of a message's text. A message's parts are joined as they are."""

    type: Annotated[Literal["text"], BeforeValidator(_only_text)]
    text: str
    cache_control: dict[str, Any] | None = None
    """Accepted for compatibility; changes no answer."""


class RefusalPart(RequestModel):
    """What an assistant said instead of an answer."""

    type: Literal["refusal"]
    refusal: str


def _kind_of_part(part: Any) -> str | None:
    kind = part.get("type") if isinstance(part, dict) else getattr(part, "type", None)
    return f"{BRANCH}{kind}" if kind in ("text", "refusal") else None


_NOT_A_PART: Final = (
    'must be an object with `type: "text"` and a `text`; this server\'s models read text only'
)
Parts = Annotated[list[TextPart], Field(min_length=1, max_length=_MAX_PARTS, fail_fast=True)]
AssistantPart = Annotated[
    Annotated[TextPart, Tag(f"{BRANCH}text")] | Annotated[RefusalPart, Tag(f"{BRANCH}refusal")],
    Discriminator(_kind_of_part, custom_error_type="invalid_value", custom_error_message=_NOT_A_PART),
]
AssistantParts = Annotated[list[AssistantPart], Field(min_length=1, max_length=_MAX_PARTS, fail_fast=True)]


def _kind_of_content(content: Any) -> str | None:
    if isinstance(content, str):
        return _TEXT
    return _PARTS if isinstance(content, list) else None


_CONTENT_KIND: Final = Discriminator(
    _kind_of_content,
    custom_error_type="invalid_value",
    custom_error_message="must be a string or a list of text parts",
)
Content = Annotated[Annotated[str, Tag(_TEXT)] | Annotated[Parts, Tag(_PARTS)], _CONTENT_KIND]
AssistantContent = Annotated[
    Annotated[str, Tag(_TEXT)] | Annotated[AssistantParts, Tag(_PARTS)], _CONTENT_KIND
]


class _Named(RequestModel):
    name: Annotated[str, Field(max_length=_MAX_NAME_LENGTH)] | None = None
    """Tells participants of the same role apart, where the model's template shows names."""
    cache_control: dict[str, Any] | None = None
    """Accepted for compatibility; changes no answer."""


class SystemMessage(_Named):
    """Instructions that hold for the whole chat."""

    role: Literal["system"]
    content: Content


class DeveloperMessage(_Named):
    """A system message under its newer name."""

    role: Literal["developer"]
    content: Content


class UserMessage(_Named):
    """What the user said."""

    role: Literal["user"]
    content: Content


class CalledFunction(RequestModel):
    """Which function was called, with which arguments."""

    name: Annotated[str, Field(min_length=1, max_length=_MAX_NAME_LENGTH)]
    arguments: str
    """A JSON text."""


class ToolCall(RequestModel):
    """One call that an assistant made."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class AssistantMessage(_Named):
    """What the assistant said, or called, before."""

    role: Literal["assistant"]
    content: AssistantContent | None = None
    """Required unless there are calls or a refusal."""
    refusal: str | None = None
    tool_calls: (
        Annotated[list[ToolCall], Field(min_length=1, max_length=_MAX_CALLS, fail_fast=True)] | None
    ) = None
    function_call: CalledFunction | None = None
    annotations: list[Any] | None = None
    """Accepted because answers carry it; not read."""

    @model_validator(mode="after")
    def _says_something(self) -> AssistantMessage:
        if self.content is None and not (self.tool_calls or self.function_call or self.refusal is not None):
            raise invalid("is required, unless there are `tool_calls` or a `refusal`", param="content")
        return self


class ToolMessage(_Named):
    """A tool's answer to a call."""

    role: Literal["tool"]
    content: Content
    tool_call_id: str


class FunctionMessage(RequestModel):
    """A function's answer to a call, in the older form."""

    role: Literal["function"]
    name: Annotated[str, Field(min_length=1, max_length=_MAX_NAME_LENGTH)]
    content: str | None = None


_ROLES: Final = ("system", "developer", "user", "assistant", "tool", "function")


def _role_of(message: Any) -> str | None:
    role = message.get("role") if isinstance(message, dict) else getattr(message, "role", None)
    return f"{BRANCH}{role}" if role in _ROLES else None


Message = Annotated[
    Annotated[SystemMessage, Tag(f"{BRANCH}system")]
    | Annotated[DeveloperMessage, Tag(f"{BRANCH}developer")]
    | Annotated[UserMessage, Tag(f"{BRANCH}user")]
    | Annotated[AssistantMessage, Tag(f"{BRANCH}assistant")]
    | Annotated[ToolMessage, Tag(f"{BRANCH}tool")]
    | Annotated[FunctionMessage, Tag(f"{BRANCH}function")],
    Discriminator(
        _role_of,
        custom_error_type="invalid_value",
        custom_error_message=f"must be an object whose `role` is one of {', '.join(_ROLES)}",
    ),
]


def as_template_message(message: Message) -> dict[str, Any]:
    """The message as chat templates know it: one text, and calls with their arguments as objects."""
    shaped: dict[str, Any] = {"role": message.role, "content": _text_of(message)}
    if message.name is not None:
        shaped["name"] = message.name
    if isinstance(message, ToolMessage):
        shaped["tool_call_id"] = message.tool_call_id
    if isinstance(message, AssistantMessage):
        calls = list(message.tool_calls or ())
        if message.function_call:
            calls.append(ToolCall(id="", function=message.function_call))
        if calls:
            shaped["tool_calls"] = [_shaped_call(call) for call in calls]
    return shaped


def has_calls(messages: list[Message]) -> bool:
    """Whether the template has to render calls that an assistant made."""
    return any(isinstance(m, AssistantMessage) and (m.tool_calls or m.function_call) for m in messages)


def _text_of(message: Message) -> str:
    content = message.content
    if content is None:
        return message.refusal or "" if isinstance(message, AssistantMessage) else ""
    if isinstance(content, str):
        return content
    return "".join(part.text if isinstance(part, TextPart) else part.refusal for part in content)


def _shaped_call(call: ToolCall) -> dict[str, Any]:
    return {
        "id": call.id,
        "type": call.type,
        "function": {"name": call.function.name, "arguments": _arguments(call.function.arguments)},
    }


def _arguments(text: str) -> Any:
    """Templates print arguments as JSON themselves, so an object is what they want; what is none stays a text."""
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return arguments if isinstance(arguments, dict) else text
