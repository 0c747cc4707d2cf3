"""`manage.py up`, as a person runs it: one story from the first start to a second one."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from signalbox.configuration import ROOT, Configuration
from tests.fixtures.event_stream import EventStream, chat_stream
from tests.fixtures.live_stack import free_port, install
from tests.fixtures.processes import ManagedProcess
from tests.signalbox.misplaced_key import ask, files_with, misplace, secret_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

_DEADLINE_S = 120.0
_KEY = re.compile(r"sb_\w{12}_\w+")
_READY = "Ctrl-C stops everything"
#: Tokens: no such answer ends while a process is killed that has to do with it.
_LONG_ANSWER = 1500
_LAST_TO_FIRST = ("valkey-server", "worker", "celery", "web")


class Up:
    """A state directory, and what runs on it."""

    def __init__(self, directory: Path) -> None:
        self.state_dir = directory / "state"
        self.port = free_port()
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("SIGNALBOX_")}
        self.env = {
            **inherited,
            "SIGNALBOX_STATE_DIR": str(self.state_dir),
            "SIGNALBOX_PORT": str(self.port),
            "SIGNALBOX_LEASE_SECONDS": "3",
            "SIGNALBOX_DRAIN_SECONDS": "1",
            # Its last bits do not depend on the batch: a text that another worker goes on with is the same.
            "SIGNALBOX_BLAS": "stock",
        }
        self.process = ManagedProcess(
            "up",
            [sys.executable, str(ROOT / "manage.py"), "up"],
            env=self.env,
            cwd=ROOT,
            log=directory / "up.log",
            ready=lambda: _READY in self.output,
        )

    @property
    def output(self) -> str:
        """What it wrote since it was started last."""
        return self.process.log.read_text().rpartition("--- start")[2]

    def start(self) -> None:
        self.process.start(wait=False)
        self.process.wait_until_ready(_DEADLINE_S)

    def children(self) -> dict[str, psutil.Process]:
        """The running processes by what they are."""
        found = {}
        for child in psutil.Process(self.process.pid).children():
            words = " ".join(child.cmdline())
            for name in ("valkey-server", "manage.py web", "manage.py worker", "manage.py celery"):
                if name in words:
                    found[name.removeprefix("manage.py ")] = child
        return found

    def status(self, *options: str) -> str:
        """What `manage.py status` says of it."""
        command = [sys.executable, str(ROOT / "manage.py"), "status", *options]
        return subprocess.run(
            command, env=self.env, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
        ).stdout

    def refused(self, **env: str) -> str:
        """What another `up` says that is not to start."""
        done = subprocess.run(
            self.process.command,
            env={**self.env, **env},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        return done.stderr.strip()


@pytest.fixture(scope="module")
def up(long_model_dir: Path, migrated_database: Path) -> Iterator[Up]:
    directory = Path(tempfile.mkdtemp(prefix="sb-up-"))
    install(
        directory / "state", migrated_database, model="tiny", model_source=long_model_dir, bootstrapped=False
    )
    up = Up(directory)
    yield up
    up.process.kill()
    shutil.rmtree(Configuration(state_dir=up.state_dir).valkey_socket.parent, ignore_errors=True)
    shutil.rmtree(directory, ignore_errors=True)


def answers(url: str) -> bool:
    """Whether there is an answer at ``url``."""
    try:
        with urllib.request.urlopen(url, timeout=10):
            return True
    except OSError:
        return False


def wait_until(condition: Callable[[], object], up: Up) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, up.process.tail()
        time.sleep(0.05)


def test_up_serves_survives_a_crash_and_stops_in_order(up: Up) -> None:
    up.start()
    assert set(up.children()) == {"valkey-server", "web", "worker", "celery"}
    assert _KEY.search(up.output), "the first run shows the key"

    # The printed request works when it is pasted.
    pasted = re.search(r"^  curl .*?-d '.*?'$", up.output, re.MULTILINE | re.DOTALL)
    assert pasted, up.output
    answer = subprocess.run(["bash", "-c", pasted[0]], capture_output=True, text=True, timeout=120).stdout
    assert answer.rstrip().endswith("data: [DONE]"), answer

    # Two on one state directory, or on one port, are refused in one line.
    second = up.refused()
    assert f"runs on {up.state_dir} already (process {up.process.pid})" in second
    other = tempfile.mkdtemp(prefix="sb-up-")
    taken = up.refused(SIGNALBOX_STATE_DIR=other)
    assert f"cannot be served on 127.0.0.1:{up.port}" in taken
    assert "\n" not in taken
    shutil.rmtree(other)

    # Each request is in the log file; the output, which is no terminal here, has it too.
    assert "POST /v1/chat/completions 200" in (up.state_dir / "logs" / "web.log").read_text()

    # The status names every process by the number that a person may kill.
    status = json.loads(up.status("--json"))
    assert (status["supervisor"], status["url"]) == (up.process.pid, f"http://127.0.0.1:{up.port}")
    assert (status["ready"], status["queues"]) == (True, {"tiny": {"high": 0, "normal": 0, "low": 0}})
    found = {process["role"]: process for process in status["processes"]}
    running = {name.removesuffix("-server"): child.pid for name, child in up.children().items()}
    assert {role: process["pid"] for role, process in found.items()} == {"up": up.process.pid, **running}
    assert (found["worker"]["model"], found["worker"]["state"]) == ("tiny", "serving")

    # A key that is sent to wherever it does not belong: what became of it is looked at in the end.
    key = _KEY.search(up.output)[0]  # type: ignore[index]
    statuses = misplace(status["url"], key, "tiny")
    # 503: pages of an installation whose static files were not collected.
    assert {200, 400, 401, 404} <= set(statuses) <= {200, 302, 400, 401, 403, 404, 415, 503}
    token = (up.state_dir / "secrets" / "metrics_token").read_text().strip()
    metrics = ask(status["url"], "GET", "/metrics", {"Authorization": f"Bearer {token}"})
    assert metrics.status == 200
    assert secret_of(key) not in metrics.body

    # A killed worker is started again, and said so. Whoever was reading meanwhile sees a pause, and nothing else.
    reader: Any = SimpleNamespace(base_url=status["url"], api_key=key, model="tiny")
    undisturbed = chat_stream(reader, "Who, and why?", max_tokens=_LONG_ANSWER).read_to_end()
    stream = chat_stream(reader, "Who, and why?", max_tokens=_LONG_ANSWER).read(5)
    os.kill(found["worker"]["pid"], signal.SIGKILL)
    wait_until(lambda: "! worker-tiny ended with signal SIGKILL; it is started again" in up.output, up)
    stream.read_to_end()
    assert stream.error is None
    assert stream.text == undisturbed.text
    assert stream.seqs == sorted(set(stream.seqs))
    assert stream.event_ids[-1].endswith(".2"), "the next worker ended it"
    wait_until(lambda: up.output.count("worker_serving") == 2, up)

    # So is a killed web process, and who was reading goes on behind the last event that came.
    options = {"include_usage": True, "resumable": True}
    killed = up.children()
    stream = chat_stream(reader, "When?", max_tokens=_LONG_ANSWER, stream_options=options).read(5)
    os.kill(killed["worker"].pid, signal.SIGSTOP)  # nothing ends meanwhile
    os.kill(killed["web"].pid, signal.SIGKILL)
    with pytest.raises(ConnectionError):
        stream.read_to_end()
    wait_until(lambda: "! web ended with signal SIGKILL; it is started again" in up.output, up)
    wait_until(lambda: answers(f"{status['url']}/health/live"), up)
    os.kill(killed["worker"].pid, signal.SIGCONT)
    rest = stream.resumed().read_to_end()
    whole = EventStream(reader, "GET", f"/v1/generations/{stream.generation}/events").open().read_to_end()
    assert rest.error is None
    assert rest.seqs[0] > stream.seqs[-1]
    assert stream.text + rest.text == whole.text

    # In order: web and Celery, then the worker, then Valkey. Whoever is to be the last is looked at first: what this
    # process misses between two looks cannot turn the order round.
    left = up.children()
    up.process.send_signal(signal.SIGINT)
    while left:
        left = {name: left[name] for name in _LAST_TO_FIRST if name in left and left[name].is_running()}
        assert "valkey-server" in left or not left
        assert "worker" in left or not {"web", "celery"} & left.keys()
        time.sleep(0.005)
    assert up.process.wait() == 0
    assert up.output.rstrip().endswith("Stopped. All data is kept.")
    assert "SecurityWarning" not in up.output, "what root means is said once, in our own words"
    assert "does not run here" in up.status()

    # The key is nowhere in what they have kept and written: database, Valkey's own file, and the log of each.
    assert files_with(up.state_dir, secret_of(key)) == []
    assert "db.sqlite3" in files_with(up.state_dir, key.split("_")[1]), "its prefix is"
    assert any(name.startswith("valkey/") for name in files_with(up.state_dir, stream.generation[4:]))
    for process in running:
        assert list((up.state_dir / "logs").glob(f"{process}*.log")), f"{process} has no log"


def test_a_second_up_keeps_the_data_shows_no_secret_and_takes_all_processes_along_when_it_is_killed(
    up: Up,
) -> None:
    up.start()
    assert not _KEY.search(up.output)
    assert "manage.py key create" in up.output
    logs = "".join(path.read_text() for path in (up.state_dir / "logs").glob("*.log"))
    assert not _KEY.search(logs)

    children = up.children().values()
    up.process.kill()
    wait_until(lambda: not any(child.is_running() for child in children), up)


def test_a_new_database_beside_prepared_models_offers_them_again(up: Up, tiny_model_dir: Path) -> None:
    name = json.loads((tiny_model_dir / "signalbox.json").read_text())["name"]
    shutil.copytree(tiny_model_dir, up.state_dir / "models" / name)
    for part in up.state_dir.glob("db.sqlite3*"):
        part.unlink()
    up.start()
    assert f"Offering {name}" in up.output
    assert f"the worker of {name}" in up.output
    key = _KEY.search(up.output)
    assert key, "a new database has a new key"
    asked = urllib.request.Request(
        f"http://127.0.0.1:{up.port}/v1/models", headers={"Authorization": f"Bearer {key[0]}"}
    )
    with urllib.request.urlopen(asked, timeout=10) as answer:
        assert [model["id"] for model in json.load(answer)["data"]] == [name]
