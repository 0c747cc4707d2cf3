from __future__ import annotations

from django.db import models

from accounts.models import Tenant
from accounts.tenancy import TenantManager
from inference.models.generation import Generation


class IdempotencyKey(models.Model):
    """A client's own name for a request, written with what it made: the same name and body again is answered the same.

    ``scope`` says whose name it is: the tenant, the key or user, and the route. ``body_hash`` is SHA-256 of the body.
    """

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="idempotency_keys")
    scope = models.CharField(max_length=120)
    key = models.CharField(max_length=255)
    body_hash = models.CharField(max_length=64)
    generation = models.OneToOneField(
        Generation, on_delete=models.CASCADE, null=True, related_name="idempotency_key"
    )
    #: The answer of a request that makes no generation, as JSON without secrets.
    answer = models.JSONField(null=True)
    created_at = models.DateTimeField(auto_now_add=True, db_index=True)

    objects = TenantManager()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant", "scope", "key"], name="idempotency_key_once"),
            models.CheckConstraint(
                condition=models.Q(generation=None, answer__isnull=False)
                | models.Q(generation__isnull=False, answer=None),
                name="idempotency_key_made_one_thing",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.scope}: {self.key}"
