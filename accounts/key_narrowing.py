"""In words: what a key narrows of what its tenant has, for lists, pages and commands."""

from __future__ import annotations

from collections.abc import Sequence

from accounts.formatting import counted
from accounts.limits import LimitName
from accounts.models import ApiKey


def lanes_of(key: ApiKey) -> str:
    """The lanes that its requests may get."""
    return ", ".join(key.allowed_lanes) or "every lane of the tenant"


def models_of(key: ApiKey) -> str:
    """The models that it may use."""
    return ", ".join(key.allowed_models) or "every model"


def networks_of(key: ApiKey) -> str:
    """Where it may be used from."""
    return ", ".join(key.allowed_networks) or "anywhere"


def narrowing_of(key: ApiKey) -> str:
    """All of it, briefly; empty where it narrows nothing. The key has its allowance with it."""
    limits = sum(key.allowance.limits.of(name) is not None for name in LimitName)
    parts = (
        ", ".join(key.allowed_lanes),
        _briefly(key.allowed_models, "model"),
        _briefly(key.allowed_networks, "network"),
        counted(limits, "limit") if limits else "",
    )
    return "; ".join(part for part in parts if part)


def _briefly(names: Sequence[str], noun: str) -> str:
    return names[0] if len(names) == 1 else counted(len(names), noun) if names else ""
