"""Case A6 with real processes: a key that is revoked is refused at once by every web process, and what it runs ends."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.fixtures.event_stream import chat_stream
from tests.fixtures.live_stack import LONG_CONTEXT, Installation, LiveStack, running_stack
from tests.inference.api.organization.test_official_client import client_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

#: Long enough that nothing ends by itself before it is ended.
MAX_TOKENS = LONG_CONTEXT - 200

_REVOKE = """
from accounts import keys
from accounts.models import ApiKey
from accounts.principal import Actor
from accounts.tenancy import every_tenant
with every_tenant("a test revokes"):
    keys.revoke(key=ApiKey.objects.get(prefix={prefix!r}), actor=Actor.system("test"))
"""


@pytest.fixture(scope="module")
def stack(long_installation: Installation) -> Iterator[LiveStack]:
    with running_stack(long_installation) as stack:
        yield stack


@pytest.fixture(scope="module")
def second(stack: LiveStack) -> LiveStack:
    """The stack as a second web process serves it, on the same stores."""
    return stack.add_web("web-2")


@pytest.fixture
def fronts(stack: LiveStack, second: LiveStack) -> list[LiveStack]:
    """The stack as each of its web processes serves it, to be given a key of the test's own."""
    return [copy.copy(stack), copy.copy(second)]


def by_another_process(stack: LiveStack, prefix: str) -> None:
    """From a process that is none of the web's."""
    stack.python(_REVOKE.format(prefix=prefix))


def over_the_api(stack: LiveStack, prefix: str) -> None:
    """By an operator's key, as a script does."""
    with client_of(stack, "operator") as client:
        projects = client.admin.organization.projects
        for project in projects.list():
            for key in projects.api_keys.list(project.id):
                if key.redacted_value.startswith(f"sb_{prefix}"):
                    projects.api_keys.delete(key.id, project_id=project.id)
                    return
    pytest.fail(f"the API lists no key sb_{prefix}…")


def ended(stack: LiveStack, generation: str) -> dict[str, Any]:
    """What is said of a generation when it has ended: its reader may be told a moment before it is settled."""
    for _ in range(100):
        record = stack.generation(generation)
        if record["state"] not in ("queued", "running"):
            break
        time.sleep(0.1)
    return record


@pytest.mark.parametrize("revoke", [by_another_process, over_the_api])
def test_a6_a_revoked_key_is_refused_by_every_web_process_and_its_streams_end(
    stack: LiveStack, fronts: list[LiveStack], revoke: Callable[[LiveStack, str], None]
) -> None:
    made = json.loads(stack.manage("key", "create", "--tenant", "default", "--name", "to revoke", "--json"))
    for front in fronts:
        front.api_key = made["api_key"]
        assert front.get("/v1/models")[0] == 200
    streams = [chat_stream(front, "Who was first?", max_tokens=MAX_TOKENS).read(1) for front in fronts]
    others = chat_stream(stack, "And who was second?", max_tokens=200).read(1)

    revoke(stack, made["prefix"])
    # Not soon: the very next request, on each of them.
    for front in fronts:
        assert front.get("/v1/models")[0] == 401
        assert front.get(f"/v1/generations/{streams[0].generation}")[0] == 401

    for stream in streams:
        stream.read_to_end()
        assert stream.error is not None
        assert stream.error["code"] == "access_revoked"
        record = ended(stack, stream.generation)
        assert (record["state"], record["cancel_reason"]) == ("cancelled", "access_revoked")
        assert 0 < record["usage"]["completion_tokens"] < MAX_TOKENS
    assert others.read_to_end().done
