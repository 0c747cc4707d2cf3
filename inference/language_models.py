"""Which models this installation offers: the one place that writes their rows.

A prepared directory says what a model is; its row offers it. Both verbs can be repeated: what is so already
changes nothing and records nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import transaction
from django.utils import timezone

from accounts import audit
from accounts.principal import Actor
from inference.models import LanguageModel

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

_SETTINGS = ("slots", "prefill_chunk_tokens", "prefill_interval", "default_max_tokens")


class UnknownLanguageModel(LookupError):
    """There is no model of that name."""


def register(prepared: PreparedModel, *, actor: Actor) -> LanguageModel:
    """Offer a prepared model under its name; one that was retired is offered again.

    How a worker schedules it (slots, chunk, interval) is kept as an operator set it.
    """
    record = prepared.record
    with transaction.atomic():
        existing = LanguageModel.objects.select_for_update().filter(name=record.name).first()
        before = audit.fields_of(existing, *_RECORDED) if existing else None
        model = existing or LanguageModel(name=record.name)
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


def change_settings(
    *,
    model: LanguageModel,
    slots: int,
    prefill_chunk_tokens: int,
    prefill_interval: int,
    default_max_tokens: int,
    actor: Actor,
) -> LanguageModel:
    """Change how workers schedule a model; a running worker follows within seconds.

    Raises ``ValidationError``, by field, for values out of range.
    """
    with transaction.atomic():
        model = LanguageModel.objects.select_for_update().get(id=model.id)
        before = audit.fields_of(model, *_SETTINGS)
        model.slots = slots
        model.prefill_chunk_tokens = prefill_chunk_tokens
        model.prefill_interval = prefill_interval
        model.default_max_tokens = default_max_tokens
        model.clean_fields(exclude=[f.name for f in model._meta.fields if f.name not in _SETTINGS])
        after = audit.fields_of(model, *_SETTINGS)
        if after != before:
            model.save(update_fields=list(_SETTINGS))
            audit.record(actor, "scheduler_settings.change", model, before, after)
    return model
