"""Names of the keys, as in ``lua/keys.lua``. ``docs/dispatch.md`` tells what each holds, and its life."""

from __future__ import annotations

from typing import Final

#: Every worker's ticks, one entry each, for the web processes' readers.
STREAM: Final = "dispatch:stream"
#: Workers by the time of their last heartbeat.
WORKERS: Final = "dispatch:workers"


def generation(generation: str) -> str:
    return f"dispatch:generation:{generation}"


def log(generation: str) -> str:
    return f"dispatch:log:{generation}"


def presence(generation: str) -> str:
    return f"dispatch:presence:{generation}"


def ledger(model: str) -> str:
    return f"dispatch:ledger:{model}"


def places(model: str) -> str:
    return f"dispatch:places:{model}"


def ranks(model: str) -> str:
    return f"dispatch:ranks:{model}"


def queue(model: str, rank: int) -> str:
    return f"dispatch:queue:{model}:{rank}"


def heartbeat(worker: str) -> str:
    return f"dispatch:heartbeat:{worker}"


def wake_channel(model: str) -> str:
    return f"dispatch:wake:{model}"
