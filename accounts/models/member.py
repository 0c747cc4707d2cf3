from __future__ import annotations

from django.db import models

from accounts.models.tenant import Tenant
from accounts.models.user import User
from accounts.tenancy import TenantManager


class Role(models.TextChoices):
    """What a member may do, from most to least."""

    OWNER = "owner", "Owner"
    ADMIN = "admin", "Admin"
    MEMBER = "member", "Member"
    VIEWER = "viewer", "Viewer"


class Membership(models.Model):
    """A user's role in a tenant; ended, never deleted."""

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="memberships")
    user = models.ForeignKey(User, on_delete=models.PROTECT, related_name="memberships")
    role = models.CharField(max_length=10, choices=Role)
    created_at = models.DateTimeField(auto_now_add=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    objects = TenantManager()

    class Meta:
        ordering = ["tenant", "user"]
        verbose_name_plural = "members"
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "user"],
                condition=models.Q(ended_at=None),
                name="membership_one_live_per_user",
            ),
            models.CheckConstraint(condition=models.Q(role__in=Role.values), name="membership_role_known"),
        ]

    def __str__(self) -> str:
        return f"{self.user} in {self.tenant} as {self.role}"
