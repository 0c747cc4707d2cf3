from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from accounts.management.audit import verbs
from accounts.refusals import ChangeRefused


class Command(BaseCommand):
    """``manage.py audit VERB``: the verbs are modules of ``accounts.management.audit``."""

    help = "Verify, sign, export and archive the audit."

    def add_arguments(self, parser: CommandParser) -> None:
        subparsers = parser.add_subparsers(dest="verb", required=True)
        for name, verb in verbs().items():
            verb.add_arguments(subparsers.add_parser(name, help=verb.help))

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            verbs()[options["verb"]].run(self.stdout, options)
        except ChangeRefused as refusal:
            raise CommandError(refusal.message) from refusal
