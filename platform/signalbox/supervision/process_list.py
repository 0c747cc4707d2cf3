"""What the supervisor runs, written where `manage.py status` reads it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

_NAME = "processes.json"


class State(StrEnum):
    """How a process stands with its supervisor."""

    STARTING = "starting"
    RUNNING = "running"
    #: It ended, and is started again after a pause.
    RESTARTING = "restarting"
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One process. ``since``: Unix seconds of its last start."""

    role: str
    model: str | None
    pid: int
    since: float
    state: State


class ProcessList:
    """The file in the state directory. It is true while its supervisor lives: see ``InstanceLock.holder``."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / _NAME

    def write(self, url: str, processes: list[Listed]) -> None:
        """Replace the list in one step: who reads meanwhile sees the old or the new one, whole."""
        draft = self._path.with_suffix(".new")
        draft.write_text(json.dumps({"url": url, "processes": [asdict(process) for process in processes]}))
        draft.replace(self._path)

    def read(self) -> tuple[str | None, list[Listed]]:
        """The site's address and its processes; nothing where nothing was written."""
        try:
            written = json.loads(self._path.read_text())
        except FileNotFoundError:
            return None, []
        processes = [Listed(**{**each, "state": State(each["state"])}) for each in written["processes"]]
        return written["url"], processes
