"""Which models this installation offers: the one place that writes their rows.

A prepared directory says what a model is; its row offers it. Both verbs can be repeated: what is so already
changes nothing and records nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Exists, OuterRef, Q
from django.utils import timezone

from accounts import audit
from accounts.principal import Actor
from accounts.tenancy import every_tenant
from inference import draft_models, speculation_verdicts
from inference.messages import Heartbeat
from inference.models import DrafterKind, Generation, LanguageModel
from inference.models.generation import LIVE_STATES

if TYPE_CHECKING:
    from inference.engine.preparation.record import PreparedModel

_RECORDED = (
    "name",
    "directory",
    "source",
    "architecture",
    "context_length",
    "has_chat_template",
    "quantization",
    "dtype",
    "size_bytes",
    "checksum",
    "retired_at",
)

#: What an operator may change; see the model's fields for what each means, costs and gives.
SETTINGS = (
    "slots",
    "kv_budget_mib",
    "kv_watermark_percent",
    "prefix_cache_mib",
    "prefill_chunk_tokens",
    "longest_stall_ms",
    "prefill_interval",
    "itl_target",
    "lane_floor",
    "preemption",
    "speculation",
    "drafter",
    "draft_model",
    "draft_tokens",
    "grant_rounds",
    "speculate_undecided",
    "default_max_tokens",
)


class UnknownLanguageModel(LookupError):
    """There is no model of that name."""


#: Chunk and interval of a model that is new: on a CPU a prompt's token costs many times what it does on a GPU, next to
#: a decode tick, so a stream would feel every larger chunk. Measured: docs/adr/0052.
_FIRST_TERMS_ON_CPU = {"prefill_chunk_tokens": 64, "prefill_interval": 2}
_FIRST_TERMS_ON_GPU = {"prefill_chunk_tokens": 512, "prefill_interval": 16}


def register(prepared: PreparedModel, *, actor: Actor, on_gpu: bool = False) -> LanguageModel:
    """Offer a prepared model under its name; one that was retired is offered again.

    How a worker schedules it (slots, chunk, interval) is kept as an operator set it; a new one's terms are those for
    a worker on a GPU, or on a CPU. What was measured with other weights under that name is forgotten.
    """
    record = prepared.record
    with transaction.atomic():
        existing = LanguageModel.objects.select_for_update().filter(name=record.name).first()
        before = audit.fields_of(existing, *_RECORDED) if existing else None
        terms = _FIRST_TERMS_ON_GPU if on_gpu else _FIRST_TERMS_ON_CPU
        model = existing or LanguageModel(name=record.name, **terms)
        model.directory = str(prepared.directory.resolve())
        model.source = record.source[:1000]
        model.architecture = record.architecture[:60]
        model.context_length = record.context_length
        model.has_chat_template = record.has_chat_template
        model.quantization = record.quantization[:30]
        model.dtype = record.dtype
        model.size_bytes = record.size_bytes
        model.checksum = record.checksum
        model.retired_at = None
        after = audit.fields_of(model, *_RECORDED)
        if before != after:
            model.full_clean(exclude=["name"] if existing else [])
            model.save()
            if before is not None and before["checksum"] != after["checksum"]:
                speculation_verdicts.forget_weights(model)
            audit.record(actor, "language_model.register", model, before, after)
    return model


def retire(name: str, *, actor: Actor) -> LanguageModel:
    """Offer a model no longer. Generations that are queued or running keep it; its row stays for their sake.

    Raises ``UnknownLanguageModel``.
    """
    with transaction.atomic():
        model = LanguageModel.objects.select_for_update().filter(name=name).first()
        if model is None:
            raise UnknownLanguageModel(name)
        if model.retired_at is None:
            before = audit.fields_of(model, "retired_at")
            model.retired_at = timezone.now()
            model.save(update_fields=["retired_at"])
            audit.record(actor, "language_model.retire", model, before, audit.fields_of(model, "retired_at"))
    return model


def in_service(beats: Iterable[Heartbeat]) -> list[LanguageModel]:
    """The models of which something waits, runs, or may come: those that are offered, and those that are retired as
    long as one of the living workers (``beats``) serves them or a generation of theirs has not ended."""
    served = {beat.model for beat in beats}
    with every_tenant("a model serves all of them"):
        unfinished = Generation.objects.filter(model=OuterRef("pk"), state__in=LIVE_STATES)
        return list(
            LanguageModel.objects.filter(Q(retired_at=None) | Q(name__in=served) | Exists(unfinished))
        )


def change_settings(
    *,
    model: LanguageModel,
    slots: int,
    kv_budget_mib: int | None,
    kv_watermark_percent: int,
    prefix_cache_mib: int | None,
    prefill_chunk_tokens: int,
    longest_stall_ms: int | None,
    prefill_interval: int,
    itl_target: float | None,
    lane_floor: int,
    preemption: bool,
    speculation: str,
    drafter: str,
    draft_model: LanguageModel | None,
    draft_tokens: int,
    grant_rounds: int,
    speculate_undecided: bool,
    default_max_tokens: int,
    may_starve_prompts: bool = False,
    actor: Actor,
) -> LanguageModel:
    """Change how workers schedule a model; a running worker follows within seconds.

    ``may_starve_prompts`` confirms an interval of 0 that no target replaces. Raises ``ValidationError``, by field, for
    values that are out of range, do not go together, or are not confirmed, and for a draft model that cannot guess for
    this one.
    """
    drafted_by = LanguageModel.objects.values_list("draft_model_id", flat=True).get(id=model.id)
    if drafter == DrafterKind.DRAFT_MODEL and draft_model is not None and draft_model.id != drafted_by:
        # Before the transaction: nobody waits while vocabularies are read.
        objection = draft_models.objection(model, draft_model)
        if objection is not None:
            raise ValidationError({"draft_model": objection})
    with transaction.atomic():
        model = LanguageModel.objects.select_for_update().get(id=model.id)
        before = _plain_settings(model)
        starved = model.starves_prompts
        model.slots = slots
        model.kv_budget_mib = kv_budget_mib
        model.kv_watermark_percent = kv_watermark_percent
        model.prefix_cache_mib = prefix_cache_mib
        model.prefill_chunk_tokens = prefill_chunk_tokens
        model.longest_stall_ms = longest_stall_ms
        model.prefill_interval = prefill_interval
        model.itl_target = itl_target
        model.lane_floor = lane_floor
        model.preemption = preemption
        model.speculation = speculation
        model.drafter = drafter
        model.draft_model = draft_model
        model.draft_tokens = draft_tokens
        model.grant_rounds = grant_rounds
        model.speculate_undecided = speculate_undecided
        model.default_max_tokens = default_max_tokens
        model.clean_fields(exclude=[f.name for f in model._meta.fields if f.name not in SETTINGS])
        model.clean()
        if model.starves_prompts and not starved:
            require_confirmed_starvation(may_starve_prompts)
        after = _plain_settings(model)
        if after != before:
            model.save(update_fields=list(SETTINGS))
            audit.record(actor, "scheduler_settings.change", model, before, after)
    return model


def note_capacity(model_id: UUID, tokens: int) -> None:
    """A worker's word on the longest sequence that a worker of the model has memory for, itself or another that lives.

    What is longer is refused when it is sent. Said every few seconds, and written where it is not what is known.
    """
    otherwise = LanguageModel.objects.filter(id=model_id).exclude(kv_capacity_tokens=tokens)
    if otherwise.exists():  # to ask costs less than to write nothing: that would wait for whoever writes
        otherwise.update(kv_capacity_tokens=tokens)


def _plain_settings(model: LanguageModel) -> dict[str, Any]:
    """For the audit, which knows no fractions and no rows: the target as text, the draft model by its name."""
    as_they_are = [name for name in SETTINGS if name not in ("itl_target", "draft_model")]
    return {
        **audit.fields_of(model, *as_they_are),
        "itl_target": None if model.itl_target is None else str(model.itl_target),
        "draft_model": None if model.draft_model is None else model.draft_model.name,
    }


def require_confirmed_starvation(confirmed: bool) -> None:
    """Nobody sets an interval of 0 by a slip. Raises ``ValidationError`` at that field unless it is ``confirmed``."""
    if not confirmed:
        raise ValidationError(
            {
                "prefill_interval": "With 0 no prompt is run as long as anything streams: requests may wait for "
                "minutes. Confirm that streams may starve prompts, or set 1 or more."
            }
        )
