from __future__ import annotations

import uuid

from django.db import models

from accounts.models.tenant import Tenant
from accounts.models.user import User
from accounts.tenancy import TenantManager


class WebhookEndpoint(models.Model):
    """Where a tenant is told of its budgets. Its signing secret is derived from the pepper, and stored nowhere.

    ``secret_version`` and ``pepper_id`` say which secret: a new version is a new secret.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="webhook_endpoints")
    url = models.URLField(max_length=500)
    description = models.CharField(max_length=200, blank=True)
    secret_version = models.PositiveIntegerField(default=1, editable=False)
    pepper_id = models.CharField(max_length=16, editable=False)
    created_by = models.ForeignKey(User, on_delete=models.PROTECT, null=True, blank=True, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)
    ended_at = models.DateTimeField(null=True, blank=True, editable=False)

    objects = TenantManager()

    class Meta:
        ordering = ["tenant", "url"]

    def __str__(self) -> str:
        return self.url


class WebhookDelivery(models.Model):
    """One event on its way to one endpoint: sent again with growing waits until it is taken or given up."""

    class State(models.TextChoices):
        """Where it stands."""

        PENDING = "pending", "Waiting"
        DELIVERED = "delivered", "Delivered"
        FAILED = "failed", "Given up"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    endpoint = models.ForeignKey(WebhookEndpoint, on_delete=models.PROTECT, related_name="deliveries")
    event_id = models.UUIDField()
    event_type = models.CharField(max_length=60)
    payload = models.JSONField()
    state = models.CharField(max_length=10, choices=State, default=State.PENDING)
    attempts = models.PositiveSmallIntegerField(default=0)
    next_attempt_at = models.DateTimeField(null=True, blank=True)
    last_status = models.PositiveSmallIntegerField(null=True, blank=True, help_text="HTTP status.")
    last_error = models.CharField(max_length=300, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    delivered_at = models.DateTimeField(null=True, blank=True)

    objects = TenantManager("endpoint__tenant")

    class Meta:
        ordering = ["-created_at"]
        verbose_name_plural = "webhook deliveries"
        indexes = [
            models.Index(
                fields=["next_attempt_at"], condition=models.Q(state="pending"), name="webhook_delivery_due"
            ),
        ]
        constraints = [
            models.UniqueConstraint(fields=["endpoint", "event_id"], name="webhook_delivery_once"),
            models.CheckConstraint(
                condition=models.Q(state__in=["pending", "delivered", "failed"]),
                name="webhook_delivery_state_known",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.event_type} to {self.endpoint_id}"
