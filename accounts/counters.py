"""Whether the counters of an allowance say what its reservations say; where they do not, they can be put right.

A reservation is what was held back, and what of it was used. ``live_generations``, and ``reserved`` and ``used`` of
each window, are sums of reservations, kept beside them so that admission need not add up. Whoever moves one moves the
others in the same transaction, under the allowance's lock: what is compared here under that lock has nothing in flight.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final
from uuid import UUID

from django.db import transaction
from django.db.models import BigIntegerField, Expression, F, Func, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce

from accounts import audit, reservations
from accounts.audit import ObjectRef
from accounts.budget_windows import Period
from accounts.ledger_findings import Finding, FindingCode
from accounts.models import Allowance, BudgetWindow, Reservation
from accounts.principal import Actor

#: The audit's action for every repair of the books.
REPAIR: Final = "ledger.repair"


def check(allowance_id: UUID, *, repair_as: Actor | None = None) -> list[Finding]:
    """In what the allowance and its windows disagree with its reservations; ``repair_as`` sets right what follows.

    Looked at without a lock first, because an allowance may have years of windows; what seems wrong is looked at again
    under the lock, and only what is wrong then is a finding. Needs a scope that sees the tenant.
    """
    held = _held_by(allowance_id).count()
    allowance = Allowance.objects.get(id=allowance_id)
    windows = list(_summed(BudgetWindow.objects.filter(allowance=allowance_id)))
    findings = [*_missing(allowance, windows, held), *_overlapping(allowance, windows)]
    suspects = _differences(allowance, windows)
    if suspects:
        findings += _confirmed(allowance_id, [suspect.row.pk for suspect in suspects], repair_as)
    return findings


def correct(reservation: Reservation, tokens: int) -> None:
    """Let a settled reservation say that so many tokens were used, and the windows that it was made in with it.

    In the caller's transaction; the allowances are locked first.
    """
    reservations.lock(reservation.allowance_ids)
    was = reservation.settled_tokens
    if was is None:
        raise ValueError(f"the reservation of {reservation.generation_id} is not settled: settle it instead")
    if Reservation.objects.filter(pk=reservation.pk, settled_tokens=was).update(settled_tokens=tokens):
        reservations.windows_of(reservation).update(used=F("used") + tokens - was)


@dataclass(frozen=True, slots=True)
class _Difference:
    """One counter that is not the sum that it stands for."""

    code: FindingCode
    row: Allowance | BudgetWindow
    field: str
    found: int
    expected: int


def _differences(allowance: Allowance, windows: Iterable[Any]) -> list[_Difference]:
    live = _held_by(allowance.id).filter(settled_at=None).count()
    differences = [
        _Difference(
            FindingCode.LIVE_GENERATIONS_DIFFER,
            allowance,
            "live_generations",
            allowance.live_generations,
            live,
        )
    ]
    for window in windows:
        differences += [
            _Difference(
                FindingCode.WINDOW_RESERVED_DIFFERS, window, "reserved", window.reserved, window.held
            ),
            _Difference(FindingCode.WINDOW_USED_DIFFERS, window, "used", window.used, window.spent),
        ]
    return [one for one in differences if one.found != one.expected]


def _confirmed(allowance_id: UUID, rows: list[UUID], repair_as: Actor | None) -> list[Finding]:
    """What of the suspects is wrong under the lock, with nothing in flight."""
    with transaction.atomic():
        [allowance] = reservations.lock([allowance_id])
        windows = _summed(BudgetWindow.objects.filter(allowance=allowance_id, id__in=rows))
        differences = _differences(allowance, windows)
        findings = [_finding(one, allowance.tenant_id) for one in differences]
        if repair_as is None:
            return findings
        for one in differences:
            type(one.row).objects.filter(pk=one.row.pk).update(**{one.field: one.expected})
        audit.record_all(repair_as, [repair_of(finding) for finding in findings])
    return [replace(finding, repaired=True) for finding in findings]


def repair_of(finding: Finding) -> audit.Change:
    """How the audit has the repair of ``finding``."""
    return audit.Change(
        action=REPAIR,
        obj=finding.subject,
        before={"finding": finding.code, **finding.found},
        after=dict(finding.expected),
        tenant_id=finding.tenant_id,
    )


def _finding(one: _Difference, tenant_id: UUID) -> Finding:
    return Finding(
        code=one.code,
        subject=audit.reference_of(one.row),
        tenant_id=tenant_id,
        found={one.field: one.found},
        expected={one.field: one.expected},
    )


def _missing(allowance: Allowance, windows: Iterable[Any], held: int) -> list[Finding]:
    """Periods in which reservations were made that lie in no window any more: they count nowhere.

    ``held`` were counted before the windows were read: what was made since can only add to those inside.
    """
    inside: defaultdict[str, int] = defaultdict(int)
    for window in windows:
        inside[window.period] += window.made
    return [
        Finding(
            code=FindingCode.WINDOW_MISSING,
            subject=ObjectRef("allowance", str(allowance.id), str(allowance)),
            tenant_id=allowance.tenant_id,
            found={"period": period.value, "reservations_outside": held - inside[period.value]},
            expected={},
        )
        for period in Period
        if inside[period.value] < held
    ]


def _overlapping(allowance: Allowance, windows: Iterable[BudgetWindow]) -> list[Finding]:
    findings = []
    by_start = sorted(windows, key=lambda window: (window.period, window.starts_at))
    for earlier, later in pairwise(by_start):
        if earlier.period == later.period and earlier.ends_at > later.starts_at:
            findings.append(
                Finding(
                    code=FindingCode.WINDOWS_OVERLAP,
                    subject=audit.reference_of(later),
                    tenant_id=allowance.tenant_id,
                    found={
                        "starts_at": later.starts_at.isoformat(),
                        "earlier_ends_at": earlier.ends_at.isoformat(),
                    },
                    expected={},
                )
            )
    return findings


def _held_by(allowance_id: UUID) -> QuerySet[Reservation]:
    of: QuerySet[Reservation] = Reservation.objects.filter(
        Q(entitlement_allowance=allowance_id) | Q(key_allowance=allowance_id)
    )
    return of


def _summed(windows: QuerySet[BudgetWindow]) -> QuerySet[Any]:
    """Windows with what their reservations say: tokens ``held`` and ``spent``, and how many were ``made`` in them.

    One statement, which sees one moment of the database.
    """
    return windows.annotate(
        held=_sum_inside("SUM", "tokens", settled_at=None),
        spent=_sum_inside("SUM", "settled_tokens", settled_at__isnull=False),
        made=_sum_inside("COUNT", "generation_id"),
    )


def _sum_inside(function: str, field: str, **which: Any) -> Expression:
    # Written out for either allowance, so that each finds its index with the time in it.
    inside = {"reserved_at__gte": OuterRef("starts_at"), "reserved_at__lt": OuterRef("ends_at")}
    made = Reservation.objects.filter(
        Q(entitlement_allowance=OuterRef("allowance"), **inside)
        | Q(key_allowance=OuterRef("allowance"), **inside),
        **which,
    )
    # As a plain function, because an aggregate would group by the reservation.
    total = Func(F(field), function=function, output_field=BigIntegerField())
    return Coalesce(Subquery(made.order_by().annotate(total=total).values("total")), 0)
