"""Case A7 over HTTP: a key is rotated, the answer with its successor is lost on the way, and no key is lost with it."""

from __future__ import annotations

import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fixtures.live_stack import LiveStack
from tests.inference.api.organization.test_official_client import client_of

PATIENCE_S = 30.0
#: Of the first rotation: long enough for what happens inside of it on a busy machine, short enough to wait for.
OVERLAP_S = 12


class Administrator:
    """Whoever has an operator's key, and a project with one key in it."""

    def __init__(self, stack: LiveStack) -> None:
        self.stack = stack
        with client_of(stack, "operator") as client:
            assert client.admin_api_key
            self.key = client.admin_api_key
        self.project = self.ask("POST", "/projects", {"name": "Of a test"})["id"]
        self.keys = f"/projects/{self.project}/api_keys"
        self.old = self.ask("POST", self.keys, {"name": "app"})

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """What is answered, which has to be a 200."""
        request = urllib.request.Request(
            f"{self.stack.openai_url}/organization{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self.key}", "Content-Type": "application/json", **headers},
        )
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return json.load(answer)

    def rotate_and_lose_the_answer(self, **headers: str) -> dict[str, Any]:
        """Rotate the old key, and hang up on the answer unread. What the list says of the key that was in it."""
        body = json.dumps({"overlap_seconds": OVERLAP_S})
        head = [
            f"POST /v1/organization{self.keys}/{self.old['id']}/rotate HTTP/1.1",
            f"Host: 127.0.0.1:{self.stack.port}",
            f"Authorization: Bearer {self.key}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        with socket.create_connection(("127.0.0.1", self.stack.port), timeout=PATIENCE_S) as line:
            line.sendall("\r\n".join([*head, "", body]).encode())
            deadline = time.monotonic() + PATIENCE_S
            while not (others := [key for key in self.listed() if key["id"] != self.old["id"]]):
                assert time.monotonic() < deadline, "the key was not rotated"
                time.sleep(0.05)
        [lost] = others
        return lost

    def listed(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("GET", self.keys)["data"]
        return found

    def shown(self, key: dict[str, Any]) -> dict[str, Any]:
        shown: dict[str, Any] = self.ask("GET", f"{self.keys}/{key['id']}")
        return shown

    def works(self, key: dict[str, Any]) -> bool:
        """Whether the key of this answer opens anything."""
        status, _ = self.stack.get("/v1/models", Authorization=f"Bearer {key['value']}")
        assert status in (200, 401)
        return status == 200

    def wait_until_expired(self, key: dict[str, Any]) -> None:
        time.sleep(max(0.0, self.shown(key)["expires_at"] + 1.1 - time.time()))


@pytest.fixture
def administrator(live_stack: LiveStack) -> Iterator[Administrator]:
    made = Administrator(live_stack)
    yield made
    made.ask("POST", f"/projects/{made.project}/archive")


@pytest.mark.slow
def test_a7_a_rotation_whose_answer_was_lost_is_made_again_and_both_keys_work_until_the_overlap_ends(
    administrator: Administrator,
) -> None:
    old = administrator.old
    lost = administrator.rotate_and_lose_the_answer()
    end = administrator.shown(old)["expires_at"]
    assert lost["expires_at"] is None, "until somebody says that it was lost, it is the key that is to stay"

    again = administrator.ask(
        "POST", f"{administrator.keys}/{old['id']}/rotate", {"overlap_seconds": 30 * 24 * 3600}
    )
    assert (administrator.works(old), administrator.works(again)) == (True, True)
    # The overlap is the one that the first rotation began, and takes the key along that nobody has.
    assert administrator.shown(old)["expires_at"] == end
    assert administrator.shown(lost)["expires_at"] == end
    assert administrator.shown(again)["expires_at"] is None

    administrator.wait_until_expired(old)
    assert (administrator.works(old), administrator.works(again)) == (False, True)


@pytest.mark.slow
def test_a7_a_named_rotation_whose_answer_was_lost_is_not_made_twice_and_names_the_key_to_rotate(
    administrator: Administrator,
) -> None:
    old, path = administrator.old, f"{administrator.keys}/{administrator.old['id']}/rotate"
    named = {"Idempotency-Key": f"rotate {administrator.project}"}
    lost = administrator.rotate_and_lose_the_answer(**named)
    repeated = administrator.ask("POST", path, {"overlap_seconds": OVERLAP_S}, **named)
    # Its text is stored nowhere, so that nobody can be told it again.
    assert (repeated["id"], repeated["value"]) == (lost["id"], None)
    assert {key["id"] for key in administrator.listed()} == {old["id"], lost["id"]}

    again = administrator.ask("POST", f"{administrator.keys}/{repeated['id']}/rotate", {"overlap_seconds": 0})
    assert (administrator.works(old), administrator.works(again)) == (True, True)
    assert again["owner"] == lost["owner"] == old["owner"]

    administrator.wait_until_expired(old)
    assert (administrator.works(old), administrator.works(again)) == (False, True)
    events = administrator.ask("GET", f"/audit_logs?project_ids[]={administrator.project}&limit=100")["data"]
    assert [event["action"] for event in events if event["action"].startswith("api_key.")] == [
        "api_key.create",
        "api_key.rotate",
        "api_key.create",
        "api_key.rotate",
        "api_key.create",
    ]


def test_a_key_is_not_rotated_on_a_name_that_stood_for_another_overlap(
    administrator: Administrator,
) -> None:
    named = {"Idempotency-Key": f"rotate {administrator.project}"}
    administrator.rotate_and_lose_the_answer(**named)
    with pytest.raises(urllib.error.HTTPError) as refused:
        administrator.ask(
            "POST",
            f"{administrator.keys}/{administrator.old['id']}/rotate",
            {"overlap_seconds": OVERLAP_S + 1},
            **named,
        )
    assert refused.value.code == 409
    assert json.load(refused.value)["error"]["code"] == "idempotency_conflict"
    assert len(administrator.listed()) == 2
