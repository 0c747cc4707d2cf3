"""What a worker schedules by, as the operator has set it for its model.

Settings are validated when they are set, and the database checks what it can. Somebody may write past both. Then what
cannot be used is replaced by what a new model has, and is named in the log: a mistake must not switch off what keeps
prompts and streams, or lanes, fair to each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, cast

import structlog
from django.core.exceptions import ValidationError
from django.db.models import Field

from inference.models import LanguageModel
from inference.scheduling.tick import PrefillLimits

_log = structlog.get_logger(__name__)

_MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """One model's settings, all of them usable.

    ``limits``: chunk and interval where they are fixed. ``longest_stall_ms``: set, the chunk follows
    ``scheduling.tick.chunk_for`` instead. ``itl_target``: set, the interval follows ``interval_for`` instead.
    ``kv_budget_bytes``: None, the worker chooses. ``prefix_cache_bytes``: a part of that; None, a quarter; 0, none.
    ``kv_watermark_percent`` of the budget stay free when something is admitted beside streams. ``lane_floor``: the
    ``cap`` of ``scheduling.lanes.pick_lane``.
    """

    slots: int
    limits: PrefillLimits
    longest_stall_ms: int | None
    itl_target: float | None
    kv_budget_bytes: int | None
    kv_watermark_percent: int
    prefix_cache_bytes: int | None
    preemption: bool
    lane_floor: int


def settings_of(model: LanguageModel) -> SchedulerSettings:
    """The settings in a model's row. Never fails: what is unusable is replaced and logged, once for each value."""
    interval = _usable(model, "prefill_interval")
    target = _usable(model, "itl_target")
    if interval == 0 and target is None and model.itl_target is not None:
        # Who wrote the target did not mean to let streams starve prompts, whatever the interval beside it says.
        interval = _default("prefill_interval")
    budget, cache = _usable(model, "kv_budget_mib"), _usable(model, "prefix_cache_mib")
    if budget is not None and cache is not None:
        cache = min(cache, budget)
    return SchedulerSettings(
        slots=_usable(model, "slots"),
        limits=PrefillLimits(chunk_tokens=_usable(model, "prefill_chunk_tokens"), interval=interval),
        longest_stall_ms=_usable(model, "longest_stall_ms"),
        itl_target=target,
        kv_budget_bytes=None if budget is None else budget * _MIB,
        kv_watermark_percent=_usable(model, "kv_watermark_percent"),
        prefix_cache_bytes=None if cache is None else cache * _MIB,
        preemption=_usable(model, "preemption"),
        lane_floor=_usable(model, "lane_floor"),
    )


def _usable(model: LanguageModel, name: str) -> Any:
    """The row's value if the field's own rules accept it, else the field's default."""
    value = getattr(model, name)
    try:
        return _field(name).clean(value, model)
    except ValidationError as error:
        default = _default(name)
        _report(model.name, name, repr(value), repr(default), " ".join(error.messages))
        return default


def _default(name: str) -> Any:
    return _field(name).get_default()


def _field(name: str) -> Field[Any, Any]:
    return cast("Field[Any, Any]", LanguageModel._meta.get_field(name))


@lru_cache(maxsize=256)
def _report(model: str, setting: str, value: str, used: str, reason: str) -> None:
    """Cached, because a worker reads its settings every few seconds."""
    _log.error(
        "scheduler_setting_unusable", model=model, setting=setting, value=value, used=used, reason=reason
    )
