"""`manage.py status`: true of what runs, and of use when nothing does."""

from __future__ import annotations

import json
import os
import socket
import time
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import redis
from django.core.management import call_command
from django.utils import timezone

from accounts.models import AuditVerification
from inference.dispatch.heartbeats import beat
from inference.dispatch.queue import DispatchQueue
from inference.messages import Heartbeat
from signalbox import store
from signalbox.configuration import Configuration
from signalbox.installation_status import installation_status
from signalbox.supervision.child import Child, ProcessSpec
from signalbox.supervision.instance_lock import InstanceLock
from signalbox.supervision.log_files import Console, LogFile
from signalbox.supervision.process_list import Listed, ProcessList, State
from tests.factories import LanguageModelFactory
from tests.heartbeats import make_heartbeat
from tests.inference.dispatch.conftest import make_task

pytestmark = [pytest.mark.django_db]


def heartbeat(**changes: Any) -> Heartbeat:
    values: dict[str, Any] = {
        "worker": "w1",
        "model": "org/model",
        "hostname": socket.gethostname(),
        "pid": 4242,
    }
    return make_heartbeat(time.time(), **{**values, **changes})


def run(*options: str) -> str:
    output = StringIO()
    call_command("status", *options, stdout=output)
    return output.getvalue()


@pytest.mark.slow
def test_it_answers_when_nothing_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = redis.Redis(unix_socket_path="/nonexistent/valkey.sock")
    monkeypatch.setattr(store, "sync_client", lambda settings: gone)
    status = installation_status(Configuration(state_dir=tmp_path))
    assert status.as_json() == {
        "running": False,
        "supervisor": None,
        "url": "http://127.0.0.1:8000",
        "state_dir": str(tmp_path),
        "ready": False,
        "reason": "store_unreachable",
        "problem": status.problem,
        "models": {},
        "processes": [],
        "queues": None,
        "audit": {"events": 0, "unsealed": 0, "verified_at": None, "holds": None},
    }
    assert status.problem
    assert list(tmp_path.iterdir()) == []
    assert "Ready: no (store_unreachable" in run()


def test_a_list_whose_supervisor_is_gone_is_not_believed(tmp_path: Path, valkey: redis.Redis) -> None:
    ProcessList(tmp_path).write("http://localhost:1", [listed("web", os.getpid(), State.RUNNING)])
    status = installation_status(Configuration(state_dir=tmp_path))
    assert (status.supervisor, status.processes) == (None, [])


def listed(role: str, pid: int, state: State, model: str | None = None) -> Listed:
    return Listed(role=role, model=model, pid=pid, since=time.time(), state=state)


def test_workers_are_judged_by_their_own_words_and_strangers_are_shown_too(
    tmp_path: Path, valkey: redis.Redis
) -> None:
    lock = InstanceLock(tmp_path)
    lock.acquire()
    ProcessList(tmp_path).write(
        "http://127.0.0.1:8123",
        [
            listed("web", 1, State.RESTARTING),
            listed("worker", 2, State.RUNNING, "org/model"),
            listed("worker", 3, State.RUNNING, "org/other"),
        ],
    )
    beat(valkey, heartbeat(worker="w1", pid=2, draining=True))
    beat(valkey, heartbeat(worker="w2", pid=4, progressed_at=0.0))
    beat(valkey, heartbeat(worker="w3", pid=2, hostname="elsewhere"))
    status = installation_status(Configuration(state_dir=tmp_path, valkey_url=store.url()))
    assert status.url == "http://127.0.0.1:8123"
    assert [(p.role, p.model, p.pid, p.host, p.state) for p in status.processes] == [
        ("up", None, os.getpid(), None, "running"),
        ("web", None, None, None, "restarting"),
        ("worker", "org/model", 2, None, "draining"),
        ("worker", "org/other", 3, None, "silent"),
        ("worker", "org/model", 4, None, "stalled"),
        ("worker", "org/model", 2, "elsewhere", "serving"),
    ]


def test_what_waits_for_a_retired_model_that_is_still_served_is_counted_too(valkey: redis.Redis) -> None:
    for name in ("org/model", "org/gone"):
        LanguageModelFactory(name=name, retired_at=timezone.now())
        DispatchQueue(valkey).enqueue(make_task(model=name))
    beat(valkey, heartbeat())
    assert json.loads(run("--json"))["queues"] == {"org/model": {"high": 0, "normal": 1, "low": 0}}


def test_what_waits_is_counted_by_model_and_lane(valkey: redis.Redis) -> None:
    LanguageModelFactory(name="org/model")
    DispatchQueue(valkey).enqueue(make_task(model="org/model", rank=2))
    beat(valkey, heartbeat())
    answer = json.loads(run("--json"))
    assert answer["queues"] == {"org/model": {"high": 0, "normal": 0, "low": 1}}
    assert (answer["ready"], answer["models"]) == (True, {"org/model": "served"})
    lines = [line.split() for line in run().splitlines()]
    assert ["waiting", "high", "normal", "low"] in lines
    assert ["org/model", "0", "0", "1"] in lines


@pytest.mark.parametrize("is_terminal", [True, False])
async def test_access_lines_reach_the_log_file_and_a_terminal_only_what_happens(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], is_terminal: bool
) -> None:
    async def ready() -> bool:
        return True

    console = Console()
    console.is_terminal = is_terminal
    script = "echo '[info] GET /chat/ [signalbox.access]'; echo 'started'"
    spec = ProcessSpec(
        name="web",
        role="web",
        command=["sh", "-c", script],
        ready=ready,
        drain_s=1,
        not_on_terminal="signalbox.access",
    )
    log = LogFile(tmp_path, "web", console.say)
    child = Child(spec, console, log)
    await child.start()
    assert await child.wait() == 0
    shown = capfd.readouterr().out
    assert "started" in shown
    assert ("GET /chat/" in shown) is not is_terminal
    assert "GET /chat/" in log.path.read_text()


def test_the_audit_is_told_in_a_line(tmp_path: Path, valkey: redis.Redis) -> None:
    assert "Audit: 0 events, 0 assignments not sealed yet, never verified" in run()
    fields = {
        "started_at": timezone.now(),
        "finished_at": timezone.now(),
        "first_sequence": 1,
        "last_sequence": 7,
    }
    counts = {"last_hash": "ab" * 32, "events": 7, "assignments": 0, "unsealed": 0}
    AuditVerification.objects.create(**fields, **counts)
    assert "held on " in run()
    AuditVerification.objects.create(
        **fields | {"started_at": timezone.now()},
        **counts,
        fault={"sequence": 3, "message": "It was changed."},
    )
    assert "DID NOT HOLD" in run()
    assert installation_status(Configuration(state_dir=tmp_path)).as_json()["audit"]["holds"] is False
