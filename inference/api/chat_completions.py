"""``POST /v1/chat/completions``."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field, model_validator

from accounts.models import Scope
from inference.api.answers import ChatCompletion, ChatCompletionChunk, ChatShape
from inference.api.chat_messages import Message
from inference.api.endpoint import AsyncAnswer, Call, endpoint
from inference.api.errors import ErrorCode
from inference.api.fields import Range, Unsupported, invalid
from inference.api.generating import generate
from inference.api.idempotent import IDEMPOTENCY_KEY
from inference.api.prompts import chat_prompt
from inference.api.sampling_parameters import GenerationParameters

ROUTE: Final = ChatShape.route
MAX_MESSAGES: Final = 10_000


class ChatCompletionRequest(GenerationParameters):
    """What a chat answer is made of."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    max_completion_tokens: Annotated[int, Range(1, 2**31 - 1)] | None = None
    """The newer name of `max_tokens`. Where both are given they must be equal."""

    tools: Annotated[object, Unsupported([])] = None
    tool_choice: Annotated[object, Unsupported("none", "auto")] = None
    parallel_tool_calls: bool | None = None
    """Accepted for compatibility; there are no tools to call."""
    functions: Annotated[object, Unsupported([])] = None
    function_call: Annotated[object, Unsupported("none", "auto")] = None
    response_format: Annotated[object, Unsupported({"type": "text"})] = None
    logprobs: Annotated[object, Unsupported(False)] = None
    top_logprobs: Annotated[object, Unsupported()] = None
    modalities: Annotated[object, Unsupported(["text"])] = None
    audio: Annotated[object, Unsupported()] = None
    prediction: Annotated[object, Unsupported()] = None
    reasoning_effort: Annotated[object, Unsupported("none")] = None
    verbosity: Annotated[object, Unsupported("medium")] = None
    web_search_options: Annotated[object, Unsupported()] = None
    moderation: Annotated[object, Unsupported()] = None

    @model_validator(mode="after")
    def _one_length(self) -> ChatCompletionRequest:
        both = (self.max_tokens, self.max_completion_tokens)
        if None not in both and both[0] != both[1]:
            raise invalid("must equal `max_tokens` where both are given", param="max_completion_tokens")
        return self

    @property
    def answer_tokens(self) -> int | None:
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens


@endpoint(
    "POST",
    summary="Answer a chat",
    tag="Chat",
    scopes=(Scope.INFERENCE,),
    body=ChatCompletionRequest,
    answer=ChatCompletion,
    chunk=ChatCompletionChunk,
    parameters=(IDEMPOTENCY_KEY,),
    errors=(
        ErrorCode.CONTEXT_LENGTH_EXCEEDED,
        ErrorCode.KV_MEMORY_EXCEEDED,
        ErrorCode.NO_ENTITLEMENT,
        ErrorCode.MODEL_NOT_FOUND,
        ErrorCode.GENERATION_CANCELLED,
        ErrorCode.IDEMPOTENCY_CONFLICT,
        ErrorCode.INSUFFICIENT_QUOTA,
        ErrorCode.RATE_LIMIT_EXCEEDED,
        ErrorCode.CONCURRENCY_LIMIT_EXCEEDED,
        ErrorCode.QUEUE_FULL,
        ErrorCode.GENERATION_FAILED,
        ErrorCode.OVERLOADED,
    ),
)
def create_chat_completion(call: Call, body: ChatCompletionRequest) -> AsyncAnswer:
    """The model's next message in a chat, whole or as a stream of server-sent events."""
    return generate(
        call,
        body,
        route=ROUTE,
        prompt_of=lambda model: chat_prompt(model, body.messages),
        shape_of=ChatShape,
    )
