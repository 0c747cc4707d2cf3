"""The parameters that chat and text completions share, and what becomes of them."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, field_validator, model_validator

from inference import intake
from inference.api.fields import Range, RequestModel, Unsupported, invalid
from inference.messages import Sampling

MAX_STOPS: Final = 4
MAX_STOP_LENGTH: Final = 500
MAX_LOGIT_BIASES: Final = 1024
#: More than any model's context; a real limit is the model's own.
_MOST_TOKENS: Final = 2**31 - 1
#: The smallest nucleus: the likeliest token alone.
_SMALLEST_TOP_P: Final = 1e-9
_SEED_BITS: Final = 63


class StreamOptions(RequestModel):
    """How a stream is sent. Only with ``stream``."""

    include_usage: bool = False
    """Send one more chunk before the end, with the token counts and no choices."""
    include_progress: bool = False
    """Ours: comments carry the queue position and the progress of the prompt."""
    resumable: bool = False
    """Ours: hanging up does not end the generation; it can be picked up again at `/v1/generations/{id}/events`."""
    include_obfuscation: bool = False
    """Accepted for compatibility; nothing is padded."""


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class GenerationParameters(RequestModel):
    """What can be asked of a generation, whatever its prompt is."""

    model: Annotated[str, Field(min_length=1, max_length=200)]
    """Id of the model, as listed by `/v1/models`."""
    max_tokens: Annotated[int, Range(1, _MOST_TOKENS)] | None = None
    """Most tokens of the answer. Prompt and answer must fit the model's context together."""
    temperature: Annotated[float, Range(0, 2)] = 1.0
    """0 always takes the likeliest token."""
    top_p: Annotated[float, Range(0, 1)] = 1.0
    """Draw from the likeliest tokens that make up this much probability."""
    top_k: Annotated[int, Range(-1, _MOST_TOKENS)] = 0
    """Ours: draw from this many likeliest tokens; 0 or -1: from all."""
    min_p: Annotated[float, Range(0, 1)] = 0.0
    """Ours: leave out tokens less likely than this share of the likeliest."""
    presence_penalty: Annotated[float, Range(-2, 2)] = 0.0
    """Taken from the logit of every token that the text has already."""
    frequency_penalty: Annotated[float, Range(-2, 2)] = 0.0
    """Taken from a token's logit once for each time that the text has it."""
    repetition_penalty: Annotated[float, Range(0, 2, above=True)] = 1.0
    """Ours: divides (or, below zero, multiplies) the logits of tokens that were used; 1: none."""
    logit_bias: dict[str, Annotated[float, Range(-100, 100)]] = {}
    """Added to the logits of these tokens; keys are token ids."""
    seed: Annotated[int, Range(-(2**63), 2**63 - 1)] | None = None
    """Same seed, same request: same answer, alone or in a busy batch."""
    stop: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]],
        Field(max_length=MAX_STOPS, fail_fast=True),
        BeforeValidator(_as_list, json_schema_input_type=str | list[str]),
    ] = []
    """Text at which the answer ends; it is not part of the answer."""
    stream: bool = False
    """Send the answer as server-sent events while it is written."""
    stream_options: StreamOptions | None = None
    service_tier: Annotated[str, Field(min_length=1, max_length=30)] | None = None
    """The lane asked for, in OpenAI's words: `priority`, `default`, `flex`; `auto`: the key's default lane."""
    lane: Annotated[str, Field(min_length=1, max_length=30)] | None = None
    """Ours: the lane asked for, by its own name: `high`, `normal`, `low`."""

    # Harmless by the API's own definition: for the caller's books, or hints that change no answer.
    user: str | None = None
    metadata: dict[str, Any] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    cache_control: dict[str, Any] | None = None

    n: Annotated[object, Unsupported(1)] = 1
    store: Annotated[object, Unsupported(False)] = False
    background: Annotated[object, Unsupported(False)] = False

    @field_validator("logit_bias", mode="before")
    @classmethod
    def _not_too_many_biases(cls, biases: Any) -> Any:
        if isinstance(biases, dict) and len(biases) > MAX_LOGIT_BIASES:
            raise invalid(f"must hold at most {MAX_LOGIT_BIASES} tokens")
        return biases

    @field_validator("logit_bias")
    @classmethod
    def _biases_name_tokens(cls, biases: dict[str, float]) -> dict[str, float]:
        if not all(key.isascii() and key.isdigit() and len(key) <= 9 for key in biases):
            raise invalid("must have token ids (whole numbers, as strings) as keys")
        return biases

    @model_validator(mode="after")
    def _options_belong_together(self) -> GenerationParameters:
        if self.stream_options is not None and not self.stream:
            raise invalid("may only be given together with `stream: true`", param="stream_options")
        if self.lane is not None and self.service_tier is not None:
            raise invalid("may not be given together with `service_tier`: both name the lane", param="lane")
        return self

    @property
    def answer_tokens(self) -> int | None:
        """The answer's length limit, if one was asked for."""
        return self.max_tokens

    @property
    def options(self) -> StreamOptions:
        return self.stream_options or StreamOptions()

    def sampling(self) -> Sampling:
        """How tokens are drawn; the seed is drawn here where the client gave none."""
        return Sampling(
            seed=intake.draw_seed() if self.seed is None else self.seed % 2**_SEED_BITS,
            temperature=self.temperature,
            top_p=max(self.top_p, _SMALLEST_TOP_P),
            top_k=max(self.top_k, 0),
            min_p=self.min_p,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            logit_bias={int(token): bias for token, bias in self.logit_bias.items()},
        )
