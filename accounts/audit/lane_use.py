"""Who ran in which lane over some time, and by what right: assignments summed by who asked and what entitled them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models import Count, Max, Min, QuerySet

from accounts.audit.entitlement_records import EntitlementRecord, records_of
from accounts.audit.names import Names
from accounts.models import Entitlement, LaneAssignment


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """How often somebody ran in a lane by one entitlement (``right`` None: it is not there any more).

    ``who``: a person as the audit last called them by then, or the beginning of a key.
    """

    lane: str
    tenant: str
    who: str
    generations: int
    first_at: datetime
    last_at: datetime
    entitlement_id: UUID
    right: EntitlementRecord | None


@dataclass(frozen=True, slots=True)
class Uses:
    """The uses, most first, and how many there are beside those that are listed."""

    listed: Sequence[Use]
    more: int

    @property
    def generations(self) -> int:
        """How many generations those that are listed come to."""
        return sum(one.generations for one in self.listed)


def uses_in(assignments: QuerySet[LaneAssignment], *, most: int = 50) -> Uses:
    """Sum ``assignments`` up. One query over them, and a few for what they name."""
    summed = list(
        assignments.order_by()
        .values("given_lane", "tenant_id", "tenant_name", "api_key_prefix", "user_id", "entitlement_id")
        .annotate(n=Count("generation_id"), first_at=Min("created_at"), last_at=Max("created_at"))
        .order_by("-n", "tenant_name", "api_key_prefix")
    )
    listed = summed[:most]
    people = Names.of(
        (row["user_id"] for row in listed), until=max((row["last_at"] for row in listed), default=None)
    )
    rights = records_of(
        Entitlement.objects.filter(id__in={row["entitlement_id"] for row in listed}).select_related(
            "tenant", "allowance", "granted_by", "decided_by"
        )
    )
    return Uses(
        [
            Use(
                lane=row["given_lane"],
                tenant=row["tenant_name"],
                who=(people.get(row["user_id"]) or str(row["user_id"]))
                if row["user_id"]
                else f"sb_{row['api_key_prefix']}…",
                generations=row["n"],
                first_at=row["first_at"],
                last_at=row["last_at"],
                entitlement_id=row["entitlement_id"],
                right=rights.get(row["entitlement_id"]),
            )
            for row in listed
        ],
        max(0, len(summed) - most),
    )
