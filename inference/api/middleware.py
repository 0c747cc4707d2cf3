"""What every answer below ``/v1`` has in common, whoever gives it."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.views.decorators.csrf import csrf_exempt

from inference.api.errors import ApiError, ErrorCode, as_api_error, error_of_status

_PREFIX: Final = "/v1"
#: What there is, for whoever asks for what there is not.
ROUTES: Final = (
    "GET /v1/models",
    "GET /v1/models/{id}",
    "POST /v1/chat/completions",
    "POST /v1/completions",
    "GET /v1/generations/{id}",
    "GET /v1/generations/{id}/events",
    "POST /v1/generations/{id}/cancel",
    "GET /v1/limits",
    "GET /v1/usage",
    "GET|POST /v1/organization/projects",
    "GET|POST /v1/organization/projects/{id}",
    "POST /v1/organization/projects/{id}/archive",
    "GET|POST /v1/organization/projects/{id}/api_keys",
    "GET|POST|DELETE /v1/organization/projects/{id}/api_keys/{id}",
    "POST /v1/organization/projects/{id}/api_keys/{id}/rotate",
    "GET|POST /v1/organization/projects/{id}/service_accounts",
    "GET|DELETE /v1/organization/projects/{id}/service_accounts/{id}",
    "GET /v1/organization/projects/{id}/rate_limits",
    "POST /v1/organization/projects/{id}/rate_limits/{id}",
    "GET /v1/organization/usage/completions",
    "GET /v1/organization/costs",
    "GET /v1/organization/audit_logs",
)
_NOTHING_THERE: Final = f"There is nothing at this URL. There are: {', '.join(ROUTES)}."


@csrf_exempt
async def unknown_url(request: HttpRequest) -> HttpResponseBase:
    """The view of every URL below ``/v1`` that is no endpoint's."""
    return ApiError(ErrorCode.UNKNOWN_URL, _NOTHING_THERE).response()


class ApiMiddleware:
    """Gives errors that other layers answered (a crash in a middleware, say) the API's shape, and every answer its
    processing time."""

    sync_capable = False
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Awaitable[HttpResponseBase]]) -> None:
        self.get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    async def __call__(self, request: HttpRequest) -> HttpResponseBase:
        if request.path != _PREFIX and not request.path.startswith(f"{_PREFIX}/"):
            return await self.get_response(request)
        started = time.monotonic()
        try:
            # Here, so that a foreign host is not answered with a page of the site.
            request.get_host()
            response = await self.get_response(request)
        except Exception as error:  # noqa: BLE001 — as_api_error logs what nobody foresaw
            response = as_api_error(error).response()
        if response.status_code >= HTTPStatus.BAD_REQUEST and not hasattr(response, "signalbox_api_answer"):
            response = error_of_status(response.status_code).response()
        response["openai-processing-ms"] = str(round((time.monotonic() - started) * 1000))
        return response
