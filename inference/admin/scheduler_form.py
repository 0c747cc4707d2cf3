"""The form in which an operator sets how a model is scheduled, and what of that its workers use now."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from django import forms
from django.core.exceptions import ValidationError
from unfold.widgets import UnfoldBooleanSwitchWidget

from accounts.formatting import EMPTY, counted, memory_size, number
from inference import draft_models, language_models
from inference.admin.drafter_words import draft_length, drafter_name
from inference.messages import Heartbeat, SchedulerSnapshot, SlotSnapshot
from inference.models import DrafterKind, LanguageModel


class SchedulerForm(forms.ModelForm):  # type: ignore[type-arg]
    """A model's settings; with a question that has to be answered before streams may starve prompts."""

    may_starve_prompts = forms.BooleanField(
        label="Streams may starve prompts",
        required=False,
        widget=UnfoldBooleanSwitchWidget,
        help_text="To be ticked when the interval becomes 0: streams run as if alone, and as long as anything "
        "streams, no new prompt is run, and whoever sent it waits. Meant for measuring, and as a way out.",
    )

    class Meta:
        model = LanguageModel
        fields = language_models.SETTINGS

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        draft_model = self.fields.get("draft_model")  # who may only look has no fields
        if isinstance(draft_model, forms.ModelChoiceField):
            draft_model.queryset = draft_models.candidates(self.instance)
            draft_model.empty_label = "None"

    def clean_draft_model(self) -> LanguageModel | None:
        chosen: LanguageModel | None = self.cleaned_data["draft_model"]
        drafts = self.cleaned_data.get("drafter") == DrafterKind.DRAFT_MODEL
        if chosen is not None and drafts and chosen.pk != self.instance.draft_model_id:
            objection = draft_models.objection(self.instance, chosen)
            if objection is not None:
                # One was chosen: the model's own rules are not to ask for it beside this.
                self.instance.draft_model = chosen
                raise ValidationError(objection)
        return chosen

    def clean(self) -> dict[str, Any] | None:
        cleaned = super().clean()
        values = self.cleaned_data
        starves = values.get("prefill_interval") == 0 and values.get("itl_target") is None
        if starves and "itl_target" not in self.errors and not self.instance.starves_prompts:
            language_models.require_confirmed_starvation(values["may_starve_prompts"])
        return cleaned


def in_use(setting: str, beats: Sequence[Heartbeat] | None) -> str:
    """What the workers with these heartbeats use for ``setting`` now; each value once, where they differ."""
    if beats is None:
        return "unknown: Valkey cannot be reached"
    if not beats:
        return "no worker runs"
    values = dict.fromkeys(_VALUES[setting](beat) for beat in beats)
    return ", ".join(value or EMPTY for value in values)


def _of_snapshot(value: Callable[[SchedulerSnapshot], str]) -> Callable[[Heartbeat], str]:
    return lambda beat: value(beat.scheduler) if beat.scheduler is not None else ""


def slow_down(snapshot: SchedulerSnapshot) -> float | None:
    """How many times as far apart tokens come while one long prompt is run; None while that is not known."""
    if snapshot.decode_ms is None or snapshot.chunk_ms is None or not snapshot.interval:
        return None
    return 1 + snapshot.chunk_ms / snapshot.decode_ms / snapshot.interval


def _chunk_ms(snapshot: SchedulerSnapshot) -> str:
    return "" if snapshot.chunk_ms is None else f"{snapshot.chunk_ms:.0f} ms a chunk"


def _slow_down(snapshot: SchedulerSnapshot) -> str:
    factor = slow_down(snapshot)
    return "" if factor is None else f"{factor:.1f} times beside one prompt"


def _interval(snapshot: SchedulerSnapshot) -> str:
    return counted(snapshot.interval, "tick") if snapshot.interval else "0: streams starve prompts"


def _of_slot(value: Callable[[SlotSnapshot], str]) -> Callable[[Heartbeat], str]:
    return _of_snapshot(lambda shot: value(shot.slot) if shot.slot is not None else "")


def _whether_it_speculates(slot: SlotSnapshot) -> str:
    match slot.state:
        case "forced_on":
            return "always on"
        case "forced_off":
            return "off"
        case "profiling":
            return f"measuring: {counted(slot.samples, 'generation')} timed"
        case "settled":
            gain = "" if slot.speedup is None else f", {slot.speedup:.2f} times as fast"
            return f"{_VERDICTS.get(slot.verdict, slot.verdict)}{gain}"
        case state:
            return state.replace("_", " ")


def _grant(slot: SlotSnapshot) -> str:
    """Of the grant that runs: it keeps the budget that it began with."""
    return counted(slot.holder.budget, "round") if slot.holder is not None and slot.holder.budget else ""


def _drafter(slot: SlotSnapshot) -> str:
    name = drafter_name(slot.drafter)
    return f"{name}. {slot.drafter_fault}" if slot.drafter_fault else name


def _draft_model(slot: SlotSnapshot) -> str:
    """Of all drafters only this kind has a name of its own."""
    return slot.drafter.partition(":")[2]


def _bytes(value: int, snapshot: SchedulerSnapshot) -> str:
    return memory_size(value) if snapshot.kv_budget else ""


_SWITCH: Final = {None: "", True: "on", False: "off"}
_VERDICTS: Final = {"enabled": "it pays", "declined": "it does not pay", "undecided": "too close to call"}
_VALUES: Final[dict[str, Callable[[Heartbeat], str]]] = {
    "slots": lambda beat: number(beat.slots),
    "kv_budget_mib": _of_snapshot(lambda shot: _bytes(shot.kv_budget, shot)),
    "kv_watermark_percent": _of_snapshot(lambda shot: _bytes(shot.kv_watermark, shot)),
    "prefix_cache_mib": _of_snapshot(lambda shot: _bytes(shot.kv_cache_budget, shot)),
    "prefill_chunk_tokens": _of_snapshot(lambda shot: f"{number(shot.chunk)} tokens"),
    "longest_stall_ms": _of_snapshot(_chunk_ms),
    "prefill_interval": _of_snapshot(_interval),
    "itl_target": _of_snapshot(_slow_down),
    "lane_floor": _of_snapshot(lambda shot: "" if shot.lane_floor is None else str(shot.lane_floor)),
    "preemption": _of_snapshot(lambda shot: _SWITCH[shot.preemption]),
    "speculation": _of_slot(_whether_it_speculates),
    "drafter": _of_slot(_drafter),
    "draft_model": _of_slot(_draft_model),
    "draft_tokens": _of_slot(draft_length),
    "grant_rounds": _of_slot(_grant),
    "speculate_undecided": _of_slot(lambda slot: _SWITCH[slot.speculate_undecided]),
}
#: What a worker reads; the answers' length is the web's, which reads it with each request.
FOLLOWED: Final = tuple(_VALUES)
