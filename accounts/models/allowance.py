from __future__ import annotations

import uuid

from django.db import models

from accounts.budget_windows import Period
from accounts.limits import LimitName, Limits
from accounts.models.tenant import Tenant
from accounts.tenancy import TenantManager


def _limit(what: str) -> models.PositiveBigIntegerField[int | None, int | None]:
    return models.PositiveBigIntegerField(
        null=True, blank=True, help_text=f"{what} Empty: no limit. 0: none at all."
    )


class Allowance(models.Model):
    """How much an entitlement, or a key, may use; and how many of its generations are live.

    Whoever reserves or settles locks this row first: it guards its windows. A key's successor by rotation shares its
    allowance, so that a rotation gives nobody a second budget.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="allowances", editable=False)
    tokens_per_day = _limit("Tokens (prompt and answer) in a day of the tenant's calendar.")
    tokens_per_week = _limit("Tokens in a week, from Monday on.")
    tokens_per_month = _limit("Tokens in a calendar month.")
    requests_per_minute = _limit("Generations accepted in any 60 seconds.")
    tokens_per_minute = _limit(
        "Tokens accepted in any 60 seconds, by what a generation may use at most: its prompt and its max_tokens."
    )
    concurrency = _limit("Generations that wait or run at the same time.")
    live_generations = models.PositiveIntegerField(default=0, editable=False)

    objects = TenantManager()

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(live_generations__gte=0), name="allowance_live_not_negative"
            ),
        ]

    def __str__(self) -> str:
        return f"allowance {self.id}"

    @property
    def limits(self) -> Limits:
        """Its limits as a plain value."""
        return Limits(**{name.value: getattr(self, name.value) for name in LimitName})


class BudgetWindow(models.Model):
    """What an allowance has used, and holds reserved, in one day, week or month of its tenant's calendar.

    Tokens. Windows of one allowance and period never overlap: a reservation finds the ones it was made in by its time.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    allowance = models.ForeignKey(Allowance, on_delete=models.PROTECT, related_name="windows")
    period = models.CharField(max_length=5, choices=[(period.value, period.value) for period in Period])
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    used = models.PositiveBigIntegerField(default=0)
    reserved = models.PositiveBigIntegerField(default=0)
    #: The highest share of the limit, in percent, that was told: 0, 80 or 100.
    told_percent = models.PositiveSmallIntegerField(default=0)

    objects = TenantManager("allowance__tenant")

    class Meta:
        ordering = ["-starts_at"]
        constraints = [
            models.UniqueConstraint(fields=["allowance", "period", "starts_at"], name="budget_window_once"),
            models.CheckConstraint(condition=models.Q(used__gte=0), name="budget_window_used_not_negative"),
            models.CheckConstraint(
                condition=models.Q(reserved__gte=0), name="budget_window_reserved_not_negative"
            ),
            models.CheckConstraint(
                condition=models.Q(starts_at__lt=models.F("ends_at")), name="budget_window_has_length"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.period} from {self.starts_at:%Y-%m-%d %H:%M} UTC"


class Reservation(models.Model):
    """What one generation may use at worst, held back from its allowances until it is settled.

    ``tokens`` are the prompt's and the most that it may answer. It counts in the windows that ``reserved_at`` lies in,
    and is settled there, whenever it ends.
    """

    generation_id = models.UUIDField(primary_key=True)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="reservations")
    entitlement_allowance = models.ForeignKey(
        Allowance, on_delete=models.PROTECT, related_name="reservations"
    )
    key_allowance = models.ForeignKey(
        Allowance, on_delete=models.PROTECT, null=True, related_name="key_reservations"
    )
    tokens = models.PositiveBigIntegerField()
    reserved_at = models.DateTimeField()
    settled_tokens = models.PositiveBigIntegerField(null=True)
    settled_at = models.DateTimeField(null=True)

    objects = TenantManager()

    class Meta:
        ordering = ["-reserved_at"]
        indexes = [
            models.Index(
                fields=["reserved_at"], condition=models.Q(settled_at=None), name="reservation_unsettled"
            ),
            models.Index(fields=["entitlement_allowance", "reserved_at"], name="reservation_of_entitlement"),
            models.Index(fields=["key_allowance", "reserved_at"], name="reservation_of_key"),
        ]
        constraints = [
            models.CheckConstraint(
                condition=models.Q(settled_at=None, settled_tokens=None)
                | models.Q(settled_at__isnull=False, settled_tokens__isnull=False),
                name="reservation_settled_with_tokens",
            ),
        ]

    def __str__(self) -> str:
        return f"gen_{self.generation_id.hex}: {self.tokens} tokens"

    @property
    def allowance_ids(self) -> list[uuid.UUID]:
        """The allowances that it is held back from, in the order in which they are locked."""
        ids = {self.entitlement_allowance_id, self.key_allowance_id}
        return sorted(one for one in ids if one is not None)
