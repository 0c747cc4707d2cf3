from __future__ import annotations

import uuid
from datetime import datetime
from typing import Final

from django.db import models
from django.db.models import F, Q

from accounts.models.allowance import Allowance
from accounts.models.lane import Lane
from accounts.models.tenant import Tenant
from accounts.models.user import User
from accounts.tenancy import TenantManager


class Approval(models.TextChoices):
    """Whether a second person had to agree to a grant, and did."""

    NOT_NEEDED = "not_needed", "Not needed"
    REQUESTED = "requested", "Requested"
    APPROVED = "approved", "Approved"
    REFUSED = "refused", "Refused"


#: Approvals with which an entitlement gives its rights, when its time has come.
GIVING: Final = (Approval.NOT_NEEDED, Approval.APPROVED)


def giving_from(now: datetime) -> Q:
    """The entitlements that give their rights at ``now`` or will: granted, not ended, and their time not over."""
    return Q(Q(ends_at=None) | Q(ends_at__gt=now), ended_at=None, approval__in=GIVING)


class OnExhausted(models.TextChoices):
    """What becomes of a request that does not fit in the entitlement's limits."""

    REFUSE = "refuse", "It is refused (429)"
    STEP_DOWN = "step_down", "It goes to a lower lane"


class Entitlement(models.Model):
    """What a tenant may do in one lane, and until when.

    Standing (from ``starts_at`` until it is ended; one a lane), or temporary (until ``ends_at``; any number).
    Both ends hold to the second, because they are compared with the clock and not acted on by a job. One that waits
    for approval, or was refused it, gives nothing.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="entitlements")
    lane = models.ForeignKey(Lane, on_delete=models.PROTECT, related_name="entitlements")
    allowance = models.OneToOneField(
        Allowance, on_delete=models.PROTECT, related_name="entitlement", editable=False
    )
    starts_at = models.DateTimeField(
        null=True, blank=True, help_text="Gives nothing before. Empty: from the grant on."
    )
    ends_at = models.DateTimeField(
        null=True,
        blank=True,
        help_text="Gives nothing from then on; what runs may finish. Empty: standing, until it is ended.",
    )
    weight = models.PositiveIntegerField(
        default=1,
        help_text="Share of the lane among its tenants: a tenant of weight 2 gets twice that of weight 1.",
    )
    speculation = models.BooleanField(
        default=True,
        help_text="Its streams in this lane take their turns with the drafter where a model has one: they are faster "
        "then, and others wait for the drafter. Off: they decode plainly, to the same answers.",
    )
    longest_queue_wait_s = models.PositiveIntegerField(
        null=True,
        blank=True,
        verbose_name="longest queue wait, seconds",
        help_text="A generation that has waited for a worker for longer is ended as expired. Empty: no such limit.",
    )
    on_exhausted = models.CharField(
        max_length=10,
        choices=OnExhausted,
        default=OnExhausted.REFUSE,
        help_text="What becomes of a request that does not fit in the limits.",
    )
    step_down_to = models.ForeignKey(
        Lane,
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="stepped_down_to_by",
        help_text="The lower lane that it goes to then, if the tenant may use that.",
    )
    reason = models.CharField(max_length=200, blank=True, help_text="Why it was granted, for the auditor.")
    granted_by = models.ForeignKey(
        User,
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        editable=False,
        related_name="granted_entitlements",
    )
    created_at = models.DateTimeField(auto_now_add=True)
    ended_at = models.DateTimeField(null=True, blank=True, editable=False)
    approval = models.CharField(max_length=10, choices=Approval, default=Approval.NOT_NEEDED, editable=False)
    decided_by = models.ForeignKey(
        User,
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        editable=False,
        related_name="decided_entitlements",
    )
    decided_at = models.DateTimeField(null=True, blank=True, editable=False)
    decision_reason = models.CharField(max_length=200, blank=True, editable=False)
    replaces = models.ForeignKey(
        "self",
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        editable=False,
        related_name="replaced_by",
        help_text="The entitlement that ends when this one is approved.",
    )

    objects = TenantManager()

    class Meta:
        ordering = ["tenant", "lane"]
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "lane"],
                condition=Q(ended_at=None, ends_at=None, approval__in=["not_needed", "approved"]),
                name="entitlement_one_standing_per_lane",
            ),
            models.CheckConstraint(condition=Q(weight__gte=1), name="entitlement_weight_positive"),
            models.CheckConstraint(
                condition=Q(ends_at=None) | Q(starts_at=None) | Q(starts_at__lt=F("ends_at")),
                name="entitlement_starts_before_it_ends",
            ),
            models.CheckConstraint(
                condition=Q(on_exhausted="refuse", step_down_to=None)
                | Q(on_exhausted="step_down", step_down_to__isnull=False),
                name="entitlement_step_down_names_lane",
            ),
            models.CheckConstraint(
                condition=Q(approval__in=["not_needed", "requested"], decided_by=None, decided_at=None)
                | Q(approval__in=["approved", "refused"], decided_by__isnull=False, decided_at__isnull=False),
                name="entitlement_decided_iff_decided",
            ),
            # Where the requester is not known, nobody may decide: NULL would pass the comparison.
            models.CheckConstraint(
                condition=Q(decided_by=None) | (Q(granted_by__isnull=False) & ~Q(decided_by=F("granted_by"))),
                name="entitlement_approver_is_another",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.tenant}: {self.lane_id}"

    def gives_at(self, now: datetime) -> bool:
        """Whether it gives its rights at ``now``."""
        return (
            self.approval in GIVING
            and (self.ended_at is None or now < self.ended_at)
            and (self.starts_at is None or self.starts_at <= now)
            and (self.ends_at is None or now < self.ends_at)
        )
