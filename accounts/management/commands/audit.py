from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from accounts.audit import verification


class Command(BaseCommand):
    help = "Check the audit chain."

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        verbs.add_parser("verify", help="Walk the chain from the first event; exit 1 at a break.")

    def handle(self, *args: Any, **options: Any) -> None:
        found = verification.verify()
        if found.fault:
            raise CommandError(
                f"The chain is broken at event {found.fault.sequence} ({found.fault.reason}); the "
                f"{found.events} events before it hold. Compare with your last backup before changing anything."
            )
        events = "1 event" if found.events == 1 else f"{found.events} events"
        self.stdout.write(f"The chain holds: {events}, head {found.head_hash}.")
