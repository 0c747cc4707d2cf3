"""Lane assignments into batches: each batch's root is one event in the chain, so that the hot path writes one row.

A pass finds the assignments that have no leaf yet, hashes them, and then, in one transaction, records the batch's event
and inserts the leaves. Nothing is ever updated. Two passes at once do no harm: an assignment has one leaf (its primary
key), so the later transaction fails as a whole and its pass looks again.

Only the recent past is searched: before it everything is sealed, but for what was committed very late or by a host
whose clock is far behind. A sweep finds that.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.core.cache import cache
from django.db import IntegrityError
from django.db.models import Count, Exists, Min, OuterRef, QuerySet
from django.utils import timezone

from accounts.audit.batches import ACTION, LARGEST, OBJECT_KIND, Batch, place_of
from accounts.audit.contents import AssignmentRow, assignment_leaf
from accounts.audit.recording import ObjectRef, record
from accounts.models import AuditEvent, LaneAssignment, SealedAssignment
from accounts.principal import Actor
from accounts.sole_passes import sole_pass
from accounts.tenancy import every_tenant
from signalbox.write_transactions import write_transaction

#: How late assignments are committed, against the last batch's newest: nearly all of them, and all but for a sweep.
_USUALLY_LATE: Final = timedelta(minutes=1)
_AT_MOST_LATE: Final = timedelta(minutes=10)
#: How often a process that seals each second looks back for the latest ones, and at all there are.
_LOOK_BACK_EVERY_S: Final = 60
_SWEEP_EVERY_S: Final = 3600
#: Batches that are asked how far sealing has come: of one alone, all assignments could be late ones.
_ASKED_BATCHES: Final = 8
#: Seconds after which a pass is taken to be dead.
_LOST_AFTER_S: Final = 60
_ACTOR: Final = Actor.system("sealing")
_REASON: Final = "assignments of all tenants are sealed together"


@dataclass(frozen=True, slots=True)
class Unsealed:
    """How many assignments wait for their batch, and the oldest one's time (None: none waits)."""

    count: int
    oldest_at: datetime | None


def seal_alone(now: datetime) -> int:
    """Seal what waits, unless another process does already; now and then also what is very late. How many."""
    with sole_pass("seal-assignments", at_most_s=_LOST_AFTER_S) as alone:
        if not alone:
            return 0
        if cache.add("audit:sealing-swept", True, _SWEEP_EVERY_S):
            return seal(now, sweep=True)
        looks_back = cache.add("audit:sealing-looked-back", True, _LOOK_BACK_EVERY_S)
        return seal(now, late=_AT_MOST_LATE if looks_back else _USUALLY_LATE)


def seal(now: datetime, *, late: timedelta = _AT_MOST_LATE, sweep: bool = False) -> int:
    """Seal what waits, in batches of at most ``LARGEST``, until nothing does; how many assignments that were.

    Of what is older than the newest sealed one by more than ``late``, all is taken to be sealed. ``sweep``: nothing is.
    """
    sealed = 0
    lost: list[AssignmentRow] = []
    with every_tenant(_REASON):
        since = None if sweep else _searched_since(now, late)
        while waiting := _next(since):
            if _seal(waiting, may_lose=waiting != lost):
                sealed += len(waiting)
            else:
                lost = waiting
    return sealed


def unsealed(*, sweep: bool = False) -> Unsealed:
    """How many assignments wait for their batch, in two queries by index; with ``sweep``, of all there are."""
    with every_tenant(_REASON):
        waiting = _waiting(None if sweep else _searched_since(timezone.now(), _AT_MOST_LATE))
        found = waiting.aggregate(count=Count("generation_id"), oldest_at=Min("created_at"))
    return Unsealed(**found)


def _waiting(since: datetime | None) -> QuerySet[LaneAssignment]:
    has_leaf = Exists(SealedAssignment.objects.filter(generation_id=OuterRef("generation_id")))
    waiting = LaneAssignment.objects.filter(~has_leaf)
    return waiting.filter(created_at__gte=since) if since else waiting


def _next(since: datetime | None) -> list[AssignmentRow]:
    """The oldest ones that wait, in a batch's order."""
    rows: Any = _waiting(since).order_by("created_at").values_list(*AssignmentRow._fields)[:LARGEST]
    return sorted(map(AssignmentRow._make, rows), key=place_of)


def _searched_since(now: datetime, late: timedelta) -> datetime | None:
    """From when on assignments may wait (None: nothing was sealed yet, or all of that is archived).

    Every pass begins with the oldest, so behind the newest sealed one everything may wait, and of what is before it
    what was committed late. A clock that runs ahead must not hide what is behind it: ``now`` is the latest.
    """
    batches = AuditEvent.objects.filter(action=ACTION).order_by("-sequence").values_list("after", flat=True)
    try:
        newest = [datetime.fromisoformat(after["last_at"]) for after in batches[:_ASKED_BATCHES] if after]
        return min(now, max(newest)) - late if newest else None
    except (ValueError, TypeError, KeyError):
        # What was tampered with is for verification to find. Sealing goes on, and searches everything.
        return None


def _seal(assignments: list[AssignmentRow], *, may_lose: bool) -> bool:
    """Seal these; False: another process has sealed some of them meanwhile. Raises ``IntegrityError`` otherwise."""
    leaves = [assignment_leaf(assignment) for assignment in assignments]
    batch = Batch.over(assignments, leaves)
    try:
        with write_transaction():
            event = record(_ACTOR, ACTION, ObjectRef(OBJECT_KIND, batch.root), None, batch.fields())
            SealedAssignment.objects.bulk_create(
                SealedAssignment(
                    generation_id=assignment.generation_id, batch=event.sequence, index=index, hash=leaf
                )
                for index, (assignment, leaf) in enumerate(zip(assignments, leaves, strict=True))
            )
    except IntegrityError:
        # Whoever was faster has sealed what made this fail, so that the same ones do not come again.
        if not may_lose:
            raise
        return False
    return True
