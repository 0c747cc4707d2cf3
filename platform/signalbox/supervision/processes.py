"""Which processes an installation on one machine consists of, and how one knows that each serves."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable

from asgiref.sync import sync_to_async

from inference.dispatch.heartbeats import heartbeats
from signalbox import store
from signalbox.configuration import ROOT, Configuration
from signalbox.connections import DRAIN_S
from signalbox.logging import ACCESS_LOG
from signalbox.supervision import embedded_valkey
from signalbox.supervision.addresses import loopback
from signalbox.supervision.child import ProcessSpec

_ANSWER_S = 5.0
#: A worker reads its model before it serves: gigabytes from a disk, for some.
_MODEL_LOAD_S = 600.0


def valkey(settings: Configuration) -> ProcessSpec:
    """The embedded store. It ends last, and by SIGTERM, which makes it write out its append-only file."""

    async def answers() -> bool:
        return await asyncio.to_thread(embedded_valkey.answers, settings.valkey_socket)

    return ProcessSpec(
        name="valkey",
        role="valkey",
        command=embedded_valkey.command(settings.valkey_dir, settings.valkey_socket),
        ready=answers,
        ready_s=embedded_valkey.READY_TIMEOUT_S,
        drain_s=20.0,
        orphan_signal=signal.SIGTERM,
        on_console=False,
    )


def web(settings: Configuration) -> ProcessSpec:
    """The site."""
    host, port = loopback(settings.host), settings.port

    async def answers() -> bool:
        return await _http_status(host, port, "/health/live") == 200

    return ProcessSpec(
        name="web",
        role="web",
        command=_manage("web"),
        ready=answers,
        drain_s=DRAIN_S + 10.0,
        not_on_terminal=ACCESS_LOG,
    )


def worker(model: str, settings: Configuration) -> ProcessSpec:
    """The one worker that serves ``model`` here. Huge pages make its matrix products 10–15 % faster on Linux."""
    tunables = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"} if sys.platform == "linux" else {}
    return ProcessSpec(
        name=f"worker-{model.replace('/', '-')}",
        role="worker",
        model=model,
        command=_manage("worker", model),
        ready=_serves(model),
        ready_s=_MODEL_LOAD_S,
        drain_s=settings.drain_seconds + 20.0,
        environment=tunables,
    )


def celery() -> ProcessSpec:
    """Periodic tasks. Nobody waits for them, so nobody waits for it."""

    async def started() -> bool:
        return True

    return ProcessSpec(name="celery", role="celery", command=_manage("celery"), ready=started, drain_s=20.0)


def _manage(*arguments: str) -> list[str]:
    return [sys.executable, str(ROOT / "manage.py"), *arguments]


def _serves(model: str) -> Callable[[], Awaitable[bool]]:
    client = store.sync_client()

    async def serves() -> bool:
        beats = await sync_to_async(heartbeats, thread_sensitive=False)(client)
        return any(beat.model == model and beat.ready for beat in beats)

    return serves


async def _http_status(host: str, port: int, path: str) -> int | None:
    """The status of a GET, or ``None`` when nobody answers."""
    try:
        async with asyncio.timeout(_ANSWER_S):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
                return int((await reader.readline()).split()[1])
            finally:
                writer.close()
    except (OSError, TimeoutError, IndexError, ValueError):
        return None
