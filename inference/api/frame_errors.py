"""What can go wrong on the chat socket beyond what can go wrong on any route."""

from __future__ import annotations

from enum import StrEnum

from inference.api.errors import ErrorCode, hide_keys


class FrameErrorCode(StrEnum):
    """Why a frame was refused or a stream cut: the ``code`` of the ``error`` frame, beside ``errors.ErrorCode``."""

    UNKNOWN_FRAME = "unknown_frame"
    FRAME_TOO_LARGE = "frame_too_large"
    NOT_AUTHENTICATED = "not_authenticated"
    ALREADY_SIGNED_IN = "already_signed_in"
    NOT_A_MEMBER = "not_a_member"
    TENANT_REQUIRED = "tenant_required"
    CONVERSATION_NEEDS_SESSION = "conversation_needs_session"
    TOO_MANY_GENERATIONS = "too_many_generations"
    SLOW_READER = "slow_reader"


class FrameError(Exception):
    """A frame that cannot be acted on, or a stream that cannot go on. ``param`` names the field at fault."""

    def __init__(self, code: FrameErrorCode | ErrorCode, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        # As an ``ApiError`` does: neither the frame nor any log repeats a key that a client put in the wrong place.
        self.message = hide_keys(message)
        self.param = param
