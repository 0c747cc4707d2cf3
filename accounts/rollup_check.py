"""Whether the hourly sums of usage are the sums of the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.db import transaction

from accounts import audit, ledger
from accounts.audit import ObjectRef
from accounts.counters import repair_of
from accounts.ledger_findings import Finding, FindingCode
from accounts.models import UsageRollup
from accounts.principal import Actor

_FIGURES = ("generations", *ledger.TOKEN_COUNTS, "cost")
#: SQLite keeps decimals as floating-point numbers, of which 15 digits are right: all of them, below a million.
_EXACT_BELOW = Decimal(1_000_000)
_DIGITS_BEYOND = 14

_Sums = Mapping[UUID, UsageRollup]


def check(
    since: datetime, until: datetime, *, now: datetime, repair_as: Actor | None = None
) -> list[Finding]:
    """In what the sums of the hours from ``since`` to before ``until`` disagree with the ledger.

    ``repair_as`` makes those hours' sums anew. Entries are written meanwhile and never changed: a sum is right that is
    at least what the ledger had before it was read, and at most what it had afterwards. Needs a scope that sees all.
    """
    before, kept = _of_ledger(since, until), _kept(since, until)
    if _wrong(before, kept, before):
        ledger.roll_up(now)
        kept = _kept(since, until)
    after = _of_ledger(since, until)
    findings = [_finding(one, kept.get(one), after.get(one)) for one in _wrong(before, kept, after)]
    if not findings or repair_as is None:
        return findings
    with transaction.atomic():
        ledger.resum(since, until)
        audit.record_all(repair_as, [repair_of(finding) for finding in findings])
    return [replace(finding, repaired=True) for finding in findings]


def rebuild(*, actor: Actor) -> int:
    """Make all hourly sums anew from the ledger; returns how many there are.

    Each day is a transaction of its own: the event is there before the first of them.
    """
    with transaction.atomic():
        audit.record(actor, "ledger.rebuild", ObjectRef("usage_rollup", "all"), None, None)
    return ledger.rebuild()


def _of_ledger(since: datetime, until: datetime) -> _Sums:
    return {row.id: row for row in ledger.hourly_sums(since, until)}


def _kept(since: datetime, until: datetime) -> _Sums:
    return {row.id: row for row in UsageRollup.objects.filter(hour__gte=since, hour__lt=until)}


def _wrong(least: _Sums, kept: _Sums, most: _Sums) -> list[UUID]:
    ids = sorted({*least, *kept, *most})
    return [one for one in ids if not _between(least.get(one), kept.get(one), most.get(one))]


def _between(least: UsageRollup | None, kept: UsageRollup | None, most: UsageRollup | None) -> bool:
    if kept is None:
        return least is None
    if most is None:
        return False
    for figure in _FIGURES:
        value = getattr(kept, figure)
        low, high = getattr(least, figure, 0), getattr(most, figure)
        slack = high.scaleb(-_DIGITS_BEYOND) if figure == "cost" and high >= _EXACT_BELOW else 0
        if not low - slack <= value <= high + slack:
            return False
    return True


def _finding(one: UUID, kept: UsageRollup | None, summed: UsageRollup | None) -> Finding:
    row = kept or summed
    name = f"{row.hour:%Y-%m-%d %H}h UTC, {row.model}, {row.lane}" if row else ""
    found, expected = _figures(kept), _figures(summed)
    differing = [figure for figure in _FIGURES if found[figure] != expected[figure]]
    return Finding(
        code=FindingCode.ROLLUP_DIFFERS,
        subject=ObjectRef("usage_rollup", str(one), name),
        tenant_id=row.tenant_id if row else None,
        found={figure: found[figure] for figure in differing},
        expected={figure: expected[figure] for figure in differing},
    )


def _figures(row: UsageRollup | None) -> dict[str, Any]:
    """As the audit has them: a cost is text, with all its places, so that it prints in one way."""
    figures = {figure: getattr(row, figure, 0) for figure in _FIGURES}
    return {**figures, "cost": f"{Decimal(figures['cost']):.9f}"}
