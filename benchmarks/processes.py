"""The processes that a benchmark measures: the platform as ``manage.py up`` runs it, and its peers.

All are up at once, so that their runs can alternate; idle ones take no CPU.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_READY_TIMEOUT_S = 300.0
_ENV = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'platform'}", "PYTHONUNBUFFERED": "1"}

_FORBID_SPECULATION = """
from accounts import entitlements
from accounts.actors import command_actor
from accounts.models import Entitlement
from accounts.tenancy import every_tenant
with every_tenant("a benchmark's own installation"):
    standing = Entitlement.objects.get(tenant__slug="default", lane__name="{lane}", ended_at=None)
entitlements.change(
    entitlement=standing, weight=standing.weight, speculation=False, reason="benchmark", actor=command_actor("shell")
)
"""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Platform:
    """A running installation with a state directory of its own, its BLAS and pages linked from the checkout's."""

    def __init__(self, state_dir: Path, port: int) -> None:
        self.state_dir = state_dir
        self.port = port
        self.env = {**_ENV, "SIGNALBOX_STATE_DIR": str(state_dir), "SIGNALBOX_PORT": str(port)}

    def manage(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=ROOT,
            env=self.env,
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout

    def schedule(self, model: str, **settings: float | str | None) -> None:
        """Change how the worker schedules ``model``; it follows within seconds."""
        options = [
            f"--{name.replace('_', '-')}={'none' if value is None else value}"
            for name, value in settings.items()
        ]
        self.manage("model", "schedule", model, "--may-starve-prompts", *options)

    def forbid_speculation(self, lane: str) -> None:
        """Take the default tenant's right to speculate in ``lane`` away."""
        self.manage("shell", "--command", _FORBID_SPECULATION.format(lane=lane))

    def key(self) -> str:
        """A new API key of the default tenant."""
        made = self.manage("key", "create", "--tenant", "default", "--name", "benchmark", "--json")
        return str(json.loads(made)["api_key"])


@contextlib.contextmanager
def platform(source_state: Path, model: str) -> Iterator[Platform]:
    """Run ``manage.py up`` on a fresh state directory that serves ``model`` as prepared in ``source_state``.

    It does not speculate until it is told to (``counters.speculates``): what is measured is one thing at a time.
    """
    state = Path(tempfile.mkdtemp(prefix="signalbox-benchmark-"))
    for name in ("blas", "vendor", "static"):
        if (source_state / name).exists():
            (state / name).symlink_to(source_state / name)
    stack = Platform(state, free_port())
    log = (state / "up.log").open("wb")
    process: subprocess.Popen[bytes] | None = None
    try:
        stack.manage("migrate", "--verbosity", "0")
        stack.manage("model", "add", str(source_state / "models" / model), "--name", model)
        stack.schedule(model, speculation="off")
        process = subprocess.Popen(
            [sys.executable, "manage.py", "up"], cwd=ROOT, env=stack.env, stdout=log, stderr=log
        )
        _wait(lambda: _answers(stack.port, "/health/ready"), process, state / "up.log")
        yield stack
    finally:
        if process is not None:
            process.terminate()
            process.wait(60)
        log.close()
        shutil.rmtree(state, ignore_errors=True)


@contextlib.contextmanager
def mlx_server(
    model_directory: Path, blas_directory: Path | None, prefill_step: int | None = None
) -> Iterator[int]:
    """Run ``mlx_lm.server``; gives its port. It has the platform's BLAS and attention, or without a BLAS its own."""
    port = free_port()
    arguments = [str(model_directory), str(port), str(blas_directory or "")]
    if prefill_step is not None:
        arguments += ["--prefill-step-size", str(prefill_step)]
    with _peer("benchmarks.peers.mlx_server", arguments, stdin=subprocess.DEVNULL) as process:
        _wait(lambda: _answers(port, "/health"), process, None)
        yield port


class DirectBatch:
    """mlx-lm's own batch generation in a process of its own, asked over a pipe."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.blas = str(self._read()["blas"])

    def run(self, prompts: list[list[int]], max_tokens: int) -> list[list[float]]:
        """Generate for all prompts at once: when each one's tokens came, in seconds since the request."""
        assert self._process.stdin is not None
        request = {"prompts": prompts, "max_tokens": max_tokens}
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        arrivals: list[list[float]] = self._read()["arrivals"]
        return arrivals

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the direct batch process ended; run it by hand to see why")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextlib.contextmanager
def direct_batch(model_directory: Path, blas_directory: Path) -> Iterator[DirectBatch]:
    arguments = [str(model_directory), str(blas_directory)]
    with _peer("benchmarks.peers.direct_batch", arguments, stdin=subprocess.PIPE) as process:
        yield DirectBatch(process)


@contextlib.contextmanager
def _peer(module: str, arguments: list[str], *, stdin: int) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments], cwd=ROOT, env=_ENV, stdin=stdin, stdout=subprocess.PIPE
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _answers(port: int, path: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _wait(ready: Any, process: subprocess.Popen[bytes], log: Path | None) -> None:
    deadline = time.monotonic() + _READY_TIMEOUT_S
    while not ready():
        if process.poll() is not None or time.monotonic() > deadline:
            tail = log.read_text()[-2000:] if log else ""
            raise RuntimeError(f"{process.args!r} did not become ready (status {process.poll()})\n{tail}")
        time.sleep(0.2)
