from __future__ import annotations

from django.db import models


class AuditEvent(models.Model):
    """One change, by whom, before and after. Append-only; each row's hash covers the previous one's.

    Written by ``accounts.audit.record`` alone. Carries ids and names as they were, and no foreign keys.
    """

    sequence = models.PositiveBigIntegerField(primary_key=True)
    at = models.DateTimeField()
    actor_kind = models.CharField(max_length=10)
    actor_id = models.CharField(max_length=36, blank=True)
    actor_name = models.CharField(max_length=150)
    action = models.CharField(max_length=60)
    object_kind = models.CharField(max_length=40)
    object_id = models.CharField(max_length=64)
    object_name = models.CharField(max_length=200, blank=True)
    tenant_id = models.UUIDField(null=True, db_index=True)
    before = models.JSONField(null=True)
    after = models.JSONField(null=True)
    request_id = models.CharField(max_length=64, blank=True)
    address = models.CharField(max_length=45, blank=True)
    previous_hash = models.CharField(max_length=64)
    hash = models.CharField(max_length=64, unique=True)

    class Meta:
        ordering = ["-sequence"]
        verbose_name_plural = "audit"
        indexes = [models.Index(fields=["object_kind", "object_id"], name="audit_event_of_object")]

    def __str__(self) -> str:
        return f"{self.sequence}: {self.action} {self.object_name}"


class AuditHead(models.Model):
    """The chain's last sequence number and hash: one row, locked last in a transaction."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    sequence = models.PositiveBigIntegerField()
    hash = models.CharField(max_length=64)

    class Meta:
        constraints = [models.CheckConstraint(condition=models.Q(id=1), name="audit_head_single_row")]

    def __str__(self) -> str:
        return f"head at {self.sequence}"
