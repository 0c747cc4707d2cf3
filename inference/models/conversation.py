from __future__ import annotations

import uuid

from django.db import models

from accounts.models import Lane, Tenant, User
from accounts.tenancy import TenantManager
from inference.models.language_model import LanguageModel


class Conversation(models.Model):
    """A stored chat of one user in one tenant."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="conversations")
    user = models.ForeignKey(User, on_delete=models.PROTECT, related_name="conversations")
    title = models.CharField(max_length=120)
    model = models.ForeignKey(LanguageModel, on_delete=models.PROTECT, related_name="conversations")
    lane = models.ForeignKey(Lane, on_delete=models.PROTECT, null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    objects = TenantManager()

    class Meta:
        ordering = ["-updated_at"]
        indexes = [models.Index(fields=["user", "-updated_at"], name="conversation_of_user")]

    def __str__(self) -> str:
        return self.title


class ChatRole(models.TextChoices):
    """Who speaks."""

    SYSTEM = "system", "System"
    USER = "user", "User"
    ASSISTANT = "assistant", "Assistant"


class ChatMessage(models.Model):
    """One turn. An assistant's turn names its generation; its content is filled in at settlement."""

    conversation = models.ForeignKey(Conversation, on_delete=models.CASCADE, related_name="messages")
    position = models.PositiveIntegerField()
    role = models.CharField(max_length=10, choices=ChatRole)
    content = models.TextField(blank=True)
    generation = models.OneToOneField(
        "inference.Generation", on_delete=models.SET_NULL, null=True, blank=True, related_name="chat_message"
    )
    created_at = models.DateTimeField(auto_now_add=True)

    objects = TenantManager("conversation__tenant")

    class Meta:
        ordering = ["conversation", "position"]
        constraints = [
            models.UniqueConstraint(fields=["conversation", "position"], name="chat_message_position_unique"),
            models.CheckConstraint(
                condition=models.Q(role__in=ChatRole.values), name="chat_message_role_known"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.role} {self.position}"
