from __future__ import annotations

import json
from argparse import ArgumentParser
from datetime import datetime
from typing import Any

from django.core.management.base import BaseCommand
from django.utils import timezone

from signalbox.configuration import configuration
from signalbox.installation_status import AuditStatus, InstallationStatus, ProcessStatus, installation_status


class Command(BaseCommand):
    """Shows what runs, with the process numbers that `kill` takes."""

    help = "Show this installation's processes, where it is reached, what waits, and whether it can serve."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="Print one JSON object, for programs.")

    def handle(self, *args: Any, **options: Any) -> None:
        status = installation_status(configuration())
        self.stdout.write(json.dumps(status.as_json(), indent=2) if options["json"] else _text(status))


def _text(status: InstallationStatus) -> str:
    lines = [
        f"Signalbox runs at {status.url}"
        if status.supervisor is not None
        else "Signalbox does not run here: no `manage.py up` holds this state directory. Start it with `make up`.",
        f"State directory: {status.state_dir}",
    ]
    reason = status.readiness.reason
    models = ", ".join(f"{model} {service}" for model, service in status.readiness.models.items())
    said = " · ".join(part for part in (reason, status.problem, models) if part)
    lines += [f"Ready: {'no' if reason else 'yes'}{f' ({said})' if said else ''}"]
    if status.audit:
        lines += [f"Audit: {_audit(status.audit)}"]
    if status.processes:
        lines += [
            "",
            *_table(["process", "pid", "state", "since", "model"], [_row(p) for p in status.processes]),
        ]
    if status.queues:
        lanes = list(next(iter(status.queues.values())))
        rows = [[model, *(str(depths[lane]) for lane in lanes)] for model, depths in status.queues.items()]
        lines += ["", *_table(["waiting", *lanes], rows)]
    return "\n".join(lines)


def _audit(audit: AuditStatus) -> str:
    counts = f"{audit.events:,} events, {audit.unsealed:,} assignments not sealed yet"
    if audit.verified_at is None:
        return f"{counts}, never verified"
    at = timezone.localtime(audit.verified_at)
    held = "held" if audit.holds else "DID NOT HOLD (`manage.py audit verify --from-scratch`)"
    return f"{counts}, {held} on {at:%Y-%m-%d %H:%M %Z}"


def _row(process: ProcessStatus) -> list[str]:
    since = datetime.fromtimestamp(process.since, timezone.get_current_timezone())
    pid = str(process.pid or "-") + (f" on {process.host}" if process.host else "")
    return [process.role, pid, process.state, f"{since:%Y-%m-%d %H:%M:%S %Z}", process.model or ""]


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    return [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths)).rstrip() for row in [head, *rows]
    ]
