from __future__ import annotations

from django.db import models

from accounts.tenancy import TenantManager
from inference.models.generation import Generation
from inference.models.worker import Worker


class RunOutcome(models.TextChoices):
    """How one claim of a generation ended: with the generation's own end, or without it."""

    COMPLETED = "completed", "Completed"
    CANCELLED = "cancelled", "Cancelled"
    FAILED = "failed", "Failed"
    EXPIRED = "expired", "Expired"
    #: Back to the queue, first in line: its worker drained, or a step failed for everybody in it.
    REQUEUED = "requeued", "Requeued"
    #: Back to the queue because a higher lane needed its room.
    PREEMPTED = "preempted", "Preempted"
    #: Its lease lapsed, and another worker's claim replaced it.
    LOST = "lost", "Lost"
    #: An earlier run had written the end: only settling was left.
    SETTLED = "settled", "Settled"
    #: Nobody's claim: it was ended while nobody ran it, which takes an epoch as a claim does.
    WITHDRAWN = "withdrawn", "Withdrawn"


class GenerationRun(models.Model):
    """One claim of a generation, as its worker saw it. Inserted once, when the claim is over, and never changed.

    Epochs count without gaps: one below the generation's that has no row is a run whose worker could not report it.
    """

    generation = models.ForeignKey(Generation, on_delete=models.CASCADE, related_name="runs")
    epoch = models.PositiveIntegerField()
    worker = models.ForeignKey(Worker, on_delete=models.SET_NULL, null=True, blank=True, related_name="runs")
    worker_name = models.CharField(max_length=270, blank=True, help_text="Host and process, as they were.")
    claimed_at = models.DateTimeField()
    ended_at = models.DateTimeField()
    outcome = models.CharField(max_length=10, choices=RunOutcome)
    events = models.JSONField(
        help_text="A list of [seconds since the generation was accepted, kind, details], in order. No text."
    )

    objects = TenantManager("generation__tenant")

    class Meta:
        ordering = ["generation", "epoch"]
        constraints = [
            models.UniqueConstraint(fields=["generation", "epoch"], name="generation_run_of_epoch"),
            models.CheckConstraint(
                condition=models.Q(outcome__in=RunOutcome.values), name="generation_run_outcome_known"
            ),
        ]

    def __str__(self) -> str:
        return f"run {self.epoch} of gen_{self.generation_id.hex}"
