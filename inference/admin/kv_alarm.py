"""The alarm that a model's workers have too little memory for an ordinary answer: why, and what is to be done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from accounts.formatting import counted, memory_size, number
from inference.messages import Heartbeat
from inference.models import LanguageModel

_MIB: Final = 2**20


def kv_alarm(model: LanguageModel, beats: Sequence[Heartbeat] | None) -> str:
    """Empty where there is memory enough. ``beats``: of the living workers, any model's; None: they cannot be asked."""
    if not model.lacks_kv_memory:
        return ""
    own = [beat for beat in beats or () if beat.model == model.name]
    known = "" if own else ", as its workers reckoned"
    return (
        f"{model}: there is KV memory for {counted(model.longest_sequence, 'token')} of prompt and answer{known}, "
        f"less than an answer of the default length takes ({number(model.default_max_tokens)}). What is longer is "
        f"refused (kv_memory_exceeded), and other answers are cut off. {_cause(model, own)} {_remedy(model, own)}"
    )


def _cause(model: LanguageModel, own: Sequence[Heartbeat]) -> str:
    if model.kv_budget_mib is None:
        budget = "The KV budget is empty, so that the worker takes what its device's memory leaves"
    else:
        budget = f"The KV budget is {memory_size(model.kv_budget_mib * _MIB)}"
    set_aside = _slot_bytes(own) * model.slots
    if not set_aside:
        return f"{budget}."
    return f"{budget}; {memory_size(set_aside)} of it are set aside for {counted(model.slots, 'slot')}."


def _remedy(model: LanguageModel, own: Sequence[Heartbeat]) -> str:
    if model.kv_budget_mib is None:
        remedies = ["Give the worker more memory"]
    else:
        remedies = ["Raise the KV budget (it is in MiB: 16 GiB are 16384)"]
    if _slot_bytes(own) and model.slots > 1:
        remedies.append("lower the slots")
    if model.kv_budget_mib is None and model.draft_model_id is not None:
        remedies.append("choose a drafter that is no model")
    return f"{', or '.join(remedies)}."


def _slot_bytes(own: Sequence[Heartbeat]) -> int:
    return max((beat.slot_bytes for beat in own), default=0)
