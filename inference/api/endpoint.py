"""One route of the API: its method, who may call it, what it takes and gives.

An endpoint's function runs in the request's thread, so that it may use the database and take its time; it returns the
answer, or an ``AsyncAnswer`` that is awaited on the event loop when the thread's database connection is closed. The
declaration is also what the OpenAPI description is made from (``inference.api.openapi``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import unquote

import structlog
from asgiref.sync import markcoroutinefunction, sync_to_async
from django.db import connections
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils import timezone
from pydantic import BaseModel

from accounts.models import Scope
from accounts.principal import Principal
from inference import intake
from inference.api.answers import AnswerModel
from inference.api.attachment import Attachment, attachment_of
from inference.api.authentication import authenticate, require_scope
from inference.api.bodies import read_body
from inference.api.errors import ApiError, ErrorCode, as_api_error
from inference.api.limit_headers import CallLimits

_log = structlog.get_logger(__name__)


class AsyncAnswer(Protocol):
    """An answer that takes time on the event loop, and no thread."""

    async def respond(self) -> HttpResponseBase:
        """The response. Raises ``ApiError``."""


@dataclass(frozen=True, slots=True)
class Call:
    """One authenticated request. Who knows its caller's ``limits`` without looking says so there."""

    request: HttpRequest
    principal: Principal
    attachment: Attachment
    limits: CallLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A query parameter or header that the endpoint reads itself, for the description."""

    name: str
    schema: dict[str, Any]
    description: str
    location: str = "query"
    required: bool = False


class Endpoint:
    """A declared route: an async view. Made by ``endpoint``."""

    #: There is no cookie that a foreign page could make a browser send: keys come in headers.
    csrf_exempt = True

    def __init__(
        self,
        function: Callable[..., AnswerModel | AsyncAnswer],
        *,
        method: str,
        summary: str,
        tag: str,
        scopes: tuple[Scope, ...],
        answer: type[AnswerModel] | None,
        chunk: type[AnswerModel] | None,
        body: type[BaseModel] | None,
        parameters: tuple[Parameter, ...],
        errors: tuple[ErrorCode, ...],
    ) -> None:
        self.function = function
        self.method = method
        self.summary = summary
        self.tag = tag
        self.scopes = scopes
        self.answer = answer
        self.chunk = chunk
        self.body = body
        self.parameters = parameters
        self.errors = errors
        # A stream has no head of its own.
        self.methods = ("GET", "HEAD") if method == "GET" and chunk is None else (method,)
        markcoroutinefunction(self)

    @property
    def name(self) -> str:
        return self.function.__name__

    async def __call__(self, request: HttpRequest, **arguments: str) -> HttpResponseBase:
        limits = CallLimits()
        response = await self._respond(request, arguments, limits)
        for name, value in limits.headers(timezone.now()).items():
            response[name] = value
        return response

    async def _respond(
        self, request: HttpRequest, arguments: dict[str, str], limits: CallLimits
    ) -> HttpResponseBase:
        try:
            return await self._answer(request, arguments, limits)
        except Exception as error:  # noqa: BLE001 — as_api_error logs what nobody foresaw
            fault = as_api_error(error)
            _log.info(
                "api_error",
                endpoint=self.name,
                code=fault.code.value,
                status=fault.status.value,
                param=fault.param,
            )
            return fault.response()

    async def _answer(
        self, request: HttpRequest, arguments: dict[str, str], limits: CallLimits
    ) -> HttpResponseBase:
        if request.method not in self.methods:
            raise ApiError(
                ErrorCode.METHOD_NOT_ALLOWED,
                f"This URL takes {' and '.join(self.methods)} requests only.",
                headers={"Allow": ", ".join(self.methods)},
            )
        if "\0" in request.path or "\0" in unquote(request.META["QUERY_STRING"]):
            # No text in the database may hold one, so that nothing has such a name either.
            raise ApiError(ErrorCode.INVALID_VALUE, "The URL must not hold the character NUL.", param="url")
        # Cancelled by a client that hangs up, this returns at once and its thread goes on. But the request is over only
        # when the thread is, so the guard knows what was accepted.
        answer = await sync_to_async(self._run)(request, arguments, limits)
        if isinstance(answer, AnswerModel):
            return json_response(answer)
        return await answer.respond()

    def _run(
        self, request: HttpRequest, arguments: dict[str, str], limits: CallLimits
    ) -> AnswerModel | AsyncAnswer:
        try:
            principal = authenticate(request)
            try:
                require_scope(principal, self.scopes)
                return self._called(Call(request, principal, attachment_of(request), limits), arguments)
            except intake.Refused as refusal:
                limits.refused_by(refusal.limit)
                raise
            finally:
                limits.look_up(principal)
        finally:
            # What comes next may take minutes: no connection is held meanwhile.
            connections.close_all()

    def _called(self, call: Call, arguments: dict[str, str]) -> AnswerModel | AsyncAnswer:
        if self.body is None:
            return self.function(call, **arguments)
        return self.function(call, read_body(call.request, self.body), **arguments)


def endpoint(
    method: str,
    *,
    summary: str,
    tag: str,
    scopes: tuple[Scope, ...],
    answer: type[AnswerModel] | None = None,
    chunk: type[AnswerModel] | None = None,
    body: type[BaseModel] | None = None,
    parameters: tuple[Parameter, ...] = (),
    errors: tuple[ErrorCode, ...] = (),
) -> Callable[[Callable[..., AnswerModel | AsyncAnswer]], Endpoint]:
    """Make an ``Endpoint`` of a function that takes the call, its ``body`` if one is declared, and what the URL names.

    ``chunk`` is what the events of its stream hold, where it can answer with one; ``errors`` are those that a
    caller should expect beyond a wrong key and a malformed request.
    """

    def declare(function: Callable[..., AnswerModel | AsyncAnswer]) -> Endpoint:
        return Endpoint(
            function,
            method=method,
            summary=summary,
            tag=tag,
            scopes=scopes,
            answer=answer,
            chunk=chunk,
            body=body,
            parameters=parameters,
            errors=errors,
        )

    return declare


def json_response(answer: AnswerModel) -> HttpResponse:
    return HttpResponse(answer.model_dump_json(), content_type="application/json")
