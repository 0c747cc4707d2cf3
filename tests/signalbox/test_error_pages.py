"""The pages that say that something broke must not need what may be broken."""

from __future__ import annotations

from typing import Any

import pytest
import structlog
from django.conf import settings as django_settings
from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import PermissionDenied
from django.core.handlers.exception import response_for_exception
from django.http import HttpResponse
from django.template.loader import render_to_string
from django.test import Client, RequestFactory
from django.urls import reverse
from django.views.defaults import bad_request, server_error
from structlog.testing import capture_logs

from accounts.audit import AuditError
from accounts.models import User
from signalbox.error_pages import server_error as our_server_error
from tests.factories import OperatorFactory, UserFactory


@pytest.mark.parametrize(
    ("page", "said"), [("500.html", "broke on our side"), ("400.html", "cannot make sense")]
)
def test_an_error_page_needs_no_collected_static_files(page: str, said: str) -> None:
    # No manifest was collected for the tests: a reference to a static file would be a second error.
    assert "StaticFilesStorage" in django_settings.STORAGES["staticfiles"]["BACKEND"]
    rendered = render_to_string(page)
    assert said in rendered
    assert "/static/" not in rendered


def test_djangos_own_views_answer_with_them() -> None:
    request = RequestFactory().get("/")
    assert b"broke on our side" in server_error(request).content
    assert b"cannot make sense" in bad_request(request, ValueError()).content


def _missing(client: Client) -> Any:
    return client.get("/nowhere")


def _not_allowed(client: Client) -> Any:
    client.force_login(UserFactory())
    return client.get(reverse("admin:login"))


def _form_too_old(client: Client) -> Any:
    return Client(enforce_csrf_checks=True).post(reverse("login"), {"username": "ada"})


def _foreign_host(client: Client) -> Any:
    return client.get("/login/", HTTP_HOST="evil.example")


_PAGES = [
    (_missing, 404, "There is nothing here"),
    (_not_allowed, 403, "You may not do this"),
    (_form_too_old, 403, "This form has expired"),
    (_foreign_host, 400, "cannot make sense of this request"),
]


@pytest.mark.django_db
@pytest.mark.parametrize(("asked", "status", "said"), _PAGES)
def test_without_collected_static_files_every_error_page_is_there_and_plain(
    asked: Any, status: int, said: str
) -> None:
    with capture_logs() as lines:
        answer = asked(Client(raise_request_exception=False))
    assert answer.status_code == status
    page = answer.content.decode()
    assert said in page
    assert "/static/" not in page
    missing = [line for line in lines if line["event"] == "static_files_missing"]
    assert len(missing) == (0 if status == 400 else 1)
    assert not any(line.get("exc_info") for line in lines)


def _a_page(client: Client) -> Any:
    return client.get(reverse("login"))


def _the_admin(client: Client) -> Any:
    client.force_login(OperatorFactory())
    return client.get(reverse("admin:accounts_lane_changelist"))


def _a_form_that_is_sent(client: Client) -> Any:
    client.force_login(OperatorFactory())
    return client.post(reverse("admin:accounts_lane_add"), {"name": ""})


def _the_api_s_description(client: Client) -> Any:
    return client.get(reverse("api-docs"))


@pytest.mark.usefixtures("valkey")
@pytest.mark.django_db
@pytest.mark.parametrize("asked", [_a_page, _the_admin, _a_form_that_is_sent, _the_api_s_description])
def test_without_collected_static_files_every_other_page_says_so_and_one_line_says_what_to_do(
    asked: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with capture_logs() as lines:
        answer = asked(Client(raise_request_exception=False))
    assert answer.status_code == 503
    page = answer.content.decode()
    assert "not set up yet" in page
    assert "/static/" not in page
    [missing] = [line for line in lines if line["event"] == "static_files_missing"]
    assert "is not among the static files that were collected" in missing["error"]
    assert "manage.py collectstatic" in missing["remedy"]
    assert not any(line.get("exc_info") for line in lines)
    assert not any(record.exc_info for record in caplog.records)


@pytest.mark.django_db
def test_the_api_needs_no_static_files(valkey: Any) -> None:
    assert Client(raise_request_exception=False).get("/api/schema/").status_code == 200
    assert Client(raise_request_exception=False).get("/health/live").status_code == 200


@pytest.mark.usefixtures("_admin_pages")
@pytest.mark.parametrize(("asked", "status", "said"), _PAGES[:3])
def test_with_them_it_has_the_sites_look(asked: Any, status: int, said: str) -> None:
    answer = asked(Client())
    assert answer.status_code == status
    page = answer.content.decode()
    assert said in page
    assert "/static/signalbox/css/account.css" in page


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("anything"), "broke on our side"),
        (AuditError("no head row"), "could not be recorded in the audit"),
    ],
)
def test_what_the_audit_kept_from_being_done_is_said_not_to_have_been_done(
    error: Exception, said: str
) -> None:
    request = RequestFactory().get("/")
    try:
        raise error
    except (AuditError, ValueError):
        answer = our_server_error(request)
    assert answer.status_code == 500
    assert said in answer.content.decode()
    assert "/static/" not in answer.content.decode()


def _answered(error: Exception, user: User | AnonymousUser) -> HttpResponse:
    """As Django answers when a view has raised it."""
    request = RequestFactory().post("/admin/lanes%0Aor/", {"name": "high"})
    request.user = user
    return response_for_exception(request, error)


@pytest.mark.django_db
def test_what_is_not_allowed_is_one_line_that_says_who_asked_for_what(
    caplog: pytest.LogCaptureFixture,
) -> None:
    client, user = Client(), UserFactory()
    client.force_login(user)
    with capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
        answer = client.get(reverse("admin:login"))
    assert answer.status_code == 403
    [line] = [line for line in lines if line["event"] == "permission_denied"]
    assert line == {
        "event": "permission_denied",
        "log_level": "warning",
        "method": "GET",
        "path": "/admin/login/",
        "user": user.id.hex,
        "request_id": answer["x-request-id"],
    }
    assert not [record for record in caplog.records if record.name == "django.request"]


@pytest.mark.django_db
def test_its_line_is_one_whatever_was_asked_for_and_by_nobody_too() -> None:
    with capture_logs() as lines:
        assert _answered(PermissionDenied(), AnonymousUser()).status_code == 403
    [line] = [line for line in lines if line["event"] == "permission_denied"]
    assert (line["method"], line["path"], line["user"]) == ("POST", "/admin/lanes%0Aor/", None)


@pytest.mark.django_db
@pytest.mark.parametrize(("error", "traced"), [(PermissionDenied("no"), False), (ValueError("what"), True)])
def test_only_what_nobody_expected_is_logged_with_a_traceback(
    error: Exception, traced: bool, caplog: pytest.LogCaptureFixture
) -> None:
    try:
        raise error
    except (PermissionDenied, ValueError) as raised:
        _answered(raised, AnonymousUser())
    assert [record.exc_info is not None for record in caplog.records if record.name == "django.request"] == (
        [True] if traced else []
    )
