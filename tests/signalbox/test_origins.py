"""A13: what comes from elsewhere is refused, at the sockets by rule and at every page with a session and its token."""

from __future__ import annotations

import pytest
from django.test import Client

from accounts.models import User
from signalbox.configuration import Configuration
from signalbox.origins import may_connect
from tests.accounts.admin.addresses import ADMIN, SITE
from tests.factories import PASSWORD, OperatorFactory

EVIL = "https://evil.example.com"
NEW_PASSWORD = "another horse battery staple"
#: They only show: nothing can be sent to them.
SHOWING = {"api-schema", "api-docs"}


def connect(host: str | None, origin: str | None, *, https: bool = False) -> bool:
    return may_connect(
        host,
        origin,
        allowed_hosts=["localhost", "chat.example.com", "[::1]"],
        trusted_origins=["https://portal.example.com"],
        https=https,
    )


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("localhost:8000", "http://localhost:8000"),
        ("chat.example.com", "https://chat.example.com"),
        ("chat.example.com:443", "https://chat.example.com"),
        ("chat.example.com", "https://portal.example.com"),
        ("[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_the_sites_own_pages_and_trusted_ones_may_open_sockets(host: str, origin: str) -> None:
    assert connect(host, origin)


def test_a_program_that_is_no_browser_sends_no_origin_and_may_open_sockets() -> None:
    assert connect("localhost:8000", None)


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example.com",
        "http://localhost:3000",
        "http://localhost",
        "https://chat.example.com.evil.example.com",
        "http://chat.example.com:8001",
        "null",
        "file://",
        "",
        "http://",
        "not an origin",
    ],
)
def test_a13_a_foreign_origin_is_refused_another_port_of_the_same_machine_included(origin: str) -> None:
    assert not connect("localhost:8000", origin)
    assert not connect("chat.example.com", origin)


@pytest.mark.parametrize("host", [None, "", "evil.example.com", "localhost.evil.example.com", "127.0.0.1"])
def test_a13_a_foreign_host_is_refused_whatever_the_origin(host: str | None) -> None:
    assert not connect(host, f"http://{host}")
    assert not connect(host, None)


def test_over_https_a_page_that_came_without_it_is_refused() -> None:
    assert connect("chat.example.com", "https://chat.example.com", https=True)
    assert not connect("chat.example.com", "http://chat.example.com", https=True)


def test_no_wildcard_lets_anybody_in_unless_an_operator_sets_one() -> None:
    settings = Configuration()
    assert not any("*" in name for name in [*settings.allowed_hosts, *settings.trusted_origins])


@pytest.fixture
def visitor(_admin_pages: None) -> Client:
    """The browser of an operator who is signed in, with the token of a form that it has open."""
    client = Client(enforce_csrf_checks=True)
    client.force_login(OperatorFactory(username="operator"))
    assert client.get("/password/").status_code == 200
    client.defaults["HTTP_X_CSRFTOKEN"] = client.cookies["csrftoken"].value
    return client


def test_a13_no_address_takes_anything_from_a_foreign_page_with_the_session_and_its_token(
    visitor: Client,
) -> None:
    for address, name in [*ADMIN, *SITE]:
        answer = visitor.post(address, {"post": "yes", "confirmed": "yes"}, headers={"Origin": EVIL})
        assert answer.status_code == (405 if name in SHOWING else 403), address
        assert not any(header.lower().startswith("access-control") for header in answer.headers), address


def test_a13_a_form_is_taken_from_the_sites_own_pages_only(visitor: Client) -> None:
    form = {"old_password": PASSWORD, "password": NEW_PASSWORD, "again": NEW_PASSWORD}
    for origin in (EVIL, "null", "http://testserver:8000", "http://testserver.evil.example.com", "file://"):
        assert visitor.post("/password/", form, headers={"Origin": origin}).status_code == 403, origin
    assert User.objects.get(username="operator").check_password(PASSWORD)
    assert visitor.post("/password/", form, headers={"Origin": "http://testserver"}).status_code == 302
    assert User.objects.get(username="operator").check_password(NEW_PASSWORD)
