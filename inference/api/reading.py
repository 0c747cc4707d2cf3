"""Reading what a generation published: from its log while there is one, then from what was kept of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from django.http.response import HttpResponseBase

from inference import settlement
from inference.api import ids
from inference.api.answers import ChatShape, Head, Shape, TextShape
from inference.api.endpoint import Call, json_response
from inference.api.errors import ApiError, as_api_error
from inference.api.ids import EventId
from inference.api.reader_access import reader_access
from inference.api.sampling_parameters import StreamOptions
from inference.api.streaming import Answering, Replay
from inference.dispatch import token_log
from inference.dispatch.delivery import LogExpired, StreamDiverged, delivery
from inference.messages import End, LogEntry
from inference.models import Generation
from inference.models.generation import LIVE_STATES
from signalbox import store


@dataclass(frozen=True, slots=True)
class EventsAnswer:
    """What a generation published, replayed and then as it comes: as a stream, or as one answer at its end."""

    call: Call
    generation: Generation
    shape: Shape
    options: StreamOptions
    after: EventId
    complete: list[LogEntry] | None
    """The events behind ``after`` where the last one is there already; None: they are followed."""
    stream: bool = True
    headers: Mapping[str, str] = field(default_factory=dict)
    """Of the answer, beside those that say where it ran."""

    async def respond(self) -> HttpResponseBase:
        attachment = self.call.attachment
        generation = self.generation.id
        if self.complete is not None:
            answering = Answering(
                generation,
                Replay(self.complete),
                self.shape,
                attachment,
                options=self.options,
                after=self.after.seq,
            )
        else:
            follower = await attachment.follows.enter_async_context(
                delivery().follow(generation.hex, self.after.seq, self.after.epoch)
            )
            reader = attachment.follows.enter_context(reader_access().watched(self.call.principal, follower))
            answering = Answering(
                generation, reader, self.shape, attachment, options=self.options, after=self.after.seq
            )
        headers = {**lane_headers(self.generation.lane_id, ids.generation_id(generation)), **self.headers}
        try:
            response = await answered(answering, stream=self.stream)
        except LogExpired as expired:
            # It lives, so its log was lost, not retired: it is written anew, from the start.
            raise StreamDiverged(generation.hex, self.after.seq) from expired
        except Exception as error:
            raise with_headers(error, headers) from error
        for name, value in headers.items():
            response[name] = value
        return response


async def answered(answering: Answering, *, stream: bool) -> HttpResponseBase:
    """The response: a stream, once there is something to send, or the whole answer at the end."""
    return await answering.response() if stream else json_response(await answering.whole())


def with_headers(error: Exception, headers: Mapping[str, str]) -> ApiError:
    """``error`` as the client's, with headers."""
    fault = as_api_error(error)
    fault.headers.update(headers)
    return fault


def lane_headers(lane: str, generation: str) -> dict[str, str]:
    """Where a generation ran, and what it is called."""
    return {"x-signalbox-lane": lane, "x-signalbox-generation": generation}


def shape_of(generation: Generation) -> Shape:
    """How the route that a generation came in by words it. It has its model and lane with it."""
    head = Head(
        generation=generation.id,
        created=int(generation.created_at.timestamp()),
        model=generation.model.name,
        service_tier=generation.lane.service_tier,
        fingerprint=generation.model.checksum,
    )
    return TextShape(head) if generation.route == TextShape.route else ChatShape(head)


def complete_entries(generation: Generation, after: EventId) -> list[LogEntry] | None:
    """The events from ``after`` itself on, if the last one is among them; None where more are to come.

    Runs in the tenancy scope of the generation. Raises ``LogExpired`` or ``StreamDiverged`` where the stream cannot
    go on behind ``after``.
    """
    skipped = max(after.seq - 1, 0)
    entries = token_log.read(store.shared_client(), generation.id.hex, skipped)
    if not entries or not isinstance(entries[-1], End):
        if generation.state in LIVE_STATES:
            return None
        kept = settlement.kept_output(generation.id)
        if kept is None:
            raise LogExpired(generation.id.hex)
        entries = kept[skipped:]
    if after.seq and (not entries or after.epoch not in (None, entries[0].epoch)):
        raise StreamDiverged(generation.id.hex, after.seq)
    return entries
