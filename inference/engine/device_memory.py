"""How much memory sequences' caches may take on this machine, where the operator has not said."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import mlx.core as mx

#: Share of a GPU's recommended working set that weights and caches may fill: the rest is for activations and others.
_GPU_SHARE: Final = 0.85
#: Share of a CPU's memory: it is everybody's.
_CPU_SHARE: Final = 0.5
#: Memory limit of the control group that a Linux container runs in.
_CONTAINER_LIMIT: Final = Path("/sys/fs/cgroup/memory.max")


def cache_budget(model_bytes: int) -> int:
    """Bytes for caches beside a model of ``model_bytes``; at least as much again as the model, whatever there is."""
    recommended = mx.device_info().get("max_recommended_working_set_size")
    usable = int(recommended) * _GPU_SHARE if recommended else _main_memory() * _CPU_SHARE
    return max(int(usable) - model_bytes, model_bytes)


def _main_memory() -> int:
    """Bytes of main memory that this process may use."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        limit = _CONTAINER_LIMIT.read_text().strip()
    except OSError:  # no Linux, or no such control group
        return machine
    return min(machine, int(limit)) if limit.isdigit() else machine
