"""``/v1/generations/{id}``: what became of a request, its events from any point on, and its end before its own."""

from __future__ import annotations

from datetime import datetime
from typing import Final, Literal

from django.http import HttpRequest

from accounts.models import AssignmentReason, LaneAssignment, Scope
from accounts.tenancy import tenant_scope
from inference import cancellation
from inference.api import ids
from inference.api.answers import AnswerModel, ChatCompletionChunk, Usage
from inference.api.endpoint import Call, Parameter, endpoint
from inference.api.errors import ApiError, ErrorCode
from inference.api.ids import EventId
from inference.api.reading import EventsAnswer, complete_entries, shape_of
from inference.api.sampling_parameters import StreamOptions
from inference.dispatch.queue import dispatch_queue
from inference.messages import CancelReason
from inference.models import Generation
from inference.models.generation import LIVE_STATES, GenerationState


class LaneOfGeneration(AnswerModel):
    """Which lane the generation got, and why. Once that is archived only the lane itself is told."""

    requested: str | None
    """The lane or tier that was asked for; null: none in particular, or archived."""
    given: str
    service_tier: str
    reason: AssignmentReason | None
    """Null: archived."""
    explanation: str | None


class Timeline(AnswerModel):
    """When what happened, in Unix seconds; null: not yet, or never."""

    accepted_at: float
    claimed_at: float | None
    """By the worker that has it, or had it last: later than the first token where another had begun it."""
    first_token_at: float | None
    ended_at: float | None


class FailureOfGeneration(AnswerModel):
    """Why it failed."""

    code: str
    message: str


class GenerationRecord(AnswerModel):
    """One accepted request, from accepted to its end."""

    id: str
    object: Literal["generation"] = "generation"
    created: int
    model: str
    route: str
    state: GenerationState
    lane: LaneOfGeneration
    queue_position: int | None
    """While it waits: 1 is next, by the rank of lanes and the order of arrival."""
    timeline: Timeline
    usage: Usage | None
    """Exact; null until it has ended."""
    max_tokens: int
    finish_reason: str | None
    cancel_reason: str | None
    failure: FailureOfGeneration | None


#: Digits of the largest event number that is understood.
_LONGEST_SEQ: Final = 15

_EVENT_PARAMETERS: Final = (
    Parameter(
        name="Last-Event-ID",
        location="header",
        schema={"type": "string"},
        description="The `id` of the last event that was read: the stream goes on behind it.",
    ),
    Parameter(
        name="after",
        schema={"type": "integer", "minimum": 0, "default": 0},
        description="The same as a number, for clients that cannot set the header. 0: from the start.",
    ),
    Parameter(
        name="include_usage",
        schema={"type": "boolean", "default": False},
        description="End with a usage chunk, as `stream_options.include_usage` does.",
    ),
    Parameter(
        name="include_progress",
        schema={"type": "boolean", "default": False},
        description="Tell queue position and prefill progress in comments, as `stream_options.include_progress` does.",
    ),
)


@endpoint(
    "GET",
    summary="Look a generation up",
    tag="Generations",
    scopes=(Scope.READ, Scope.INFERENCE),
    answer=GenerationRecord,
    errors=(ErrorCode.GENERATION_NOT_FOUND,),
)
def retrieve_generation(call: Call, generation_id: str) -> GenerationRecord:
    """State, lane and the reason for it, timeline and usage. Also found by the id of its answer."""
    with tenant_scope(call.principal.tenant_id):
        return _record(_find(generation_id))


@endpoint(
    "POST",
    summary="Cancel a generation",
    tag="Generations",
    scopes=(Scope.INFERENCE,),
    answer=GenerationRecord,
    errors=(ErrorCode.GENERATION_NOT_FOUND,),
)
def cancel_generation(call: Call, generation_id: str) -> GenerationRecord:
    """End it: at once while it waits, within one tick while it runs. One that has ended stays as it is."""
    with tenant_scope(call.principal.tenant_id):
        generation = _find(generation_id)
        cancellation.cancel(generation.id, CancelReason.CLIENT_REQUESTED)
        return _record(_find(generation_id))


@endpoint(
    "GET",
    summary="Read a generation's events",
    tag="Generations",
    scopes=(Scope.INFERENCE,),
    chunk=ChatCompletionChunk,
    parameters=_EVENT_PARAMETERS,
    errors=(
        ErrorCode.GENERATION_NOT_FOUND,
        ErrorCode.EVENTS_EXPIRED,
        ErrorCode.STREAM_DIVERGED,
        ErrorCode.ACCESS_REVOKED,
    ),
)
def read_events(call: Call, generation_id: str) -> EventsAnswer:
    """The events of a stream, in the form of the route that it came from: those behind the last one that was read, then
    the others as they come. Reading does not end the generation when it stops."""
    with tenant_scope(call.principal.tenant_id):
        generation = _find(generation_id)
        after = _after(call.request, generation)
        options = StreamOptions(
            include_usage=_flag(call.request, "include_usage"),
            include_progress=_flag(call.request, "include_progress"),
        )
        return EventsAnswer(
            call, generation, shape_of(generation), options, after, complete_entries(generation, after)
        )


def _find(generation_id: str) -> Generation:
    """The generation of the active tenancy scope, made with one of its keys: what members say in their chats is no
    key's to read. Raises ``ApiError`` 404, for foreign ones alike."""
    id_ = ids.parse(generation_id)
    made_with_keys = Generation.objects.select_related("model", "lane").filter(user__isnull=True)
    generation = id_ and made_with_keys.filter(id=id_).first()
    if not generation:
        raise ApiError(ErrorCode.GENERATION_NOT_FOUND, "There is no such generation.")
    return generation


def _after(request: HttpRequest, generation: Generation) -> EventId:
    """The event that the client has read last. The header goes first: a reconnecting client repeats its URL."""
    header = request.headers.get("Last-Event-ID")
    if header is not None:
        after = EventId.parse(header)
        if after is None or after.generation != generation.id:
            raise ApiError(
                ErrorCode.INVALID_VALUE,
                "The header `Last-Event-ID` must be the id of an event of this generation.",
                param="Last-Event-ID",
            )
        return after
    text = request.GET.get("after", "0")
    if not (text.isascii() and text.isdigit() and len(text) <= _LONGEST_SEQ):
        raise ApiError(
            ErrorCode.INVALID_VALUE, "`after` must be the number of an event, 0 or more.", param="after"
        )
    return EventId(generation.id, int(text))


def _flag(request: HttpRequest, name: str) -> bool:
    text = request.GET.get(name, "false")
    if text not in ("true", "false"):
        raise ApiError(ErrorCode.INVALID_VALUE, f"`{name}` must be `true` or `false`.", param=name)
    return text == "true"


def _record(generation: Generation) -> GenerationRecord:
    assignment = LaneAssignment.objects.filter(generation_id=generation.id).first()
    reason = AssignmentReason(assignment.reason) if assignment else None
    ended = generation.state not in LIVE_STATES
    waits = generation.state == GenerationState.QUEUED
    return GenerationRecord(
        id=ids.generation_id(generation.id),
        created=int(generation.created_at.timestamp()),
        model=generation.model.name,
        route=generation.route,
        state=GenerationState(generation.state),
        lane=LaneOfGeneration(
            requested=(assignment.requested_lane or None) if assignment else None,
            given=generation.lane_id,
            service_tier=generation.lane.service_tier,
            reason=reason,
            explanation=str(reason.label) if reason else None,
        ),
        queue_position=dispatch_queue().position(generation.id.hex) if waits else None,
        timeline=Timeline(
            accepted_at=generation.created_at.timestamp(),
            claimed_at=_unix(generation.claimed_at),
            first_token_at=_unix(generation.first_token_at),
            ended_at=_unix(generation.ended_at),
        ),
        usage=Usage.of(generation.usage) if ended else None,
        max_tokens=generation.max_tokens,
        finish_reason=generation.finish_reason or None,
        cancel_reason=generation.cancel_reason or None,
        failure=FailureOfGeneration(code=generation.failure_code, message=generation.failure_message)
        if generation.failure_code
        else None,
    )


def _unix(time: datetime | None) -> float | None:
    return time.timestamp() if time else None
