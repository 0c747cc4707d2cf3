from __future__ import annotations

from django.db import models


class Lane(models.Model):
    """A priority class; rank 0 is served first. Seeded with high, normal and low."""

    name = models.SlugField(primary_key=True, max_length=30)
    rank = models.PositiveSmallIntegerField(unique=True, help_text="0 is served first.")
    service_tier = models.SlugField(
        max_length=30,
        unique=True,
        help_text="The name that OpenAI's API has for it: priority, default, flex, or the lane's own.",
    )
    description = models.CharField(max_length=200, blank=True)
    approval_above_tokens = models.PositiveBigIntegerField(
        null=True,
        blank=True,
        verbose_name="approval above, tokens a month",
        help_text="From more than so many tokens a month on, all live and requested grants of a tenant in this lane "
        "together, a grant needs a second operator's approval. Empty: never. 0: always.",
    )

    class Meta:
        ordering = ["rank"]

    def __str__(self) -> str:
        return self.name
