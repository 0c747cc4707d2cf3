from __future__ import annotations

import uuid

from django.db import models

from accounts.models.lane import Lane
from accounts.models.tenant import Tenant
from accounts.models.user import User
from accounts.tenancy import TenantManager


class Entitlement(models.Model):
    """What a tenant may do in one lane. Standing: it holds until it is ended."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="entitlements")
    lane = models.ForeignKey(Lane, on_delete=models.PROTECT, related_name="entitlements")
    weight = models.PositiveIntegerField(
        default=1,
        help_text="Share of the lane among its tenants: a tenant of weight 2 gets twice that of weight 1.",
    )
    speculation = models.BooleanField(
        default=True,
        help_text="Its streams in this lane take their turns with the drafter where a model has one: they are faster "
        "then, and others wait for the drafter. Off: they decode plainly, to the same answers.",
    )
    reason = models.CharField(max_length=200, blank=True, help_text="Why it was granted, for the auditor.")
    granted_by = models.ForeignKey(User, on_delete=models.PROTECT, null=True, blank=True, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)
    ended_at = models.DateTimeField(null=True, blank=True, editable=False)

    objects = TenantManager()

    class Meta:
        ordering = ["tenant", "lane"]
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "lane"],
                condition=models.Q(ended_at=None),
                name="entitlement_one_standing_per_lane",
            ),
            models.CheckConstraint(condition=models.Q(weight__gte=1), name="entitlement_weight_positive"),
        ]

    def __str__(self) -> str:
        return f"{self.tenant}: {self.lane_id}"
