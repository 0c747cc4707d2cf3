"""What a generation looks like to its client, whole and in chunks, on each of the two routes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, TypedDict
from uuid import UUID

from pydantic import BaseModel, ConfigDict

from inference import messages
from inference.api import ids
from inference.messages import FinishReason


class AnswerModel(BaseModel):
    """An object of an answer."""

    model_config: ClassVar[ConfigDict] = ConfigDict(use_attribute_docstrings=True)


class PromptTokensDetails(AnswerModel):
    """Of the prompt's tokens."""

    cached_tokens: int
    """Were not run again, because an earlier prompt began the same way."""


class CompletionTokensDetails(AnswerModel):
    """Of the answer's tokens, and of what was drafted for it."""

    accepted_prediction_tokens: int
    """Were guessed by the server's drafter and confirmed by the model: part of `completion_tokens`."""
    rejected_prediction_tokens: int
    """Were guessed in vain: part of no other count, and not charged."""
    reasoning_tokens: Literal[0] = 0
    """No model here thinks apart from its answer."""


class Usage(AnswerModel):
    """Exact token counts."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails

    @classmethod
    def of(cls, usage: messages.Usage) -> Usage:
        return cls(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            total_tokens=usage.prompt_tokens + usage.completion_tokens,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=usage.cached_tokens),
            completion_tokens_details=CompletionTokensDetails(
                accepted_prediction_tokens=usage.accepted_prediction_tokens,
                rejected_prediction_tokens=usage.rejected_prediction_tokens,
            ),
        )


class _Answer(AnswerModel):
    id: str
    created: int
    """Unix time at which the generation was accepted; the same in every chunk."""
    model: str
    service_tier: str
    """The tier that was really used, whatever was asked for."""
    system_fingerprint: str
    """Changes when the model was prepared anew: then the same seed may give another answer."""


class AssistantAnswer(AnswerModel):
    """The message that the model wrote."""

    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(AnswerModel):
    """The one answer."""

    index: int = 0
    message: AssistantAnswer
    logprobs: None = None
    finish_reason: FinishReason


class ChatCompletion(_Answer):
    """A whole chat answer."""

    object: Literal["chat.completion"] = "chat.completion"
    choices: list[ChatChoice]
    usage: Usage


class FirstDelta(AnswerModel):
    """What the first chunk adds: who speaks."""

    role: Literal["assistant"] = "assistant"
    content: Literal[""] = ""


class TextDelta(AnswerModel):
    """What a chunk of text adds."""

    content: str


class NoDelta(AnswerModel):
    """What the last chunk adds: nothing."""


class ChatChunkChoice(AnswerModel):
    """What a chunk adds to the one answer."""

    index: int = 0
    delta: FirstDelta | TextDelta | NoDelta
    logprobs: None = None
    finish_reason: FinishReason | None = None
    """Null until the last chunk of the choice."""


class ChatCompletionChunk(_Answer):
    """A piece of a streamed chat answer."""

    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    choices: list[ChatChunkChoice]
    """Empty in the usage chunk."""
    usage: Usage | None = None
    """Only with `stream_options.include_usage`: null but in the usage chunk."""


class TextChoice(AnswerModel):
    """The one answer, or what a chunk adds to it."""

    index: int = 0
    text: str
    logprobs: None = None
    finish_reason: FinishReason | None = None
    """Null until the last chunk of the choice."""


class Completion(_Answer):
    """A text answer, whole or a streamed piece of it."""

    object: Literal["text_completion"] = "text_completion"
    choices: list[TextChoice]
    """Empty in the usage chunk."""
    usage: Usage | None = None
    """In a stream only with `stream_options.include_usage`, and null but in the usage chunk."""


class _Fields(TypedDict):
    id: str
    created: int
    model: str
    service_tier: str
    system_fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What every chunk and the whole answer of one generation begin with."""

    generation: UUID
    created: int
    model: str
    service_tier: str
    fingerprint: str

    def fields(self, kind: str) -> _Fields:
        return {
            "id": f"{kind}-{self.generation.hex}",
            "created": self.created,
            "model": self.model,
            "service_tier": self.service_tier,
            "system_fingerprint": f"fp_{self.fingerprint[:12]}",
        }


class Shape(Protocol):
    """How one route words what happens to a generation."""

    def opening(self) -> AnswerModel | None:
        """The chunk before any text, if the route has one."""

    def text(self, text: str) -> AnswerModel:
        """A chunk of text."""

    def finish(self, reason: FinishReason) -> AnswerModel:
        """The last chunk of the choice."""

    def usage(self, usage: messages.Usage) -> AnswerModel:
        """The usage chunk."""

    def whole(self, text: str, reason: FinishReason, usage: messages.Usage) -> AnswerModel:
        """The answer of a request that does not stream."""


class ChatShape:
    """``chat.completion`` and its chunks."""

    #: What generations of this shape came in by.
    route: ClassVar = "chat.completions"

    def __init__(self, head: Head) -> None:
        self._fields = head.fields(ids.CHAT_COMPLETION)

    def opening(self) -> AnswerModel | None:
        return self._chunk(ChatChunkChoice(delta=FirstDelta()))

    def text(self, text: str) -> AnswerModel:
        return self._chunk(ChatChunkChoice(delta=TextDelta(content=text)))

    def finish(self, reason: FinishReason) -> AnswerModel:
        return self._chunk(ChatChunkChoice(delta=NoDelta(), finish_reason=reason))

    def usage(self, usage: messages.Usage) -> AnswerModel:
        return ChatCompletionChunk(**self._fields, choices=[], usage=Usage.of(usage))

    def whole(self, text: str, reason: FinishReason, usage: messages.Usage) -> AnswerModel:
        choice = ChatChoice(message=AssistantAnswer(content=text), finish_reason=reason)
        return ChatCompletion(**self._fields, choices=[choice], usage=Usage.of(usage))

    def _chunk(self, choice: ChatChunkChoice) -> AnswerModel:
        return ChatCompletionChunk(**self._fields, choices=[choice])


class TextShape:
    """``text_completion``, whole and in chunks."""

    #: What generations of this shape came in by.
    route: ClassVar = "completions"

    def __init__(self, head: Head) -> None:
        self._fields = head.fields(ids.COMPLETION)

    def opening(self) -> AnswerModel | None:
        return None

    def text(self, text: str) -> AnswerModel:
        return self._chunk(TextChoice(text=text))

    def finish(self, reason: FinishReason) -> AnswerModel:
        return self._chunk(TextChoice(text="", finish_reason=reason))

    def usage(self, usage: messages.Usage) -> AnswerModel:
        return Completion(**self._fields, choices=[], usage=Usage.of(usage))

    def whole(self, text: str, reason: FinishReason, usage: messages.Usage) -> AnswerModel:
        choice = TextChoice(text=text, finish_reason=reason)
        return Completion(**self._fields, choices=[choice], usage=Usage.of(usage))

    def _chunk(self, choice: TextChoice) -> AnswerModel:
        return Completion(**self._fields, choices=[choice])
