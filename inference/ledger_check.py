"""The proof that the books hold: reservations, counters, generations, ledger and sums, each against the others.

It may run beside traffic and beside itself. Everything is read in chunks, and what seems wrong is
looked at again where nothing can be in flight: under the allowance's lock, with the generation's row locked, or between
two readings of the ledger. What it repairs, if asked to, follows from what it has compared; the rest is only told.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import structlog
from django.core.cache import cache
from django.db.migrations.recorder import MigrationRecorder
from django.db.models import QuerySet
from django.utils import timezone
from redis.exceptions import RedisError

from accounts import counters, ledger, rollup_check
from accounts.ledger_findings import Finding, FindingCode
from accounts.models import Allowance, LedgerEntry, Reservation
from accounts.principal import Actor
from accounts.tenancy import every_tenant
from inference import ledger_rows
from inference.models import Generation

#: Rows that are read at once.
CHUNK: Final = 1000
#: What was accepted before this was applied has no reservation.
_RESERVED_SINCE: Final = ("accounts", "0007_allowances_and_budgets")
_SLOT: Final = "ledger-check"
#: How long the last result is told: a check that no longer runs is to be noticed.
_TOLD_FOR_S: Final = 3 * 86_400

_log = structlog.get_logger(__name__)

Advance = Callable[[str, int], None]


@dataclass(slots=True)
class Report:
    """What was looked at, by kind of row, and how many findings there were of each kind, repaired ones apart."""

    checked: Counter[str] = field(default_factory=Counter)
    found: Counter[FindingCode] = field(default_factory=Counter)
    repaired: Counter[FindingCode] = field(default_factory=Counter)

    @property
    def holds(self) -> bool:
        """Whether nothing is wrong now."""
        return not self.found - self.repaired


class LastCheck(msgspec.Struct, frozen=True):
    """What the last check left to look after: when it ended (Unix time), and its findings that are not repaired."""

    at: float
    findings: dict[str, int]


def verify(
    tell: Callable[[Finding], None],
    *,
    repair_as: Actor | None = None,
    advance: Advance = lambda kind, rows: None,
) -> Report:
    """Compare everything, and ``tell`` each finding as it is found. Without ``repair_as`` nothing is changed.

    ``advance`` is told what was looked at, by kind of row. Takes about as long as reading the tables does.
    """
    report = Report()

    def looked_at(kind: str, rows: int, findings: list[Finding]) -> None:
        report.checked[kind] += rows
        for finding in findings:
            report.found[finding.code] += 1
            report.repaired[finding.code] += finding.repaired
            tell(finding)
        advance(kind, rows)

    with every_tenant("the books are compared for every tenant"):
        _check_counters(looked_at, repair_as)
        _check_rows(looked_at, repair_as)
        _check_sums(looked_at, repair_as)
    return report


def keep(report: Report) -> None:
    """Leave what the check has found for the metrics, which other processes show."""
    left = {code.value: report.found[code] - report.repaired[code] for code in FindingCode}
    try:
        cache.set(_SLOT, msgspec.to_builtins(LastCheck(time.time(), left)), timeout=_TOLD_FOR_S)
    except RedisError:
        _log.warning("ledger_check_not_kept", exc_info=True)


def last_check() -> LastCheck | None:
    """What the last check found; None: there was none in the last days. Raises ``redis.RedisError``."""
    kept = cache.get(_SLOT)
    return None if kept is None else msgspec.convert(kept, LastCheck)


_LookedAt = Callable[[str, int, list[Finding]], None]


def _check_counters(looked_at: _LookedAt, repair_as: Actor | None) -> None:
    for page in _pages(Allowance.objects.only("id")):
        for allowance in page:
            looked_at("allowances", 1, counters.check(allowance.id, repair_as=repair_as))


def _check_rows(looked_at: _LookedAt, repair_as: Actor | None) -> None:
    since = _reserved_since()
    for page in _pages(Generation.objects.only(*ledger_rows.FIELDS)):
        findings = ledger_rows.check(page, reserved_since=since, repair_as=repair_as)
        looked_at("generations", len(page), findings)
    for rows, code, kind in (
        (Reservation.objects, FindingCode.RESERVATION_WITHOUT_GENERATION, "reservation"),
        (LedgerEntry.objects, FindingCode.ENTRY_WITHOUT_GENERATION, "ledger_entry"),
    ):
        for page in _pages(rows.only("pk")):
            ids = [row.pk for row in page]
            findings = ledger_rows.without_generation(rows.all(), ids, code, kind)
            looked_at("reservations" if kind == "reservation" else "entries", len(page), findings)


def _check_sums(looked_at: _LookedAt, repair_as: Actor | None) -> None:
    ledger.roll_up(timezone.now())
    extent = ledger.extent_of_usage()
    for since, until in ledger.steps(*extent) if extent else ():
        findings = rollup_check.check(since, until, now=timezone.now(), repair_as=repair_as)
        looked_at("days of usage", 1, findings)


def _pages(rows: QuerySet[Any]) -> Iterator[list[Any]]:
    """All rows in the order of their keys, a chunk in each query: no cursor is held open beside what is written."""
    page = list(rows.order_by("pk")[:CHUNK])
    while page:
        yield page
        page = list(rows.filter(pk__gt=page[-1].pk).order_by("pk")[:CHUNK])


def _reserved_since() -> datetime:
    app, name = _RESERVED_SINCE
    applied = MigrationRecorder.Migration.objects.filter(app=app, name=name).first()
    return applied.applied if applied else datetime.min.replace(tzinfo=UTC)
