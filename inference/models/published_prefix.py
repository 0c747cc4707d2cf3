from __future__ import annotations

import uuid

from django.db import models

from inference.models.language_model import LanguageModel


class PublishedPrefix(models.Model):
    """A system prompt whose keys and values all tenants share. Withdrawn, never deleted or changed."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    language_model = models.ForeignKey(
        LanguageModel, on_delete=models.PROTECT, related_name="published_prefixes", verbose_name="model"
    )
    name = models.CharField(max_length=80, help_text="What operators call it. Clients never see it.")
    text = models.TextField(
        help_text="The system prompt, to the letter: a space or an empty line more or less is another prompt."
    )
    published_at = models.DateTimeField(auto_now_add=True)
    withdrawn_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        ordering = ["-published_at"]
        verbose_name_plural = "published prefixes"
        constraints = [
            models.UniqueConstraint(
                fields=["language_model", "name"],
                condition=models.Q(withdrawn_at=None),
                name="published_prefix_one_live_name_per_model",
            ),
        ]

    def __str__(self) -> str:
        return self.name
