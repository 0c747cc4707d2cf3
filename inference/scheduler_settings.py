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

from inference.models import DrafterKind, LanguageModel
from inference.scheduling.speculation import SpeculationMode
from inference.scheduling.tick import PrefillLimits
from inference.speculation_verdicts import drafter_key

_log = structlog.get_logger(__name__)

_MIB: Final = 1024 * 1024
#: What a newcomer may have to wait for while prompts are run and nothing streams: as long as one notices and forgives.
_QUIET_TICK_MS: Final = 2000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationSettings:
    """One model's settings of speculation, all of them usable.

    ``mode``: whether it is used, or measured first. ``draft_model`` and ``draft_model_dir``: name and prepared
    directory of the model that drafts; None where something else does. ``draft_tokens``: drafted for one round at
    most. ``grant_rounds``: what a grant of the slot is, 0: no rotation. ``speculate_undecided``: what becomes of a
    measurement that decides nothing.
    """

    mode: SpeculationMode
    drafter: DrafterKind
    draft_model: str | None
    draft_model_dir: str | None
    draft_tokens: int
    grant_rounds: int
    speculate_undecided: bool

    @property
    def drafts(self) -> bool:
        """Whether anything is to be drafted at all."""
        return self.drafter is not DrafterKind.NONE and self.mode is not SpeculationMode.OFF

    @property
    def drafter_key(self) -> str:
        """What drafts, as ``speculation_verdicts`` names it."""
        return drafter_key(self.drafter, self.draft_model)

    @property
    def pairing(self) -> tuple[str, int]:
        """What a verdict of the model on one machine holds for: the drafter's key and the draft length."""
        return self.drafter_key, self.draft_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """One model's settings, all of them usable.

    ``limits``: chunk and interval where they are fixed. ``longest_stall_ms``: set, the chunk follows
    ``scheduling.tick.chunk_for`` instead. ``itl_target``: set, the interval follows ``interval_for`` instead.
    ``kv_budget_bytes``: None, the worker chooses. ``prefix_cache_bytes``: a part of that; None, a quarter; 0, none.
    ``kv_watermark_percent`` of the budget stay free when something is admitted beside streams. ``lane_floor``: the
    ``cap`` of ``scheduling.lanes.pick_lane``. ``quiet_tick_ms``: most of what a prompt tick of more than a chunk may
    take, which is run only while nothing streams.
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
    speculation: SpeculationSettings
    quiet_tick_ms: float = _QUIET_TICK_MS


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
        speculation=_speculation_of(model),
    )


def _speculation_of(model: LanguageModel) -> SpeculationSettings:
    drafter = DrafterKind(_usable(model, "drafter"))
    draft_model = model.draft_model if drafter is DrafterKind.DRAFT_MODEL else None
    if drafter is DrafterKind.DRAFT_MODEL:
        flaw = _flaw_of(draft_model, model)
        if flaw:
            used = DrafterKind(_default("drafter"))
            _report(model.name, "draft_model", repr(draft_model and draft_model.name), repr(used.value), flaw)
            drafter, draft_model = used, None
    return SpeculationSettings(
        mode=SpeculationMode(_usable(model, "speculation")),
        drafter=drafter,
        draft_model=None if draft_model is None else draft_model.name,
        draft_model_dir=None if draft_model is None else draft_model.directory,
        draft_tokens=_usable(model, "draft_tokens"),
        grant_rounds=_usable(model, "grant_rounds"),
        speculate_undecided=_usable(model, "speculate_undecided"),
    )


def _flaw_of(draft_model: LanguageModel | None, model: LanguageModel) -> str:
    """Why a row's draft model cannot draft; empty: it can, as far as the row tells."""
    if draft_model is None:
        return "No draft model is named."
    if draft_model.pk == model.pk:
        return "A model does not draft for itself."
    return "It is retired." if draft_model.retired_at is not None else ""


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
