from __future__ import annotations

from django.db import models

from accounts.tenancy import TenantManager


class AssignmentReason(models.TextChoices):
    """Why a generation got its lane: the same code in the API, the metrics and the admin."""

    REQUESTED = "requested", "asked for, and entitled"
    KEY_DEFAULT = "key_default", "asked for none: the key's default lane"
    TENANT_DEFAULT = "tenant_default", "asked for none, and the key has no default: normal"
    NOT_ENTITLED = (
        "not_entitled",
        "the tenant is not entitled to the lane asked for: the next lower one it has",
    )
    NOT_ALLOWED_BY_KEY = (
        "not_allowed_by_key",
        "the key is not allowed the lane asked for: the next lower one that it is",
    )
    STEPPED_DOWN = "stepped_down", "a limit of the lane was exhausted: the lane that it steps down to"


class LaneAssignment(models.Model):
    """The append-only record of one generation's lane: asked for, given, why, by which rule.

    Carries ids and names as they were then, and no foreign keys, so that it stays true. Sealed in batches under a root
    that is chained (``SealedAssignment``).
    """

    generation_id = models.UUIDField(primary_key=True)
    tenant_id = models.UUIDField(db_index=True)
    tenant_name = models.CharField(max_length=100)
    api_key_id = models.UUIDField(null=True)
    api_key_prefix = models.CharField(max_length=16, blank=True)
    #: Who they are stands with the user, where it can be erased.
    user_id = models.UUIDField(null=True)
    requested_lane = models.CharField(max_length=30, blank=True)
    given_lane = models.CharField(max_length=30)
    reason = models.CharField(max_length=30, choices=AssignmentReason)
    entitlement_id = models.UUIDField()
    #: Of each lane that was exhausted and stepped down from: ``lane``, ``entitlement_id``, ``limit``.
    step_downs = models.JSONField(default=list)
    #: Where each limit that is set stood when it was given, this generation counted: ``name``, ``limit``, ``used``.
    budget_position = models.JSONField(default=list)
    policy_version = models.PositiveIntegerField()
    created_at = models.DateTimeField(auto_now_add=True)

    objects = TenantManager("tenant_id")

    class Meta:
        ordering = ["-created_at"]
        indexes = [models.Index(fields=["created_at"], name="lane_assignment_by_time")]
        constraints = [
            models.CheckConstraint(
                condition=models.Q(reason__in=AssignmentReason.values), name="assignment_reason_known"
            ),
        ]

    def __str__(self) -> str:
        return f"gen_{self.generation_id.hex}: {self.given_lane}"
