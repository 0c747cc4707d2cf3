"""Generations for dispatch's tests, a worker's view of them, and a Valkey that a test may kill."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
import redis
import redis.asyncio

from inference.dispatch.queue import DispatchQueue
from inference.messages import Delta, End, EndState, FinishReason, GenerationTask, Sampling, Usage
from signalbox import store
from signalbox.configuration import Configuration
from signalbox.supervision import embedded_valkey

MODEL = "org/model:1"
#: Longer than anything takes on a machine whose two cores have much else to do.
DEADLINE_S = 60.0
#: How long the append-only file may lag behind: less than a client waits for an answer.
KEPT_WITHIN_MS = 4000


def make_task(
    *,
    tenant: str = "acme",
    rank: int = 1,
    weight: int = 1,
    prompt_tokens: int = 3,
    max_tokens: int = 7,
    model: str = MODEL,
) -> GenerationTask:
    return GenerationTask(
        generation=uuid4().hex,
        tenant=tenant,
        model=model,
        lane=f"lane-{rank}",
        lane_rank=rank,
        weight=weight,
        prompt=list(range(prompt_tokens)),
        max_tokens=max_tokens,
        sampling=Sampling(seed=1),
        accepted_at=0.0,
    )


def delta(seq: int, epoch: int = 1, text: str = "") -> Delta:
    return Delta(seq=seq, epoch=epoch, tokens=[seq], text=text or f" {seq}")


def end(seq: int, epoch: int = 1, *, state: EndState = EndState.COMPLETED, completion_tokens: int = 0) -> End:
    return End(
        seq=seq,
        epoch=epoch,
        state=state,
        usage=Usage(prompt_tokens=3, completion_tokens=completion_tokens),
        finish_reason=FinishReason.STOP if state is EndState.COMPLETED else None,
    )


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for a condition of the real world; fails after a deadline."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true in time"
        time.sleep(0.01)


@pytest.fixture
def queue(valkey: redis.Redis) -> DispatchQueue:
    return DispatchQueue(valkey)


def let_lease_lapse(client: redis.Redis, generation: str, model: str = MODEL) -> None:
    """Age a lease past its end, as time does while its worker is stopped."""
    leases = f"dispatch:leases:{model}"
    assert client.zscore(leases, generation) is not None
    client.zadd(leases, {generation: 1})


def let_time_pass(client: redis.Redis, generation: str, seconds: float) -> None:
    """Age what was published last of a generation."""
    assert client.hincrby(f"dispatch:generation:{generation}", "said", -round(seconds * 1000)) > 0


class OwnValkey:
    """A server of the test's own, started and killed as the product's supervisor and its worst day do."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._socket = directory / "valkey.sock"
        self._process: subprocess.Popen[bytes] | None = None
        self._settings = Configuration(valkey_url=f"unix://{self._socket}")

    def start(self) -> None:
        self._process = subprocess.Popen(
            embedded_valkey.command(self._directory, self._socket),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        embedded_valkey.wait_until_ready(self._process, self._socket)

    def crash(self) -> None:
        """SIGKILL, once all that was answered is in the append-only file.

        A disk that lags may hold that up for two seconds (``everysec``); what a crash in that time costs is what a
        loss of power costs, and has tests of its own.
        """
        with self.client() as client:
            client.set("written", "before the crash")
            assert client.execute_command("WAITAOF", 1, 0, KEPT_WITHIN_MS)[0] == 1
        self.kill()

    def kill(self) -> None:
        """SIGKILL, at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def forget(self) -> None:
        """Lose the append-only file, while it is down."""
        for path in (self._directory / "appendonlydir").iterdir():
            path.unlink()

    def client(self) -> redis.Redis:
        return store.sync_client(self._settings)

    def async_client(self) -> redis.asyncio.Redis:
        return store.async_client(self._settings)


@pytest.fixture
def own_valkey() -> Iterator[OwnValkey]:
    # A short path: socket names are limited to about 100 bytes.
    with tempfile.TemporaryDirectory(prefix="valkey-") as directory:
        server = OwnValkey(Path(directory))
        server.start()
        try:
            yield server
        finally:
            server.kill()
