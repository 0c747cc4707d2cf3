"""Generations without the lane assignment that they were accepted with: what the audit's verification asks for."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from uuid import UUID

from django.db.models import Exists, OuterRef

from accounts.models import LaneAssignment
from accounts.tenancy import every_tenant
from inference.models import Generation


def unassigned_since(at: datetime | None) -> Iterable[UUID]:
    """Those that were accepted at ``at`` or later (None: of all) and have no row, the oldest first. One query."""
    with every_tenant("the audit is verified for all tenants"):
        assigned = Exists(LaneAssignment.objects.filter(generation_id=OuterRef("id")))
        rows = Generation.objects.filter(~assigned).order_by("created_at")
        if at is not None:
            rows = rows.filter(created_at__gte=at)
        return rows.values_list("id", flat=True).iterator()
