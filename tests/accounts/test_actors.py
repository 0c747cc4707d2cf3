from __future__ import annotations

import io
from ipaddress import ip_network

import pytest
from django.contrib.auth.models import AnonymousUser
from django.core.handlers.asgi import ASGIRequest
from django.test import RequestFactory
from hypothesis import given
from hypothesis import strategies as st

from accounts.actors import actor_of, address_of, address_of_socket, client_address
from signalbox.configuration import configuration
from tests.factories import UserFactory

PROXIES = [ip_network("10.0.0.0/8"), ip_network("fd00::/8")]


@pytest.mark.parametrize(
    ("peer", "forwarded_for", "address"),
    [
        ("203.0.113.5", "", "203.0.113.5"),
        ("203.0.113.5", "198.51.100.1", "203.0.113.5"),
        ("10.0.0.1", "198.51.100.1", "198.51.100.1"),
        ("10.0.0.1", "198.51.100.1, 10.0.0.2", "198.51.100.1"),
        ("10.0.0.1", "6.6.6.6, 198.51.100.1, 10.0.0.2", "198.51.100.1"),
        ("10.0.0.1", "10.0.0.3, 10.0.0.2", "10.0.0.3"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", "unknown", "10.0.0.1"),
        ("10.0.0.1", "198.51.100.1:4711", "198.51.100.1"),
        ("fd00::1", "[2001:db8::7]:4711", "2001:db8::7"),
        ("::ffff:10.0.0.1", "198.51.100.1", "198.51.100.1"),
        ("", "198.51.100.1", ""),
    ],
)
def test_only_a_trusted_proxy_says_where_a_request_came_from(
    peer: str, forwarded_for: str, address: str
) -> None:
    assert client_address(peer, forwarded_for, PROXIES) == address


@given(st.text())
def test_without_trusted_proxies_the_header_changes_nothing(forwarded_for: str) -> None:
    assert client_address("203.0.113.5", forwarded_for, []) == "203.0.113.5"


@given(st.lists(st.ip_addresses().map(str)))
def test_what_stands_left_of_an_untrusted_address_changes_nothing(made_up: list[str]) -> None:
    header = ", ".join([*made_up, "198.51.100.1"])
    assert client_address("10.0.0.1", header, PROXIES) == "198.51.100.1"


@pytest.mark.django_db
def test_an_actor_is_the_signed_in_user_with_the_request_s_id() -> None:
    user = UserFactory(username="ada")
    request = RequestFactory().get("/", REMOTE_ADDR="203.0.113.5", **{"signalbox.request_id": "req_1"})
    request.user = user
    actor = actor_of(request)
    assert (actor.kind, actor.id, actor.name) == ("user", str(user.id), "ada")
    assert (actor.request_id, actor.address) == ("req_1", "203.0.113.5")


def test_nobody_is_no_actor() -> None:
    request = RequestFactory().get("/")
    request.user = AnonymousUser()
    with pytest.raises(TypeError):
        actor_of(request)


@pytest.mark.parametrize("proxies", [[], ["10.0.0.0/8"]])
@pytest.mark.parametrize("forwarded", [[], ["198.51.100.1"], ["6.6.6.6", "198.51.100.1, 10.0.0.2"]])
def test_a_socket_comes_from_where_a_request_over_the_same_connection_comes_from(
    proxies: list[str], forwarded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = configuration().model_copy(update={"trusted_proxies": proxies})
    monkeypatch.setattr("accounts.actors.configuration", lambda: changed)
    headers = [(b"host", b"localhost"), *((b"x-forwarded-for", value.encode()) for value in forwarded)]
    for client in (("10.0.0.1", 1), ("203.0.113.5", 1), None):
        scope = {"type": "websocket", "headers": headers, **({"client": client} if client else {})}
        request = ASGIRequest({**scope, "type": "http", "path": "/", "method": "GET"}, io.BytesIO())
        assert address_of_socket(scope) == address_of(request)
