from __future__ import annotations

import uuid

from django.db import models


class Tenant(models.Model):
    """A customer of the platform: a team, or an application's owner. Closed, never deleted."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.CharField(max_length=100)
    slug = models.SlugField(
        max_length=60, unique=True, help_text="Short name, for logs, metrics and commands."
    )
    suffix_pool = models.BooleanField(
        default=False,
        help_text="On: workers learn from this tenant's answers what follows what, and guess by that, so that later "
        "answers that resemble earlier ones come sooner. For each model the newest answers are kept for it, as tokens, "
        "which can be read as text, in a file of this tenant's own on the worker's disk; no other tenant's streams "
        "use them. Off: nothing is learned or used; what was kept stays until manage.py pool forget deletes it.",
    )
    time_zone = models.CharField(
        max_length=60,
        default="UTC",
        help_text="Its budgets' days, weeks and months are of this zone's calendar, as in Asia/Seoul. A change takes "
        "effect when the current window ends.",
    )
    created_at = models.DateTimeField(auto_now_add=True)
    closed_at = models.DateTimeField(
        null=True, blank=True, help_text="From then on nothing of this tenant starts."
    )

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name
