"""The way of a request that generates, the same for chat and text: model, prompt, accept, answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from django.http.response import HttpResponseBase

from inference import idempotency, intake
from inference.api import idempotent, ids, language_models
from inference.api.answers import Head, Shape
from inference.api.endpoint import AsyncAnswer, Call
from inference.api.errors import ApiError, ErrorCode
from inference.api.prompts import check_logit_bias
from inference.api.reading import answered, lane_headers, with_headers
from inference.api.sampling_parameters import GenerationParameters, StreamOptions
from inference.api.streaming import Answering
from inference.dispatch.delivery import delivery
from inference.idempotency import NamedRequest
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
            response = await answered(answering, stream=self.stream)
        except Exception as error:
            raise with_headers(error, self._headers()) from error
        for name, value in self._headers().items():
            response[name] = value
        return response

    def _headers(self) -> dict[str, str]:
        return lane_headers(self.accepted.admission.lane, ids.generation_id(self.accepted.generation_id))


def generate(
    call: Call,
    body: GenerationParameters,
    *,
    route: str,
    prompt_of: Callable[[LanguageModel], list[int]],
    shape_of: Callable[[Head], Shape],
) -> AsyncAnswer:
    """Accept a generation for a valid ``body``. Runs in the request's thread.

    Raises ``ApiError`` or ``intake.Refused``; nothing is reserved or queued then.
    """
    lane = _requested_lane(call, body)
    named = idempotent.named_request(call, body, route)
    if named is None:
        return _accepted(call, body, lane, None, route, prompt_of, shape_of)
    if (answer := _repeated(call, body, named)) is not None:
        return answer
    try:
        with idempotency.one_at_a_time(named) as waited:
            if waited and (answer := _repeated(call, body, named)) is not None:
                return answer
            return _accepted(call, body, lane, named, route, prompt_of, shape_of)
    except idempotency.AlreadyMade:
        # Sent twice at once: the other one was faster.
        return generate(call, body, route=route, prompt_of=prompt_of, shape_of=shape_of)


def _accepted(
    call: Call,
    body: GenerationParameters,
    lane: tuple[str | None, str],
    named: NamedRequest | None,
    route: str,
    prompt_of: Callable[[LanguageModel], list[int]],
    shape_of: Callable[[Head], Shape],
) -> AsyncAnswer:
    """The answer of a generation that is accepted now. ``lane``: the one asked for, and the field that asked.

    Raises ``AlreadyMade`` where another request of its name was faster.
    """
    requested_lane, lane_field = lane
    model = language_models.find(body.model, call.principal)
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
        keep_output=body.options.resumable or named is not None,
    )
    try:
        accepted = intake.accept(
            call.principal, submission, within=None if named is None else idempotency.claim(named)
        )
    except intake.Refused as refusal:
        # Sent twice at once, and the other one took what was left.
        if named is not None and (answer := _repeated(call, body, named)) is not None:
            return answer
        if refusal.code is RefusalCode.UNKNOWN_LANE:
            refusal.param = lane_field
        raise
    call.limits.are(accepted.limits)
    # Whoever names a request means to send it again if the answer is lost: then leaving does not end it.
    if not body.options.resumable and named is None:
        call.attachment.generation_id = accepted.generation_id
    head = Head(
        generation=accepted.generation_id,
        created=int(accepted.created_at.timestamp()),
        model=model.name,
        service_tier=accepted.admission.service_tier,
        fingerprint=model.checksum,
    )
    return GenerationAnswer(call, accepted, shape_of(head), body.stream, body.options)


def _repeated(call: Call, body: GenerationParameters, named: NamedRequest) -> AsyncAnswer | None:
    """What an earlier request of this name made, as ``body`` wants it told; None: there was none."""
    row = idempotent.earlier(named)
    return None if row is None else idempotent.repeated(call, row, stream=body.stream, options=body.options)


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
