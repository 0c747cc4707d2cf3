"""``POST /v1/completions``."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from accounts.models import Scope
from inference.api.answers import Completion, TextShape
from inference.api.bodies import BRANCH
from inference.api.endpoint import AsyncAnswer, Call, endpoint
from inference.api.errors import ErrorCode
from inference.api.fields import UNSUPPORTED, Unsupported
from inference.api.generating import generate
from inference.api.idempotent import IDEMPOTENCY_KEY
from inference.api.prompts import checked_tokens, text_prompt
from inference.api.sampling_parameters import GenerationParameters
from inference.models import LanguageModel

ROUTE: Final = TextShape.route

#: More than any model's context; the real limit is the model's own.
_MAX_TOKENS: Final = 1_000_000
_MAX_PROMPTS: Final = 2048


def _kind_of_prompt(prompt: Any) -> str | None:
    if isinstance(prompt, str):
        return f"{BRANCH}text"
    if not isinstance(prompt, list):
        return None
    first = prompt[0] if prompt else ""
    if isinstance(first, str):
        return f"{BRANCH}texts"
    return f"{BRANCH}token_lists" if isinstance(first, list) else f"{BRANCH}tokens"


Tokens = Annotated[list[int], Field(min_length=1, max_length=_MAX_TOKENS, fail_fast=True)]
Prompt = Annotated[
    Annotated[str, Tag(f"{BRANCH}text")]
    | Annotated[
        list[str], Field(min_length=1, max_length=_MAX_PROMPTS, fail_fast=True), Tag(f"{BRANCH}texts")
    ]
    | Annotated[Tokens, Tag(f"{BRANCH}tokens")]
    | Annotated[list[Tokens], Field(max_length=_MAX_PROMPTS, fail_fast=True), Tag(f"{BRANCH}token_lists")],
    Discriminator(
        _kind_of_prompt,
        custom_error_type="invalid_value",
        custom_error_message="must be a string, a list of token ids, or a list with one of these",
    ),
]


class CompletionRequest(GenerationParameters):
    """What a text is continued with."""

    prompt: Prompt
    """A text, or its token ids; a list of prompts may hold one."""

    best_of: Annotated[object, Unsupported(1)] = None
    echo: Annotated[object, Unsupported(False)] = None
    logprobs: Annotated[object, Unsupported()] = None
    suffix: Annotated[object, Unsupported("")] = None

    @model_validator(mode="after")
    def _one_prompt(self) -> CompletionRequest:
        if isinstance(self.prompt, list) and len(self.prompt) > 1 and not isinstance(self.prompt[0], int):
            raise PydanticCustomError(
                UNSUPPORTED,
                "may hold one prompt only: several are not supported by this server",
                {"param": "prompt"},
            )
        return self

    def tokens(self, model: LanguageModel) -> list[int]:
        """The prompt's token ids, in the tokens of ``model``."""
        prompt: Any = self.prompt
        if isinstance(prompt, list) and not isinstance(prompt[0], int):
            prompt = prompt[0]
        return text_prompt(model, prompt) if isinstance(prompt, str) else checked_tokens(model, prompt)


@endpoint(
    "POST",
    summary="Continue a text",
    tag="Text",
    scopes=(Scope.INFERENCE,),
    body=CompletionRequest,
    answer=Completion,
    chunk=Completion,
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
def create_completion(call: Call, body: CompletionRequest) -> AsyncAnswer:
    """What the model writes behind a prompt, whole or as a stream of server-sent events."""
    return generate(call, body, route=ROUTE, prompt_of=body.tokens, shape_of=TextShape)
