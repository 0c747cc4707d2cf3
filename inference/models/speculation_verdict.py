from __future__ import annotations

import uuid

from django.db import models

from inference.models.language_model import MOST_DRAFT_TOKENS, LanguageModel


class SpeculationRuling(models.TextChoices):
    """What the measurement says. Values of ``inference.scheduling.speculation.Outcome``."""

    ENABLED = "enabled", "Pays"
    DECLINED = "declined", "Does not pay"
    UNDECIDED = "undecided", "Too close to call"


class SpeculationVerdict(models.Model):
    """Whether speculation pays for one pairing: measured by a worker, kept until it is to be measured again.

    A pairing is a model, a drafter, the hardware they ran on and the draft length. Times are means of the samples, in
    milliseconds.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    language_model = models.ForeignKey(
        LanguageModel, on_delete=models.CASCADE, related_name="speculation_verdicts", verbose_name="model"
    )
    drafter = models.CharField(
        max_length=250, help_text="The drafter's kind; of a draft model, with its name behind a colon."
    )
    hardware = models.CharField(max_length=200, help_text="The device, and the library that computes there.")
    draft_tokens = models.PositiveSmallIntegerField("draft length", help_text="Tokens guessed at most.")
    verdict = models.CharField(max_length=10, choices=SpeculationRuling)
    speedup = models.FloatField(help_text="How many times as fast as without.")
    classic_ms = models.FloatField(help_text="A token, without speculation.")
    round_ms = models.FloatField(help_text="A round: drafting, verifying and bookkeeping.")
    accepted_per_round = models.FloatField(
        help_text="Guesses that held, of a round; it yields one token more."
    )
    batch_cost = models.FloatField(
        null=True, help_text="What one more row adds to a decode tick, as a share of a tick with one row."
    )
    samples = models.PositiveSmallIntegerField(help_text="Generations that were timed.")
    measured_at = models.DateTimeField()

    class Meta:
        ordering = ["language_model", "-measured_at"]
        constraints = [
            models.UniqueConstraint(
                fields=["language_model", "drafter", "hardware", "draft_tokens"],
                name="speculation_verdict_one_per_pairing",
            ),
            models.CheckConstraint(
                condition=models.Q(verdict__in=SpeculationRuling.values), name="speculation_verdict_known"
            ),
            models.CheckConstraint(
                condition=models.Q(draft_tokens__range=(1, MOST_DRAFT_TOKENS)),
                name="speculation_verdict_draft_tokens_in_range",
            ),
            models.CheckConstraint(
                condition=models.Q(
                    speedup__gte=0,
                    classic_ms__gt=0,
                    round_ms__gt=0,
                    accepted_per_round__gte=0,
                    samples__gte=1,
                ),
                name="speculation_verdict_figures_in_range",
            ),
            models.CheckConstraint(
                condition=models.Q(batch_cost__gte=0), name="speculation_verdict_batch_cost_in_range"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.language_model} with {self.drafter}, {self.draft_tokens} tokens, on {self.hardware}"
