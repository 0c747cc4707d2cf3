"""What of an installation runs, as one machine sees it: the supervisor's list, and what the workers say of themselves.

Every part may be missing, and is then said to be: this is asked when things do not run.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import redis
from django.db import DatabaseError

from accounts.audit import sealing
from accounts.models import AuditHead, AuditVerification, Lane
from inference import language_models
from inference.dispatch.heartbeats import heartbeats
from inference.dispatch.queue import DispatchQueue
from inference.messages import Heartbeat
from signalbox import store
from signalbox.configuration import Configuration
from signalbox.health import NotReady, Readiness, expected_models, judge
from signalbox.supervision import addresses
from signalbox.supervision.instance_lock import InstanceLock
from signalbox.supervision.process_list import Listed, ProcessList, State


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStatus:
    """One process. ``pid`` is None between two lives, ``host`` on this machine; ``since`` is in Unix seconds."""

    role: str
    model: str | None
    pid: int | None
    host: str | None
    since: float
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditStatus:
    """The audit: its events, assignments that wait for their batch, and the last verification, if there was one."""

    events: int
    unsealed: int
    verified_at: datetime | None
    holds: bool | None

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        at = self.verified_at.isoformat(timespec="seconds") if self.verified_at else None
        return {**asdict(self), "verified_at": at}


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallationStatus:
    """The whole. ``supervisor`` is the process of `manage.py up`, if it runs; ``queues`` counts what waits by model and
    lane, None while the store or the database cannot be asked; ``audit`` is None while the database cannot. ``problem``
    is what the one that failed said."""

    state_dir: str
    url: str
    supervisor: int | None
    readiness: Readiness
    processes: list[ProcessStatus]
    queues: dict[str, dict[str, int]] | None
    audit: AuditStatus | None
    problem: str | None

    def as_json(self) -> dict[str, Any]:
        """For programs. Times are ISO 8601, UTC."""
        return {
            "running": self.supervisor is not None,
            "supervisor": self.supervisor,
            "url": self.url,
            "state_dir": self.state_dir,
            "ready": self.readiness.reason is None,
            "reason": self.readiness.reason,
            "problem": self.problem,
            "models": self.readiness.models,
            "processes": [
                {
                    **asdict(each),
                    "since": datetime.fromtimestamp(each.since, UTC).isoformat(timespec="seconds"),
                }
                for each in self.processes
            ],
            "queues": self.queues,
            "audit": self.audit.as_json() if self.audit else None,
        }


def installation_status(settings: Configuration) -> InstallationStatus:
    """Look at everything once. Raises nothing for what cannot be reached."""
    supervisor = InstanceLock(settings.state_dir).holder()
    url, listed = ProcessList(settings.state_dir).read() if supervisor is not None else (None, [])
    beats: list[Heartbeat] = []
    queues: dict[str, dict[str, int]] | None = None
    audit: AuditStatus | None = None
    problem = None
    try:
        audit = _audit()
        expected = expected_models()
        lanes: dict[int, str] = dict(Lane.objects.values_list("rank", "name"))
        client = store.sync_client(settings)
        beats = heartbeats(client)
        models = [model.name for model in language_models.in_service(beats)]
        queues = {model: _depths(DispatchQueue(client), model, lanes) for model in models}
        readiness = judge(beats, expected, now=time.time(), progress_within_s=settings.lease_seconds)
    except DatabaseError as error:
        readiness, problem = Readiness(NotReady.DATABASE_UNREACHABLE, {}), _first_line(error)
    except redis.RedisError as error:
        readiness, problem = Readiness(NotReady.STORE_UNREACHABLE, {}), _first_line(error)
    return InstallationStatus(
        state_dir=str(settings.state_dir),
        url=url or addresses.site_url(settings.host, settings.port),
        supervisor=supervisor,
        readiness=readiness,
        processes=_processes(supervisor, listed, beats, time.time() - settings.lease_seconds),
        queues=queues,
        audit=audit,
        problem=problem,
    )


def _audit() -> AuditStatus:
    head = AuditHead.objects.filter(id=1).first()
    last = AuditVerification.objects.order_by("-started_at").first()
    return AuditStatus(
        events=head.sequence if head else 0,
        unsealed=sealing.unsealed().count,
        verified_at=last.finished_at if last else None,
        holds=last.fault is None if last else None,
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].removesuffix(".")


def _depths(queue: DispatchQueue, model: str, lanes: dict[int, str]) -> dict[str, int]:
    waiting = queue.depths(model)
    return {lane: waiting.get(rank, 0) for rank, lane in sorted(lanes.items())}


def _processes(
    supervisor: int | None, listed: list[Listed], beats: list[Heartbeat], progressed_since: float
) -> list[ProcessStatus]:
    """The supervisor's own, then those it lists, then workers that somebody else started, here or elsewhere."""
    here = socket.gethostname()
    own = {beat.pid: beat for beat in beats if beat.hostname == here}
    found = []
    for process in listed:
        pid = None if process.state is State.RESTARTING else _command_pid(process.pid)
        beat = own.pop(pid, None) if pid is not None else None
        state = process.state.value
        if process.role == "worker" and process.state is State.RUNNING:
            state = _state(beat, progressed_since) if beat else "silent"
        found.append(
            ProcessStatus(
                role=process.role, model=process.model, pid=pid, host=None, since=process.since, state=state
            )
        )
    if supervisor is not None:
        since = min((process.since for process in listed), default=time.time())
        up = ProcessStatus(role="up", model=None, pid=supervisor, host=None, since=since, state="running")
        found.insert(0, up)
    strangers = [beat for beat in beats if beat.hostname != here or beat.pid in own]
    return found + [
        ProcessStatus(
            role="worker",
            model=beat.model,
            pid=beat.pid,
            host=None if beat.hostname == here else beat.hostname,
            since=beat.started_at,
            state=_state(beat, progressed_since),
        )
        for beat in strangers
    ]


def _state(beat: Heartbeat, progressed_since: float) -> str:
    if beat.draining:
        return "draining"
    if not beat.ready:
        return "loading"
    return "serving" if beat.progressed_at >= progressed_since else "stalled"


def _command_pid(pid: int) -> int:
    """The process that does the work: on Linux the one that was started, elsewhere the launcher's child."""
    if sys.platform != "linux":
        children = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True).stdout.split()
        return int(children[0]) if children else pid
    return pid
