"""Case A6 with real processes: a key that is revoked is refused at once by every web process, and what it runs ends."""

from __future__ import annotations

import copy
import json
import subprocess
from collections.abc import Iterator

import pytest

from tests.fixtures.event_stream import chat_stream
from tests.fixtures.live_stack import LiveStack, free_port, install, running_stack
from tests.inference.engine.tiny_model import make_tiny_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

#: Long enough that nothing ends by itself before it is ended.
MAX_TOKENS = 3500

#: A process that is ready to revoke, and does so when it is told to: starting one takes seconds.
_REVOKE = """
import sys
from accounts import keys
from accounts.models import ApiKey
from accounts.principal import Actor
from accounts.tenancy import every_tenant

with every_tenant("a test revokes"):
    key = ApiKey.objects.get(prefix={prefix!r})
    print("ready", flush=True)
    sys.stdin.readline()
    keys.revoke(key=key, actor=Actor.system("test"))
print("revoked", flush=True)
"""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveStack]:
    model = make_tiny_model(tmp_path_factory.mktemp("long") / "model", context_length=4096)
    installation = install(tmp_path_factory.mktemp("revoking") / "state", model="tiny", model_source=model)
    with running_stack(installation) as stack:
        yield stack


@pytest.fixture
def fronts(stack: LiveStack) -> list[LiveStack]:
    """The stack as its first web process serves it, and as a second one does, on the same stores."""
    second = copy.copy(stack)
    second.port = free_port()
    second.base_url = f"http://127.0.0.1:{second.port}"
    second.env = {**stack.env, "SIGNALBOX_PORT": str(second.port)}
    second.web = second._process("web-2", stack.web.command, lambda: second.get("/health/live")[0] == 200)
    second.web.start()
    return [copy.copy(stack), second]


class Revoker:
    """Revokes a key at the moment that it is told to."""

    def __init__(self, stack: LiveStack, prefix: str) -> None:
        manage = stack.web.command[:-1]
        self._process = subprocess.Popen(
            [
                *manage,
                "shell",
                "--no-imports",
                "--verbosity",
                "0",
                "--command",
                _REVOKE.format(prefix=prefix),
            ],
            env=stack.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._expect("ready")

    def go(self) -> None:
        """Return when the revocation is committed."""
        assert self._process.stdin is not None
        self._process.stdin.write("now\n")
        self._process.stdin.flush()
        self._expect("revoked")
        assert self._process.wait(60) == 0

    def _expect(self, word: str) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline().strip() == word


def test_a6_a_revoked_key_is_refused_by_every_web_process_and_its_streams_end(
    stack: LiveStack, fronts: list[LiveStack]
) -> None:
    made = json.loads(stack.manage("key", "create", "--tenant", "default", "--name", "to revoke", "--json"))
    revoker = Revoker(stack, made["prefix"])
    for front in fronts:
        front.api_key = made["api_key"]
        assert front.get("/v1/models")[0] == 200
    streams = [chat_stream(front, "Who was first?", max_tokens=MAX_TOKENS).read(1) for front in fronts]
    others = chat_stream(stack, "And who was second?", max_tokens=200).read(1)

    revoker.go()
    # Not soon: the very next request, on each of them.
    for front in fronts:
        assert front.get("/v1/models")[0] == 401
        assert front.get(f"/v1/generations/{streams[0].generation}")[0] == 401

    for stream in streams:
        stream.read_to_end()
        assert stream.error is not None
        assert stream.error["code"] == "access_revoked"
        record = stack.generation(stream.generation)
        assert (record["state"], record["cancel_reason"]) == ("cancelled", "access_revoked")
        assert 0 < record["usage"]["completion_tokens"] < MAX_TOKENS
    assert others.read_to_end().done
