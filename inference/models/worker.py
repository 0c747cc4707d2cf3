from __future__ import annotations

import uuid

from django.db import models

from inference.models.language_model import LanguageModel


class Worker(models.Model):
    """One run of a worker process. What it does this second is in its heartbeat, not here."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    model = models.ForeignKey(LanguageModel, on_delete=models.PROTECT, related_name="workers")
    hostname = models.CharField(max_length=253)
    pid = models.PositiveIntegerField()
    device = models.CharField(max_length=60)
    blas = models.CharField(
        max_length=100, blank=True, help_text="The library that does the CPU's matrix products."
    )
    started_at = models.DateTimeField()
    last_seen_at = models.DateTimeField()
    stopped_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-started_at"]

    def __str__(self) -> str:
        return f"{self.hostname}:{self.pid}"
