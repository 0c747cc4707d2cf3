from __future__ import annotations

import json
import time
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from accounts import rollup_check
from accounts.actors import command_actor
from accounts.ledger_findings import Finding
from inference import ledger_check
from inference.ledger_check import Report

#: Seconds between two lines that say how far a long check is.
_BETWEEN_LINES_S = 10.0


class Command(BaseCommand):
    help = "Prove that reservations, counters, generations, ledger and hourly sums agree; make the sums anew."

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        verify = verbs.add_parser(
            "verify",
            help="Compare everything with everything; exit 1 if anything is wrong. May run beside traffic.",
        )
        verify.add_argument(
            "--repair",
            action="store_true",
            help="Set right what follows from what was compared, each change in the audit. The rest is told only.",
        )
        verify.add_argument(
            "--json", action="store_true", help="Print one JSON object a finding, for programs."
        )
        verbs.add_parser("rebuild", help="Make the hourly sums of usage anew from the ledger, day by day.")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["verb"] == "rebuild":
            sums = rollup_check.rebuild(actor=command_actor("ledger rebuild"))
            self.stdout.write(f"Made {sums:,} hourly sums anew.")
            return
        report = ledger_check.verify(
            self._as_json if options["json"] else self._as_line,
            repair_as=command_actor("ledger verify --repair") if options["repair"] else None,
            advance=self._progress(),
        )
        ledger_check.keep(report)
        looked_at = ", ".join(f"{count:,} {kind}" for kind, count in report.checked.items()) or "nothing"
        if report.holds:
            mended = (
                f" {report.repaired.total():,} findings were repaired." if report.repaired.total() else ""
            )
            self.stderr.write(f"The books hold: looked at {looked_at}.{mended}")
            return
        raise CommandError(_left(report))

    def _as_line(self, finding: Finding) -> None:
        self.stdout.write(str(finding))

    def _as_json(self, finding: Finding) -> None:
        line = {
            "code": finding.code,
            "kind": finding.subject.kind,
            "id": finding.subject.id,
            "name": finding.subject.name,
            "tenant": finding.tenant_id,
            "found": finding.found,
            "expected": finding.expected,
            "repaired": finding.repaired,
        }
        self.stdout.write(json.dumps(line, default=str))

    def _progress(self) -> ledger_check.Advance:
        """A line now and then, where a check takes long."""
        last, done = time.monotonic(), 0

        def advance(kind: str, rows: int) -> None:
            nonlocal last, done
            done += rows
            if time.monotonic() - last >= _BETWEEN_LINES_S:
                last = time.monotonic()
                self.stderr.write(f"{done:,} looked at, now {kind}")

        return advance


def _left(report: Report) -> str:
    left = report.found - report.repaired
    codes = ", ".join(f"{count:,} × {code}" for code, count in sorted(left.items()))
    repaired = f" {report.repaired.total():,} were repaired." if report.repaired.total() else ""
    return (
        f"The books do not hold: {codes}.{repaired} What can be repaired, `manage.py ledger verify --repair` does; "
        "see docs/ledger.md for what each means."
    )
