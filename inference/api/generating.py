"""The way of a request that generates, the same for chat and text: model, prompt, accept, answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from django.http.response import HttpResponseBase

from inference import intake
from inference.api import ids, language_models
from inference.api.answers import Head, Shape
from inference.api.endpoint import Call, json_response
from inference.api.errors import ApiError, ErrorCode, as_api_error
from inference.api.prompts import check_logit_bias
from inference.api.sampling_parameters import GenerationParameters, StreamOptions
from inference.api.streaming import Answering
from inference.dispatch.delivery import delivery
from inference.intake import Accepted, RefusalCode, Submission
from inference.messages import Sampling
from inference.models import LanguageModel

#: Values of the header that clients of older gateways name a lane with.
_PRIORITIES: Final = ("high", "normal", "low")


@dataclass(frozen=True, slots=True)
class GenerationAnswer:
    """The answer to a request whose generation was accepted: a stream, or the whole at its end."""

    call: Call
    accepted: Accepted
    shape: Shape
    stream: bool
    options: StreamOptions

    async def respond(self) -> HttpResponseBase:
        attachment, generation = self.call.attachment, self.accepted.generation_id
        publications = await attachment.follows.enter_async_context(delivery().follow(generation.hex))
        answering = Answering(generation, publications, self.shape, attachment, options=self.options)
        try:
            response: HttpResponseBase
            if self.stream:
                response = await answering.response()
            else:
                response = json_response(await answering.whole())
        except Exception as error:
            fault = as_api_error(error)
            fault.headers.update(self._headers())
            raise fault from error
        for name, value in self._headers().items():
            response[name] = value
        return response

    def _headers(self) -> dict[str, str]:
        return lane_headers(self.accepted.admission.lane, ids.generation_id(self.accepted.generation_id))


def lane_headers(lane: str, generation: str) -> dict[str, str]:
    """Where a generation ran, and what it is called."""
    return {"x-signalbox-lane": lane, "x-signalbox-generation": generation}


def generate(
    call: Call,
    body: GenerationParameters,
    *,
    route: str,
    prompt_of: Callable[[LanguageModel], list[int]],
    shape_of: Callable[[Head], Shape],
) -> GenerationAnswer:
    """Accept a generation for a valid ``body``. Runs in the request's thread.

    Raises ``ApiError`` or ``intake.Refused``; nothing is reserved or queued then.
    """
    requested_lane, lane_field = _requested_lane(call, body)
    if "Idempotency-Key" in call.request.headers:
        raise ApiError(
            ErrorCode.UNSUPPORTED_HEADER,
            "The header `Idempotency-Key` is not supported by this server: it cannot promise to answer once.",
            param="Idempotency-Key",
        )
    model = language_models.find(body.model)
    sampling: Sampling = body.sampling()
    check_logit_bias(model, sampling.logit_bias)
    submission = Submission(
        model=model,
        prompt=prompt_of(model),
        sampling=sampling,
        route=route,
        max_tokens=body.answer_tokens,
        stop=tuple(body.stop),
        requested_lane=requested_lane,
        keep_output=body.options.resumable,
    )
    try:
        accepted = intake.accept(call.principal, submission)
    except intake.Refused as refusal:
        if refusal.code is RefusalCode.UNKNOWN_LANE:
            refusal.param = lane_field
        raise
    if not body.options.resumable:
        call.attachment.generation_id = accepted.generation_id
    head = Head(
        generation=accepted.generation_id,
        created=int(accepted.created_at.timestamp()),
        model=model.name,
        service_tier=accepted.admission.service_tier,
        fingerprint=model.checksum,
    )
    return GenerationAnswer(call, accepted, shape_of(head), body.stream, body.options)


def _requested_lane(call: Call, body: GenerationParameters) -> tuple[str | None, str]:
    """The lane asked for, and the field that asked. The body's wish goes before the header's."""
    if body.lane is not None:
        return body.lane, "lane"
    if body.service_tier is not None:
        return body.service_tier, "service_tier"
    priority = call.request.headers.get("X-Priority")
    if priority is not None and priority.lower() not in _PRIORITIES:
        raise ApiError(
            ErrorCode.INVALID_VALUE,
            f"The header `X-Priority` must be one of {', '.join(_PRIORITIES)}.",
            param="X-Priority",
        )
    return priority.lower() if priority is not None else None, "X-Priority"
