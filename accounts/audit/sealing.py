"""Lane assignments into batches: each batch's root is one event in the chain, so that the hot path writes one row.

A pass finds the assignments that have no leaf yet, hashes them, and then, in one transaction, records the batch's event
and inserts the leaves. Nothing is ever updated. Two passes at once do no harm: an assignment has one leaf (its primary
key), so the later transaction fails as a whole and its pass looks again.

Only the recent past is searched: before it everything is sealed, but for what was committed very late or by a host
whose clock is far behind. A sweep finds that.

A row that cannot be read, or is written otherwise than Signalbox writes it, was changed in the database itself. It is
passed over, so that it holds up no other, and waits: verification names it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

import structlog
from django.core.cache import cache
from django.db import IntegrityError
from django.db.models import Count, Exists, Min, OuterRef, Q, QuerySet
from django.utils import timezone

from accounts.audit.batches import ACTION, LARGEST, OBJECT_KIND, Batch, place_of
from accounts.audit.contents import AssignmentRow, assignment_leaf
from accounts.audit.recording import ObjectRef, record
from accounts.audit.row_pages import NOT_READ, columns_of, page, require_database
from accounts.audit.written_forms import UNREADABLE, UNREADABLE_PAGE, WrittenForm
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
#: Rows that one pass goes on behind.
_MOST_PASSED_OVER: Final = 100
_ACTOR: Final = Actor.system("sealing")
_REASON: Final = "assignments of all tenants are sealed together"
_ASSIGNMENT: Final = WrittenForm(LaneAssignment, AssignmentRow._fields)

_log = structlog.get_logger(__name__)
#: What this process has logged: a pass comes each second.
_logged: set[Unsealable] = set()

#: An assignment and its leaf hash.
_Leaf = tuple[AssignmentRow, str]


@dataclass(frozen=True, slots=True)
class Unsealed:
    """How many assignments wait for their batch, and the oldest one's time (None: none waits, or it cannot be read)."""

    count: int
    oldest_at: datetime | None


@dataclass(frozen=True, slots=True)
class Unsealable:
    """An assignment that waits and cannot be sealed: its generation, as far as that can be read, and why."""

    generation_id: str
    problem: str


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
    sealed = passed_over = 0
    lost: list[_Leaf] = []
    with every_tenant(_REASON):
        since = None if sweep else _searched_since(now, late)
        while passed_over < _MOST_PASSED_OVER:
            # What was passed over is the oldest that waits: all before it is sealed.
            waiting, unsealable = _next(_in_order(since), passed_over)
            if waiting and not _seal(waiting, may_lose=waiting != lost):
                lost = waiting
                continue
            sealed += len(waiting)
            if unsealable is not None:
                _tell(unsealable)
                passed_over += 1
            elif not waiting:
                break
    return sealed


def unsealed(*, sweep: bool = False) -> Unsealed:
    """How many assignments wait for their batch, in two queries by index; with ``sweep``, of all there are."""
    with every_tenant(_REASON):
        waiting = _waiting(None if sweep else _searched_since(timezone.now(), _AT_MOST_LATE))
        try:
            return Unsealed(**waiting.aggregate(count=Count("generation_id"), oldest_at=Min("created_at")))
        except UNREADABLE_PAGE:
            return Unsealed(waiting.count(), None)


def first_unsealable(*, sweep: bool = False) -> Unsealable | None:
    """The oldest of those that wait which cannot be sealed, of all there are or the recent past; None: all can."""
    with every_tenant(_REASON):
        in_order = _in_order(None if sweep else _searched_since(timezone.now(), _AT_MOST_LATE))
        behind = Q()
        while True:
            waiting, unsealable = _next(in_order.filter(behind), 0)
            if unsealable is not None or not waiting:
                return unsealable
            last = max((assignment for assignment, _ in waiting), key=place_of)
            behind = Q(created_at__gte=last.created_at) & (
                Q(created_at__gt=last.created_at) | Q(generation_id__gt=last.generation_id)
            )


def waiting_generations(*, sweep: bool = False) -> Iterator[UUID]:
    """Those whose assignments wait for their batch, of all there are or the recent past."""
    with every_tenant(_REASON):
        rows = _waiting(None if sweep else _searched_since(timezone.now(), _AT_MOST_LATE))
        return rows.values_list("generation_id", flat=True).iterator()


def _waiting(since: datetime | None) -> QuerySet[LaneAssignment]:
    has_leaf = Exists(SealedAssignment.objects.filter(generation_id=OuterRef("generation_id")))
    waiting = LaneAssignment.objects.filter(~has_leaf)
    return waiting.filter(created_at__gte=since) if since else waiting


def _in_order(since: datetime | None) -> QuerySet[LaneAssignment]:
    return _waiting(since).order_by("created_at", "generation_id")


def _next(in_order: QuerySet[LaneAssignment], start: int) -> tuple[list[_Leaf], Unsealable | None]:
    """A batch of those that wait, behind the first ``start``, in its order; what ended it, if that cannot be sealed."""
    rows, error = page(_ASSIGNMENT, in_order, LARGEST, start)
    leaves: list[_Leaf] = []
    try:
        leaves.extend((row, assignment_leaf(row)) for row in map(AssignmentRow._make, rows))
    except UNREADABLE as unreadable:
        error = unreadable
    if error is None:
        return _sorted(leaves), None
    [generation_id] = columns_of(in_order, start + len(leaves), "generation_id")
    return _sorted(leaves), Unsealable(
        "" if generation_id in (None, NOT_READ) else str(generation_id), str(error)
    )


def _sorted(leaves: list[_Leaf]) -> list[_Leaf]:
    return sorted(leaves, key=lambda leaf: place_of(leaf[0]))


def _tell(unsealable: Unsealable) -> None:
    if unsealable not in _logged:
        _logged.add(unsealable)
        _log.error(
            "audit_assignment_not_sealed",
            generation=unsealable.generation_id,
            problem=unsealable.problem,
        )


def _searched_since(now: datetime, late: timedelta) -> datetime | None:
    """From when on assignments may wait (None: nothing was sealed yet, or all of that is archived).

    Every pass begins with the oldest, so behind the newest sealed one everything may wait, and of what is before it
    what was committed late. A clock that runs ahead must not hide what is behind it: ``now`` is the latest.
    """
    batches = AuditEvent.objects.filter(action=ACTION).order_by("-sequence").values_list("after", flat=True)
    try:
        newest = [datetime.fromisoformat(after["last_at"]) for after in batches[:_ASKED_BATCHES] if after]
        return min(now, max(newest)) - late if newest else None
    except UNREADABLE_PAGE:
        # What was tampered with is for verification to find. Sealing goes on, and searches everything.
        require_database()
        return None


def _seal(waiting: list[_Leaf], *, may_lose: bool) -> bool:
    """Seal these; False: another process has sealed some of them meanwhile. Raises ``IntegrityError`` otherwise."""
    batch = Batch.over([assignment for assignment, _ in waiting], [leaf for _, leaf in waiting])
    try:
        with write_transaction():
            event = record(_ACTOR, ACTION, ObjectRef(OBJECT_KIND, batch.root), None, batch.fields())
            SealedAssignment.objects.bulk_create(
                SealedAssignment(
                    generation_id=assignment.generation_id, batch=event.sequence, index=index, hash=leaf
                )
                for index, (assignment, leaf) in enumerate(waiting)
            )
    except IntegrityError:
        # Whoever was faster has sealed what made this fail, so that the same ones do not come again.
        if not may_lose:
            raise
        return False
    return True
