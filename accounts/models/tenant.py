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
        help_text="Workers learn from this tenant's answers which tokens tend to follow which, and guess by that: its "
        "later answers come sooner. What is kept are counts of short token sequences of its answers, in a file of its "
        "own on the machine of the worker, used for this tenant alone. Off: nothing more is learned, and what was "
        "learned is not used; manage.py pool forget deletes it.",
    )
    created_at = models.DateTimeField(auto_now_add=True)
    closed_at = models.DateTimeField(
        null=True, blank=True, help_text="From then on nothing of this tenant starts."
    )

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name
