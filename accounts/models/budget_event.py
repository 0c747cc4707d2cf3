from __future__ import annotations

import uuid

from django.db import models

from accounts.models.allowance import Allowance, BudgetWindow
from accounts.models.tenant import Tenant
from accounts.tenancy import TenantManager


class BudgetEvent(models.Model):
    """A budget came to 80 % or 100 % of its limit in one window: written once, told by e-mail and webhook.

    Carries the figures as they were. ``told_at``: when its messages were handed on.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="budget_events")
    allowance = models.ForeignKey(Allowance, on_delete=models.PROTECT, related_name="budget_events")
    window = models.ForeignKey(BudgetWindow, on_delete=models.PROTECT, related_name="events")
    subject = models.CharField(max_length=200, help_text="Whose budget: the lane, or the key.")
    percent = models.PositiveSmallIntegerField()
    limit = models.PositiveBigIntegerField()
    used = models.PositiveBigIntegerField()
    reserved = models.PositiveBigIntegerField()
    resets_at = models.DateTimeField()
    created_at = models.DateTimeField(auto_now_add=True)
    told_at = models.DateTimeField(null=True, blank=True)

    objects = TenantManager()

    class Meta:
        ordering = ["-created_at"]
        constraints = [
            models.UniqueConstraint(fields=["window", "percent"], name="budget_event_once"),
            models.CheckConstraint(
                condition=models.Q(percent__in=[80, 100]), name="budget_event_percent_known"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.subject}: {self.percent} %"
