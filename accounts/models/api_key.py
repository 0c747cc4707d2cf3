from __future__ import annotations

import uuid

from django.db import models

from accounts.models.allowance import Allowance
from accounts.models.lane import Lane
from accounts.models.tenant import Tenant
from accounts.models.user import User
from accounts.tenancy import TenantManager


class Scope(models.TextChoices):
    """What a key may be used for."""

    INFERENCE = "inference", "Generate: chat, completions, their generations"
    READ = "read", "Read: models, and how generations stand"
    ADMIN = "admin", "Administer its tenant: its keys, limits, usage and costs"
    AUDIT = "audit", "Read the audit of every tenant, as an auditor does"
    OPERATOR = "operator", "Administer every tenant, as an operator does"


class ApiKey(models.Model):
    """An application's credential. Only a keyed hash of it is stored; its text is shown once.

    ``digest`` is HMAC-SHA-256 of the key under the pepper named by ``pepper_id`` (kept outside the
    database); ``prefix`` is public and finds the row.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="api_keys")
    name = models.CharField(max_length=100)
    prefix = models.CharField(max_length=16, unique=True, editable=False)
    digest = models.CharField(max_length=64, editable=False)
    pepper_id = models.CharField(max_length=16, editable=False)
    scopes = models.JSONField(default=list)
    default_lane = models.ForeignKey(
        Lane,
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        help_text="The lane of requests that ask for none (service_tier absent or auto). Empty: normal.",
    )
    allowance = models.ForeignKey(
        Allowance, on_delete=models.PROTECT, related_name="api_keys", editable=False
    )
    allowed_lanes = models.JSONField(
        default=list, blank=True, help_text="Its requests get no other lane. Empty: every lane of the tenant."
    )
    allowed_models = models.JSONField(
        default=list, blank=True, help_text="Names of the models that it may use. Empty: every model."
    )
    allowed_networks = models.JSONField(
        default=list,
        blank=True,
        help_text="Addresses and networks that it may be used from, as in 192.0.2.0/24. Empty: from anywhere.",
    )
    created_by = models.ForeignKey(User, on_delete=models.PROTECT, null=True, blank=True, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(
        null=True, blank=True, help_text="Nothing new starts with it from then on."
    )
    revoked_at = models.DateTimeField(null=True, blank=True, editable=False)
    last_used_at = models.DateTimeField(null=True, blank=True, editable=False)
    rotated_from = models.ForeignKey(
        "self", on_delete=models.PROTECT, null=True, blank=True, related_name="rotated_to", editable=False
    )

    objects = TenantManager()

    class Meta:
        ordering = ["-created_at"]
        verbose_name = "API key"

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"
