from __future__ import annotations

import uuid

from django.db import models

from accounts.models import ApiKey, Lane, Tenant, User
from accounts.tenancy import TenantManager
from inference.messages import Usage
from inference.models.language_model import LanguageModel


class GenerationState(models.TextChoices):
    """The life of a generation: two live states, four terminal ones."""

    QUEUED = "queued", "Queued"
    RUNNING = "running", "Running"
    COMPLETED = "completed", "Completed"
    CANCELLED = "cancelled", "Cancelled"
    FAILED = "failed", "Failed"
    EXPIRED = "expired", "Expired"


LIVE_STATES = (GenerationState.QUEUED, GenerationState.RUNNING)
TERMINAL_STATES = (
    GenerationState.COMPLETED,
    GenerationState.CANCELLED,
    GenerationState.FAILED,
    GenerationState.EXPIRED,
)


class Generation(models.Model):
    """One accepted request, from accepted to a terminal state."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="generations")
    api_key = models.ForeignKey(
        ApiKey, on_delete=models.PROTECT, null=True, blank=True, related_name="generations"
    )
    user = models.ForeignKey(
        User, on_delete=models.PROTECT, null=True, blank=True, related_name="generations"
    )
    model = models.ForeignKey(LanguageModel, on_delete=models.PROTECT, related_name="generations")
    lane = models.ForeignKey(Lane, on_delete=models.PROTECT, related_name="generations")
    route = models.CharField(
        max_length=30, help_text="Where it came in: chat.completions, completions, ws.chat."
    )
    request_id = models.CharField(max_length=64, blank=True)
    state = models.CharField(max_length=10, choices=GenerationState, default=GenerationState.QUEUED)
    epoch = models.PositiveIntegerField(default=0, help_text="How often a worker claimed it.")
    unattended = models.BooleanField(default=False, help_text="Runs on without a reader.")
    keep_output = models.BooleanField(default=False, help_text="Its events are stored at settlement.")
    #: The prompt's; once it has ended, those of them that were run or found in the prefix cache.
    prompt_tokens = models.PositiveIntegerField()
    max_tokens = models.PositiveIntegerField()
    cached_tokens = models.PositiveIntegerField(default=0)
    completion_tokens = models.PositiveIntegerField(default=0)
    accepted_prediction_tokens = models.PositiveIntegerField(
        default=0, help_text="Guessed by the drafter, and a part of the answer."
    )
    rejected_prediction_tokens = models.PositiveIntegerField(
        default=0, help_text="Guessed by the drafter in vain; no part of the answer."
    )
    finish_reason = models.CharField(max_length=10, blank=True)
    cancel_reason = models.CharField(max_length=30, blank=True)
    failure_code = models.CharField(max_length=60, blank=True)
    failure_message = models.CharField(max_length=500, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    claimed_at = models.DateTimeField(null=True, blank=True)
    first_token_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    cancel_requested_at = models.DateTimeField(null=True, blank=True)
    #: When it is ended as expired if no worker has claimed it by then; None: its entitlement sets no such limit.
    queue_deadline = models.DateTimeField(null=True, blank=True)

    objects = TenantManager()

    class Meta:
        ordering = ["-created_at"]
        indexes = [
            models.Index(
                fields=["created_at"],
                condition=models.Q(state__in=["queued", "running"]),
                name="generation_live",
            ),
            models.Index(fields=["tenant", "-created_at"], name="generation_of_tenant"),
            models.Index(fields=["-created_at"], name="generation_newest"),
        ]
        constraints = [
            models.CheckConstraint(
                condition=models.Q(state__in=GenerationState.values), name="generation_state_known"
            ),
            models.CheckConstraint(
                condition=models.Q(state__in=["queued", "running"], ended_at=None)
                | models.Q(state__in=["completed", "cancelled", "failed", "expired"], ended_at__isnull=False),
                name="generation_ended_iff_terminal",
            ),
        ]

    def __str__(self) -> str:
        return f"gen_{self.id.hex}"

    @property
    def usage(self) -> Usage:
        """Its token counts: exact once it has ended."""
        return Usage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            cached_tokens=self.cached_tokens,
            accepted_prediction_tokens=self.accepted_prediction_tokens,
            rejected_prediction_tokens=self.rejected_prediction_tokens,
        )


class GenerationRequest(models.Model):
    """What a worker needs to run the generation: kept while it may have to be queued again, then by retention."""

    generation = models.OneToOneField(
        Generation, on_delete=models.CASCADE, primary_key=True, related_name="request"
    )
    task = models.BinaryField(help_text="inference.messages.GenerationTask, msgpack.")

    objects = TenantManager("generation__tenant")

    def __str__(self) -> str:
        return f"request of {self.generation_id.hex}"


class GenerationOutput(models.Model):
    """The final token log of a generation whose output is kept, zlib-compressed msgpack list of log entries."""

    generation = models.OneToOneField(
        Generation, on_delete=models.CASCADE, primary_key=True, related_name="output"
    )
    events = models.BinaryField()

    objects = TenantManager("generation__tenant")

    def __str__(self) -> str:
        return f"output of {self.generation_id.hex}"
