from __future__ import annotations

from django.db import models

from accounts.tenancy import TenantManager


class LedgerEntry(models.Model):
    """What one generation used, written once, when it is settled. Every other usage view is a sum of these."""

    generation_id = models.UUIDField(primary_key=True)
    tenant_id = models.UUIDField()
    api_key_id = models.UUIDField(null=True)
    user_id = models.UUIDField(null=True)
    model = models.CharField(max_length=200)
    lane = models.CharField(max_length=30)
    prompt_tokens = models.PositiveIntegerField()
    cached_tokens = models.PositiveIntegerField()
    completion_tokens = models.PositiveIntegerField()
    #: Of speculation: guesses that became a part of the completion, and guesses in vain, which are no part of it.
    accepted_prediction_tokens = models.PositiveIntegerField(default=0)
    rejected_prediction_tokens = models.PositiveIntegerField(default=0)
    #: What it cost by the price of the time; both empty where there was none.
    cost = models.DecimalField(max_digits=20, decimal_places=9, null=True)
    currency = models.CharField(max_length=3, blank=True)
    settled_at = models.DateTimeField(db_index=True)

    objects = TenantManager("tenant_id")

    class Meta:
        ordering = ["-settled_at"]
        verbose_name_plural = "ledger"
        indexes = [models.Index(fields=["tenant_id", "settled_at"], name="ledger_of_tenant")]
        constraints = [
            models.CheckConstraint(
                condition=models.Q(cost=None, currency="") | models.Q(cost__gte=0) & ~models.Q(currency=""),
                name="ledger_cost_has_currency",
            ),
        ]

    def __str__(self) -> str:
        return f"gen_{self.generation_id.hex}: {self.prompt_tokens} + {self.completion_tokens} tokens"


class UsageRollup(models.Model):
    """Usage of one hour, summed from the ledger; can be rebuilt from it at any time.

    Its id follows from what it sums (``accounts.ledger``): writing a sum again replaces it.
    """

    id = models.UUIDField(primary_key=True, editable=False)
    tenant_id = models.UUIDField()
    api_key_id = models.UUIDField(null=True)
    model = models.CharField(max_length=200)
    lane = models.CharField(max_length=30)
    hour = models.DateTimeField(help_text="Start of the hour, UTC.")
    generations = models.PositiveIntegerField()
    prompt_tokens = models.PositiveBigIntegerField()
    cached_tokens = models.PositiveBigIntegerField()
    completion_tokens = models.PositiveBigIntegerField()
    accepted_prediction_tokens = models.PositiveBigIntegerField(default=0)
    rejected_prediction_tokens = models.PositiveBigIntegerField(default=0)
    currency = models.CharField(max_length=3, blank=True)
    cost = models.DecimalField(max_digits=24, decimal_places=9, default=0)

    objects = TenantManager("tenant_id")

    class Meta:
        ordering = ["-hour"]
        verbose_name = "hour of usage"
        verbose_name_plural = "usage by hour"
        indexes = [models.Index(fields=["tenant_id", "-hour"], name="usage_rollup_of_tenant")]

    def __str__(self) -> str:
        return f"{self.hour:%Y-%m-%d %H}h {self.model} {self.lane}"
