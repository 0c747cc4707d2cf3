"""The frames of the chat socket: JSON objects with a ``type``.

What comes in is validated by the very models of the REST API; what goes out is one of a few structs, encoded without
detours, since one is made for every token.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType
from pydantic import Field, model_validator

from inference.api.bodies import validate
from inference.api.chat_completions import ChatCompletionRequest
from inference.api.chat_messages import Message
from inference.api.errors import ErrorCode, shown
from inference.api.fields import Range, RequestModel, invalid
from inference.api.frame_errors import FrameError, FrameErrorCode

#: Largest frame that is read, in bytes of UTF-8.
MAX_FRAME_BYTES: Final = 1024 * 1024
_LONGEST_REF: Final = 128
_LONGEST_ID: Final = 80
_MOST_EVENTS: Final = 2**53


class Authenticate(RequestModel):
    """Who is speaking: for clients that can set no header."""

    type: Literal["authenticate"]
    api_key: Annotated[str, Field(min_length=1, max_length=200)]


class Generate(ChatCompletionRequest):
    """Answer these messages. With ``conversation`` they are the new ones: the stored ones go before them."""

    type: Literal["generate"]
    ref: Annotated[str, Field(max_length=_LONGEST_REF)] | None = None
    """The client's own name for this request, given back in `accepted` and in the `error` that refuses it."""
    messages: list[Message] = []
    conversation: Annotated[str, Field(max_length=_LONGEST_ID)] | None = None
    """Store question and answer here. Without messages, the last answer is given anew."""
    tenant: Annotated[str, Field(max_length=_LONGEST_ID)] | None = None
    """For members of several tenants: the one that this is for. A conversation's is its own."""

    @model_validator(mode="after")
    def _something_to_answer(self) -> Generate:
        if not self.messages and self.conversation is None:
            raise invalid(
                "must not be empty, unless a `conversation` is to give its last answer anew", param="messages"
            )
        return self


class Cancel(RequestModel):
    """End a generation."""

    type: Literal["cancel"]
    generation: Annotated[str, Field(max_length=_LONGEST_ID)]


class Resume(RequestModel):
    """Follow a generation from the event behind ``after`` on."""

    type: Literal["resume"]
    generation: Annotated[str, Field(max_length=_LONGEST_ID)]
    after: Annotated[int, Range(0, _MOST_EVENTS)] = 0
    """The last `seq` that was read; 0: from the start."""
    epoch: Annotated[int, Range(0, _MOST_EVENTS)] | None = None
    """The `epoch` that came with it: proves that the log still holds the very event."""


ClientFrame = Authenticate | Generate | Cancel | Resume

_FRAMES: Final[dict[str, type[ClientFrame]]] = {
    "authenticate": Authenticate,
    "generate": Generate,
    "cancel": Cancel,
    "resume": Resume,
}


class Envelope(Struct):
    """What of a frame says what it is and what an error about it has to name."""

    type: Any = None
    ref: Any = None
    generation: Any = None

    @property
    def known_ref(self) -> str | None:
        return self.ref if isinstance(self.ref, str) and len(self.ref) <= _LONGEST_REF else None

    @property
    def known_generation(self) -> str | None:
        return (
            self.generation
            if isinstance(self.generation, str) and len(self.generation) <= _LONGEST_ID
            else None
        )


_envelope_decoder: Final = msgspec.json.Decoder(Envelope)


def open_envelope(text: str | None) -> Envelope:
    """The envelope of a frame. Raises ``FrameError`` for what is no JSON object, or too large."""
    if text is None:
        raise FrameError(ErrorCode.INVALID_JSON, "Frames are JSON texts: this one was binary.")
    if len(text) > MAX_FRAME_BYTES or len(text.encode()) > MAX_FRAME_BYTES:
        raise FrameError(
            FrameErrorCode.FRAME_TOO_LARGE,
            f"The frame is larger than {MAX_FRAME_BYTES} bytes, the most that is read.",
        )
    try:
        return _envelope_decoder.decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise FrameError(ErrorCode.INVALID_JSON, f"The frame is not a JSON object: {error}.") from None


def read_frame(envelope: Envelope, text: str) -> ClientFrame:
    """The frame itself. Raises ``FrameError`` for an unknown type, ``ApiError`` for the frame's first mistake."""
    model = _FRAMES.get(envelope.type) if isinstance(envelope.type, str) else None
    if model is None:
        given = (
            f"not `{shown(envelope.type)}`"
            if isinstance(envelope.type, str)
            else "and it is missing or no string"
        )
        raise FrameError(
            FrameErrorCode.UNKNOWN_FRAME,
            f"`type` must be one of {', '.join(_FRAMES)}, {given}.",
            param="type",
        )
    return validate(model, text.encode())


class Authenticated(Struct, tag="authenticated", tag_field="type"):
    """The key of an ``authenticate`` frame is valid."""

    tenant: str


class Accepted(Struct, tag="accepted", tag_field="type"):
    """The generation will reach an end, whatever happens to this connection."""

    ref: str | None
    generation: str
    model: str
    lane: str
    service_tier: str
    requested_lane: str | None
    reason: str
    conversation: str | UnsetType = UNSET


class Queued(Struct, tag="queued", tag_field="type"):
    """Its place in the queue, 1 for the next; ``eta_ms`` is null while nothing is known of the queue's pace."""

    generation: str
    position: int
    eta_ms: int | None


class Prefill(Struct, tag="prefill", tag_field="type"):
    """Prompt tokens that the model has read."""

    generation: str
    done: int
    total: int


class TextDelta(Struct, tag="delta", tag_field="type"):
    """More text. ``seq`` and ``epoch`` are what a ``resume`` gives back."""

    generation: str
    seq: int
    epoch: int
    text: str


class Timings(Struct, kw_only=True):
    """Milliseconds since acceptance, and the pace of the answer. Null: not known (the stream was resumed)."""

    queue_ms: int | None = None
    first_token_ms: int | None = None
    total_ms: int | None = None
    tokens_per_second: float | None = None


class Done(Struct, tag="done", tag_field="type"):
    """The end of a generation that completed (``stop``, ``length``) or was ``cancelled``."""

    generation: str
    seq: int
    finish_reason: str
    cancel_reason: str | None
    usage: dict[str, Any]
    timings: Timings


class Error(Struct, tag="error", tag_field="type", kw_only=True):
    """A frame that was refused (``ref``), or a generation that failed or cannot be followed (``generation``)."""

    code: str
    message: str
    param: str | None = None
    retry_after_ms: int | None = None
    #: Where a limit refused: which, and where it stands.
    limit: dict[str, Any] | UnsetType = UNSET
    ref: str | UnsetType = UNSET
    generation: str | UnsetType = UNSET


ServerFrame = Authenticated | Accepted | Queued | Prefill | TextDelta | Done | Error

_encoder: Final = msgspec.json.Encoder()


def encode(frame: ServerFrame) -> str:
    """The frame's JSON."""
    return _encoder.encode(frame).decode()
