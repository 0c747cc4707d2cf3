"""While Valkey is away: what does not need it works, what does says so, and everything comes back with it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import redis
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from inference.api.chat_socket import MOST_INVALID_FRAMES
from tests.inference.dispatch.conftest import wait_until
from tests.signalbox.browser.site import MODEL, PASSWORD, USER, Site, open_site

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

#: Longest wait for an answer, on a machine that is busy with other tests.
ANSWER_S = 60.0

_SET_UP = """
from accounts import keys
from accounts.models import Tenant, User
from accounts.principal import Actor
from accounts.tenancy import every_tenant
with every_tenant("a test sets up"):
    User.objects.filter(username={user!r}).update(is_staff=True, is_superuser=True)
    issued = keys.create(tenant=Tenant.objects.get(slug="works"), name="test", actor=Actor.system("test"))
print(issued.raw)
"""


@pytest.fixture(scope="module")
def site(site_state: Path) -> Iterator[Site]:
    """Web and Valkey, without a worker. Every test leaves both running."""
    site = open_site(site_state)
    try:
        site.api_key = site.python(_SET_UP.format(user=USER)).strip()
        yield site
    finally:
        site.close()


@pytest.fixture
def away(site: Site) -> Iterator[Site]:
    """The site whose store is down until the test starts it, or ends."""
    site.valkey.kill()
    yield site
    if not site.valkey.running:
        site.valkey.start()


@contextmanager
def signed_in(site: Site) -> Iterator[httpx2.Client]:
    """A browser's requests, after the form to sign in."""
    with httpx2.Client(base_url=site.base_url, timeout=ANSWER_S) as client:
        client.get("/login/").raise_for_status()
        token = client.cookies["csrftoken"]
        form = {"username": USER, "password": PASSWORD, "csrfmiddlewaretoken": token}
        answer = client.post("/login/", data=form)
        assert (answer.status_code, answer.headers["location"]) == (302, "/chat/"), answer.text
        yield client


@contextmanager
def socket(site: Site, client: httpx2.Client) -> Iterator[ClientConnection]:
    """The chat socket, with the session of ``client``."""
    with connect(
        f"{site.ws_url}/ws/chat/",
        origin=site.base_url,  # type: ignore[arg-type]
        additional_headers={"Cookie": f"sessionid={client.cookies['sessionid']}"},
        subprotocols=["signalbox.v1"],  # type: ignore[list-item]
        open_timeout=ANSWER_S,
    ) as connection:
        yield connection


def ask(connection: ClientConnection, tenant: str) -> dict[str, Any]:
    """Ask for an answer; the first frame that comes."""
    messages = [{"role": "user", "content": "Hello"}]
    frame = {"type": "generate", "ref": "a", "model": MODEL, "messages": messages, "tenant": tenant}
    connection.send(json.dumps(frame))
    return dict(json.loads(connection.recv(timeout=ANSWER_S)))


def close_code(connection: ClientConnection) -> int | None:
    """What the server closes with, when it does; frames before that are dropped."""
    try:
        while True:
            connection.recv(timeout=ANSWER_S)
    except ConnectionClosed as closed:
        return None if closed.rcvd is None else closed.rcvd.code


def tenant_of(client: httpx2.Client) -> str:
    return str(client.get("/chat/api/options").json()["tenants"][0]["id"])


def test_people_sign_in_and_every_page_that_needs_no_queue_is_there(away: Site) -> None:
    with signed_in(away) as client:
        tenant = tenant_of(client)
        pages = (
            "/chat/",
            "/password/",
            f"/chat/api/conversations?tenant={tenant}",
            "/admin/accounts/tenant/",
        )
        for page in (*pages, "/admin/accounts/auditevent/", "/admin/", "/health/live", "/api/docs/"):
            assert client.get(page).status_code == 200, page
        started = client.post(
            "/chat/api/conversations",
            json={"tenant": tenant, "model": MODEL},
            headers={"X-CSRFToken": client.cookies["csrftoken"]},
        )
        assert started.status_code == 201, started.text
        assert client.get(f"/chat/api/conversations/{started.json()['id']}").status_code == 200
    assert away.get("/v1/models")[0] == 200
    assert json.loads(away.get("/health/ready")[1])["reason"] == "store_unreachable"


@pytest.mark.parametrize("stream", [False, True])
def test_what_needs_the_queue_is_503_in_the_error_shape_and_says_when_to_come_back(
    away: Site, stream: bool
) -> None:
    headers = {"Authorization": f"Bearer {away.api_key}"}
    asked = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "stream": stream}
    with httpx2.Client(base_url=away.base_url, timeout=ANSWER_S, headers=headers) as client:
        refused = client.post("/v1/chat/completions", json=asked)
        assert refused.status_code == 503
        assert refused.json()["error"].keys() == {"message", "type", "param", "code"}
        assert refused.json()["error"]["code"] == "queue_unavailable"
        assert int(refused.headers["retry-after"]) >= 1
        assert int(refused.headers["retry-after-ms"]) >= 1
        away.valkey.start()
        # The same process, the same connection: nothing has to be restarted after it.
        with client.stream("POST", "/v1/chat/completions", json={**asked, "stream": True}) as answer:
            assert answer.status_code == 200
    away.forget_everything()


def test_a_chat_socket_is_put_off_with_503_and_one_line_in_the_log_and_opens_when_the_store_is_back(
    away: Site,
) -> None:
    with signed_in(away) as client:
        seen = len(away.web.log.read_text())
        with pytest.raises(InvalidStatus) as refused, socket(away, client):
            pass
        assert refused.value.response.status_code == 503
        said = away.web.log.read_text()[seen:]
        assert said.count("socket_without_store") == 1, said
        assert "Traceback" not in said
        away.valkey.start()
        with socket(away, client) as connection:
            assert ask(connection, tenant_of(client))["type"] == "accepted"
    away.forget_everything()


def test_an_open_socket_outlives_an_outage_and_still_hears_that_its_session_ends(site: Site) -> None:
    with signed_in(site) as client, socket(site, client) as connection:
        tenant = tenant_of(client)
        seen = len(site.web.log.read_text())
        site.valkey.kill()
        refused = ask(connection, tenant)
        assert (refused["type"], refused["ref"], refused["code"]) == ("error", "a", "queue_unavailable")
        assert refused["retry_after_ms"] >= 1
        site.valkey.start()
        assert ask(connection, tenant)["type"] == "accepted"
        said = site.web.log.read_text()[seen:]
        assert "Unexpected exception in receive task" in said
        assert "channels_redis/pubsub.py" not in said, "an outage is no traceback a second"
        with redis.Redis(unix_socket_path=str(site.configuration.valkey_socket)) as store:
            # The web listens again once it has noticed the outage itself, which is a matter of a second.
            wait_until(lambda: store.pubsub_channels("asgi__group__user.*"))
        token = client.get("/password/") and client.cookies["csrftoken"]
        client.post("/logout/", data={"csrfmiddlewaretoken": token})
        assert close_code(connection) == 4401
    site.forget_everything()


def test_a_close_code_of_the_protocol_itself_reaches_the_client(site: Site) -> None:
    with signed_in(site) as client, socket(site, client) as connection:
        for _ in range(MOST_INVALID_FRAMES + 1):
            connection.send("nonsense")
        assert close_code(connection) == 1008
