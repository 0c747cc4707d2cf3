from __future__ import annotations

import uuid
from pathlib import Path

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models


class LanguageModel(models.Model):
    """A prepared model: what it is, where it lies, and how a worker schedules it. Retired, never deleted."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.CharField(
        max_length=200, unique=True, help_text="The id that clients send as `model`; may contain slashes."
    )
    directory = models.CharField(max_length=1000, help_text="The prepared model directory.")
    source = models.CharField(max_length=1000, blank=True, help_text="What it was prepared from.")
    architecture = models.CharField(max_length=60)
    context_length = models.PositiveIntegerField(help_text="Tokens of prompt and answer together, at most.")
    has_chat_template = models.BooleanField()
    quantization = models.CharField(
        max_length=30, blank=True, help_text="As in 4-bit, group 64; empty: none."
    )
    dtype = models.CharField(max_length=20)
    size_bytes = models.PositiveBigIntegerField()
    checksum = models.CharField(max_length=64, help_text="SHA-256 over the prepared files' checksums.")
    default_max_tokens = models.PositiveIntegerField(
        default=1024,
        validators=[MinValueValidator(1)],
        help_text="Answer length of requests that name none; at most what the context leaves.",
    )
    slots = models.PositiveSmallIntegerField(
        default=8,
        validators=[MinValueValidator(1), MaxValueValidator(256)],
        help_text="Generations that one worker runs at once. More share each decode tick; each costs KV memory.",
    )
    prefill_chunk_tokens = models.PositiveIntegerField(
        default=256,
        validators=[MinValueValidator(1), MaxValueValidator(4096)],
        help_text="Prompt tokens that one prefill tick runs: the longest gap a stream sees grows with it.",
    )
    prefill_interval = models.PositiveIntegerField(
        default=4,
        validators=[MaxValueValidator(4096)],
        help_text="Decode ticks that a full chunk must leave to running streams. 0 lets streams starve prompts.",
    )
    created_at = models.DateTimeField(auto_now_add=True)
    retired_at = models.DateTimeField(
        null=True, blank=True, editable=False, help_text="No longer offered since."
    )

    class Meta:
        ordering = ["name"]
        constraints = [
            models.CheckConstraint(condition=models.Q(slots__gte=1), name="language_model_slots_positive"),
            models.CheckConstraint(
                condition=models.Q(prefill_chunk_tokens__gte=1), name="language_model_chunk_positive"
            ),
            models.CheckConstraint(
                condition=models.Q(default_max_tokens__gte=1), name="language_model_max_tokens_positive"
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def path(self) -> Path:
        return Path(self.directory)
