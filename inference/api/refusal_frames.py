"""From whatever went wrong on the chat socket to the ``error`` frame that its client is sent."""

from __future__ import annotations

from msgspec import UNSET

from accounts.authentication import NotAMember
from inference.api.errors import as_api_error
from inference.api.frame_errors import FrameError, FrameErrorCode
from inference.api.frames import Error
from inference.conversations import ConversationRefused


def error_frame(error: Exception) -> Error:
    """The frame for ``error``. What nobody foresaw is logged whole, and told in general words."""
    match error:
        case FrameError():
            return Error(code=error.code.value, message=error.message, param=error.param)
        case ConversationRefused():
            return Error(code=error.code.value, message=error.message, param="conversation")
        case NotAMember():
            return Error(code=FrameErrorCode.NOT_A_MEMBER.value, message=str(error), param="tenant")
    fault = as_api_error(error)
    body = fault.body()["error"]
    wait_ms = None if fault.retry_after_s is None else max(1, round(fault.retry_after_s * 1000))
    return Error(
        code=body["code"],
        message=body["message"],
        param=body["param"],
        retry_after_ms=wait_ms,
        limit=body.get("limit", UNSET),
    )
