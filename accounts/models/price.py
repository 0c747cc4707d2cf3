from __future__ import annotations

import uuid

from django.core.validators import MinValueValidator
from django.db import models

from accounts.models.lane import Lane

#: Prices are for this many tokens.
PRICED_TOKENS = 1_000_000


class Price(models.Model):
    """What a million tokens of one model cost, in one lane or in every lane, from some time on. Followed, not changed.

    The model is named and not referenced: prices outlive what they were for.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    model = models.CharField(max_length=200)
    lane = models.ForeignKey(
        Lane,
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="prices",
        help_text="Empty: every lane that has no price of its own.",
    )
    currency = models.CharField(max_length=3, help_text="ISO 4217, as in EUR.")
    prompt = models.DecimalField(max_digits=14, decimal_places=6, validators=[MinValueValidator(0)])
    cached = models.DecimalField(
        max_digits=14,
        decimal_places=6,
        validators=[MinValueValidator(0)],
        help_text="For the part of the prompt that the prefix cache held.",
    )
    completion = models.DecimalField(max_digits=14, decimal_places=6, validators=[MinValueValidator(0)])
    valid_from = models.DateTimeField(help_text="For generations that end from then on.")

    class Meta:
        ordering = ["model", "lane", "-valid_from"]
        constraints = [
            models.UniqueConstraint(
                fields=["model", "lane", "valid_from"],
                condition=models.Q(lane__isnull=False),
                name="price_of_lane_once",
            ),
            models.UniqueConstraint(
                fields=["model", "valid_from"], condition=models.Q(lane=None), name="price_of_every_lane_once"
            ),
            models.CheckConstraint(
                condition=models.Q(prompt__gte=0, cached__gte=0, completion__gte=0),
                name="price_not_negative",
            ),
        ]

    def __str__(self) -> str:
        return (
            f"{self.model}, {self.lane_id or 'every lane'}: {self.prompt}/{self.completion} {self.currency}"
        )
