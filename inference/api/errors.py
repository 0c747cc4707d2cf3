"""Everything that can go wrong below ``/v1``, in one shape.

Every error is ``{"error": {"message", "type", "param", "code"}}``. An ``ErrorCode`` fixes the status, the type and
whether a retry can mend it, so that the same code never means two things. What a limit refuses names the ``limit``
beside the four keys.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from typing import Any, Final

import redis
import structlog
from django.core.exceptions import RequestDataTooBig, SuspiciousOperation
from django.db import InterfaceError, OperationalError
from django.http import Http404, JsonResponse
from rest_framework.exceptions import APIException
from rest_framework.response import Response

from accounts.authentication import InvalidKey
from accounts.key_text import CONTAINS_KEY
from inference import intake
from inference.api.limit_answers import ShortLimit
from inference.dispatch.delivery import LogExpired, StreamDiverged

_log = structlog.get_logger(__name__)

#: What a client is told to wait when a part of the server cannot be reached, in seconds.
UNAVAILABLE_RETRY_AFTER_S: Final = 2.0

_HIDDEN: Final = "[api key]"
#: Client text in a message is cut to this many characters.
_SHOWN_LENGTH: Final = 80


class ErrorType(StrEnum):
    """The coarse kind of an error, in the words of OpenAI's API."""

    INVALID_REQUEST = "invalid_request_error"
    PERMISSION = "permission_error"
    RATE_LIMIT = "rate_limit_error"
    SERVER = "server_error"


class ErrorCode(StrEnum):
    """What exactly went wrong: the API's ``code``, the log's field, the metric's label."""

    # The request is wrong.
    INVALID_REQUEST = "invalid_request"
    INVALID_JSON = "invalid_json"
    MISSING_REQUIRED_PARAMETER = "missing_required_parameter"
    INVALID_TYPE = "invalid_type"
    INVALID_VALUE = "invalid_value"
    UNSUPPORTED_PARAMETER = "unsupported_parameter"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    KV_MEMORY_EXCEEDED = "kv_memory_exceeded"
    INVALID_PROMPT = "invalid_prompt"
    UNKNOWN_LANE = "unknown_lane"
    # The caller may not.
    INVALID_API_KEY = "invalid_api_key"
    INSUFFICIENT_SCOPE = "insufficient_scope"
    NO_ENTITLEMENT = "no_entitlement"
    ACCESS_REVOKED = "access_revoked"
    # There is no such thing.
    UNKNOWN_URL = "unknown_url"
    MODEL_NOT_FOUND = "model_not_found"
    GENERATION_NOT_FOUND = "generation_not_found"
    PROJECT_NOT_FOUND = "project_not_found"
    API_KEY_NOT_FOUND = "api_key_not_found"
    SERVICE_ACCOUNT_NOT_FOUND = "service_account_not_found"
    RATE_LIMIT_NOT_FOUND = "rate_limit_not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    EVENTS_EXPIRED = "events_expired"
    # The generation did not end as its client meant.
    GENERATION_CANCELLED = "generation_cancelled"
    GENERATION_EXPIRED = "generation_expired"
    QUEUE_WAIT_EXCEEDED = "queue_wait_exceeded"
    GENERATION_FAILED = "generation_failed"
    STREAM_DIVERGED = "stream_diverged"
    # The request's name stands for another one.
    IDEMPOTENCY_CONFLICT = "idempotency_conflict"
    # What is to change is not in a state for it.
    CONFLICT = "conflict"
    # The body cannot be taken.
    REQUEST_TOO_LARGE = "request_too_large"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    # Not so much.
    INSUFFICIENT_QUOTA = "insufficient_quota"
    RATE_LIMIT_EXCEEDED = "rate_limit_exceeded"
    CONCURRENCY_LIMIT_EXCEEDED = "concurrency_limit_exceeded"
    # Not now.
    QUEUE_FULL = "queue_full"
    OVERLOADED = "overloaded"
    QUEUE_UNAVAILABLE = "queue_unavailable"
    SERVICE_UNAVAILABLE = "service_unavailable"
    INTERNAL_ERROR = "internal_error"


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a code always means. ``retry`` is None where a client's own rules are right."""

    status: HTTPStatus
    type: ErrorType
    retry: bool | None


_BAD_REQUEST: Final = _Kind(HTTPStatus.BAD_REQUEST, ErrorType.INVALID_REQUEST, retry=False)
_NOT_FOUND: Final = _Kind(HTTPStatus.NOT_FOUND, ErrorType.INVALID_REQUEST, retry=False)
_FORBIDDEN: Final = _Kind(HTTPStatus.FORBIDDEN, ErrorType.PERMISSION, retry=False)
_UNAVAILABLE: Final = _Kind(HTTPStatus.SERVICE_UNAVAILABLE, ErrorType.SERVER, retry=None)


def _invalid(status: HTTPStatus) -> _Kind:
    return _Kind(status, ErrorType.INVALID_REQUEST, retry=False)


#: Codes that are not here are plain 400s.
_KINDS: Final[dict[ErrorCode, _Kind]] = {
    ErrorCode.INVALID_API_KEY: _invalid(HTTPStatus.UNAUTHORIZED),
    ErrorCode.INSUFFICIENT_SCOPE: _FORBIDDEN,
    ErrorCode.NO_ENTITLEMENT: _FORBIDDEN,
    ErrorCode.ACCESS_REVOKED: _FORBIDDEN,
    ErrorCode.UNKNOWN_URL: _NOT_FOUND,
    ErrorCode.MODEL_NOT_FOUND: _NOT_FOUND,
    ErrorCode.GENERATION_NOT_FOUND: _NOT_FOUND,
    ErrorCode.PROJECT_NOT_FOUND: _NOT_FOUND,
    ErrorCode.API_KEY_NOT_FOUND: _NOT_FOUND,
    ErrorCode.SERVICE_ACCOUNT_NOT_FOUND: _NOT_FOUND,
    ErrorCode.RATE_LIMIT_NOT_FOUND: _NOT_FOUND,
    ErrorCode.METHOD_NOT_ALLOWED: _invalid(HTTPStatus.METHOD_NOT_ALLOWED),
    ErrorCode.EVENTS_EXPIRED: _invalid(HTTPStatus.GONE),
    # Clients retry 409 and 5xx by themselves: for an answer that somebody ended on purpose that is wrong.
    ErrorCode.GENERATION_CANCELLED: _invalid(HTTPStatus.CONFLICT),
    ErrorCode.STREAM_DIVERGED: _invalid(HTTPStatus.CONFLICT),
    ErrorCode.IDEMPOTENCY_CONFLICT: _invalid(HTTPStatus.CONFLICT),
    ErrorCode.CONFLICT: _invalid(HTTPStatus.CONFLICT),
    ErrorCode.GENERATION_EXPIRED: _UNAVAILABLE,
    ErrorCode.QUEUE_WAIT_EXCEEDED: _UNAVAILABLE,
    ErrorCode.GENERATION_FAILED: _Kind(HTTPStatus.INTERNAL_SERVER_ERROR, ErrorType.SERVER, retry=None),
    ErrorCode.REQUEST_TOO_LARGE: _invalid(HTTPStatus.REQUEST_ENTITY_TOO_LARGE),
    ErrorCode.UNSUPPORTED_MEDIA_TYPE: _invalid(HTTPStatus.UNSUPPORTED_MEDIA_TYPE),
    ErrorCode.QUEUE_FULL: _Kind(HTTPStatus.TOO_MANY_REQUESTS, ErrorType.RATE_LIMIT, retry=None),
    ErrorCode.INSUFFICIENT_QUOTA: _Kind(HTTPStatus.TOO_MANY_REQUESTS, ErrorType.RATE_LIMIT, retry=False),
    ErrorCode.RATE_LIMIT_EXCEEDED: _Kind(HTTPStatus.TOO_MANY_REQUESTS, ErrorType.RATE_LIMIT, retry=None),
    ErrorCode.CONCURRENCY_LIMIT_EXCEEDED: _Kind(
        HTTPStatus.TOO_MANY_REQUESTS, ErrorType.RATE_LIMIT, retry=None
    ),
    ErrorCode.OVERLOADED: _UNAVAILABLE,
    ErrorCode.QUEUE_UNAVAILABLE: _UNAVAILABLE,
    ErrorCode.SERVICE_UNAVAILABLE: _UNAVAILABLE,
    ErrorCode.INTERNAL_ERROR: _Kind(HTTPStatus.INTERNAL_SERVER_ERROR, ErrorType.SERVER, retry=None),
}
_MUST_WAIT: Final = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)


class ApiError(Exception):
    """An error for the client. ``param`` names the field at fault, as in ``messages[0].content``.

    ``failure`` is a generation's own failure code, which takes the place of the general one in the answer. ``limit`` is
    the limit that refused; without ``retry_after_s`` it always will, and no retry can mend it.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
        failure: str | None = None,
        limit: ShortLimit | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        # Here, so that neither the answer nor any log repeats a key that a client put in the wrong place.
        self.message = hide_keys(message)
        self.param = param if param is None else hide_keys(param)
        self.failure = failure
        self.limit = limit
        self.headers = headers or {}
        self.retry_after_s = retry_after_s
        if retry_after_s is None and limit is None and self.status in _MUST_WAIT:
            self.retry_after_s = UNAVAILABLE_RETRY_AFTER_S

    @property
    def kind(self) -> _Kind:
        return _KINDS.get(self.code, _BAD_REQUEST)

    @property
    def status(self) -> HTTPStatus:
        return self.kind.status

    @property
    def retry(self) -> bool | None:
        """Whether the same request can succeed when it is sent again; None where a client's own rules are right."""
        if self.limit is not None and self.retry_after_s is None:
            return False
        return self.kind.retry

    def body(self) -> dict[str, Any]:
        """The answer's body, all four keys present."""
        error: dict[str, Any] = {
            "message": self.message,
            "type": self.kind.type.value,
            "param": self.param,
            "code": self.failure or self.code.value,
        }
        if self.limit is not None:
            error["limit"] = self.limit.model_dump(mode="json")
        return {"error": error}

    def response_headers(self) -> dict[str, str]:
        """What tells a client whether, and when, to try again."""
        headers = dict(self.headers)
        if self.retry_after_s is not None:
            headers["Retry-After"] = str(max(1, math.ceil(self.retry_after_s)))
            headers["retry-after-ms"] = str(max(1, math.ceil(self.retry_after_s * 1000)))
        if self.retry is not None:
            headers["x-should-retry"] = "true" if self.retry else "false"
        if self.status == HTTPStatus.UNAUTHORIZED:
            headers["WWW-Authenticate"] = 'Bearer realm="signalbox"'
        return headers

    def response(self) -> JsonResponse:
        response = JsonResponse(self.body(), status=self.status, headers=self.response_headers())
        mark_as_api_answer(response)
        return response


def mark_as_api_answer(response: Any) -> None:
    """Tell the middleware that this error has its shape already, and Django that it is logged already."""
    response.signalbox_api_answer = True
    response._has_been_logged = True


def hide_keys(text: str) -> str:
    """``text`` without anything that looks like an API key: what a client put in the wrong place is not repeated."""
    return CONTAINS_KEY.sub(_HIDDEN, text)


def shown(value: str) -> str:
    """A client's own text, for use inside a message: short, on one line."""
    line = " ".join(value.split())
    return line if len(line) <= _SHOWN_LENGTH else f"{line[: _SHOWN_LENGTH - 1]}…"


def invalid_api_key() -> ApiError:
    """The one answer to every kind of missing, malformed, unknown, expired or revoked key."""
    return ApiError(
        ErrorCode.INVALID_API_KEY,
        "The API key is missing or not valid. Send it as `Authorization: Bearer <key>` or in `x-api-key`.",
    )


def as_api_error(error: BaseException) -> ApiError:
    """Any exception as what its client is told. What nobody foresaw is logged whole, and told as ``internal_error``."""
    match error:
        case ApiError():
            return error
        case InvalidKey():
            return invalid_api_key()
        case intake.Refused():
            return ApiError(
                ErrorCode(error.code.value),
                error.message,
                param=error.param,
                retry_after_s=error.retry_after_s,
                limit=None if error.limit is None else ShortLimit.of(error.limit, error.subject),
            )
        case LogExpired():
            return ApiError(
                ErrorCode.EVENTS_EXPIRED,
                f"The events of gen_{error.generation} can no longer be replayed: they were kept for a while after "
                "its end.",
            )
        case StreamDiverged():
            return ApiError(
                ErrorCode.STREAM_DIVERGED,
                f"The server lost events of gen_{error.generation} that it had sent, and goes on differently. Drop "
                "what you have and read it from its start.",
            )
        case RequestDataTooBig():
            return ApiError(ErrorCode.REQUEST_TOO_LARGE, "The request body is too large.")
        case SuspiciousOperation():
            return ApiError(ErrorCode.INVALID_REQUEST, "The request is malformed.")
        case Http404():
            return ApiError(ErrorCode.UNKNOWN_URL, "There is nothing at this URL.")
        case APIException():
            return _of_status(error.status_code, str(error.detail))
        case redis.RedisError() | OperationalError() | InterfaceError():
            _log.error("store_unavailable", exc_info=error)
            return ApiError(
                ErrorCode.SERVICE_UNAVAILABLE,
                "A part of the server cannot be reached at the moment. Try again shortly.",
            )
    _log.error("unforeseen_error", exc_info=error)
    return internal_error()


def internal_error() -> ApiError:
    return ApiError(
        ErrorCode.INTERNAL_ERROR,
        "The server failed on this request. The answer's x-request-id finds the reason in its log.",
    )


def error_of_status(status: int) -> ApiError:
    """The error for an answer that something outside of the API's views gave with ``status``."""
    match status:
        case HTTPStatus.UNAUTHORIZED:
            return invalid_api_key()
        case HTTPStatus.NOT_FOUND:
            return ApiError(ErrorCode.UNKNOWN_URL, "There is nothing at this URL.")
        case HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            return ApiError(ErrorCode.REQUEST_TOO_LARGE, "The request body is too large.")
        case _:
            return _of_status(status, "The request is malformed.")


def _of_status(status: int, message: str) -> ApiError:
    for code, kind in _KINDS.items():
        if kind.status == status and code != ErrorCode.GENERATION_FAILED:
            return internal_error() if code == ErrorCode.INTERNAL_ERROR else ApiError(code, message)
    return ApiError(ErrorCode.INVALID_REQUEST, message) if status < 500 else internal_error()


def exception_handler(error: Exception, context: dict[str, Any]) -> Response:
    """Django REST framework's hook: its exceptions in the API's shape."""
    answer = as_api_error(error)
    response = Response(answer.body(), status=answer.status, headers=answer.response_headers())
    mark_as_api_answer(response)
    return response
