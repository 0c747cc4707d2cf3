"""The pages for what is not there and what is not allowed: the site's own look, or plain where it cannot be had.

The look needs the static files' manifest. Where those were not collected, an error page that asks for them would be a
second error, and a mistyped address would look like a fault of the server. Every other page is then answered with a
plain one that says what is missing to whoever can help.
"""

from __future__ import annotations

import sys
from http import HTTPStatus
from typing import Final

import structlog
from django.http import HttpRequest, HttpResponse, HttpResponseServerError
from django.shortcuts import render
from django.template.loader import render_to_string
from django.utils.encoding import escape_uri_path
from django.views.decorators.csrf import requires_csrf_token

from accounts.audit.recording import kept_from_recording
from signalbox.static_files import MissingStaticFile

_LOOK: Final = "signalbox/problem.html"
_PLAIN: Final = "signalbox/plain_problem.html"

_log = structlog.get_logger(__name__)


@requires_csrf_token
def page_not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """404, whatever was asked for: the address is not repeated."""
    return _page(request, "404.html", HTTPStatus.NOT_FOUND)


@requires_csrf_token
def permission_denied(request: HttpRequest, exception: Exception) -> HttpResponse:
    """403, for whoever is signed in and lacks the right. It is a refusal, no fault: one line says whose."""
    user = getattr(request, "user", None)
    _log.warning(
        "permission_denied",
        method=request.method,
        path=escape_uri_path(request.path),
        user=user.pk.hex if user is not None and user.is_authenticated else None,
    )
    answer = _page(request, "403.html", HTTPStatus.FORBIDDEN)
    _keep_from_being_logged_again(answer)
    return answer


@requires_csrf_token
def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    """403, for a form that is older than its session."""
    return _page(request, "403_csrf.html", HTTPStatus.FORBIDDEN)


@requires_csrf_token
def server_error(request: HttpRequest) -> HttpResponse:
    """500. Where it was the audit that failed, and the change with it, the page says that nothing was changed.

    503 where the page needs static files that were not collected: nothing broke, it was not set up.
    """
    error = sys.exception()
    if isinstance(error, MissingStaticFile):
        _log_missing(error)
        answer = HttpResponse(render_to_string("503.html"), status=HTTPStatus.SERVICE_UNAVAILABLE)
        _keep_from_being_logged_again(answer)
        return answer
    template = "500_not_recorded.html" if kept_from_recording(error) else "500.html"
    return HttpResponseServerError(render_to_string(template))


def _page(request: HttpRequest, template: str, status: HTTPStatus) -> HttpResponse:
    try:
        return render(request, template, {"look": _LOOK}, status=status)
    except MissingStaticFile as error:
        _log_missing(error)
        return render(request, template, {"look": _PLAIN}, status=status)


def _keep_from_being_logged_again(answer: HttpResponse) -> None:
    """Django would write another line for it, with a traceback."""
    answer._has_been_logged = True  # type: ignore[attr-defined]


def _log_missing(error: MissingStaticFile) -> None:
    remedy = "run `make up`, or `manage.py vendor_assets` and then `manage.py collectstatic`, and start the site anew"
    _log.error("static_files_missing", error=str(error), remedy=remedy)
