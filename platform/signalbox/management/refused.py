"""Django's commands that write past the audit: refused, with the one that takes their place."""

from __future__ import annotations

from typing import Any, NoReturn

from django.core.management.base import BaseCommand, CommandError


class RefusedCommand(BaseCommand):
    """Changes nothing. ``instead``: what does the same and leaves a record."""

    requires_system_checks = []
    instead = ""

    def run_from_argv(self, argv: list[str]) -> None:
        """Whatever its options are: none of them is looked at."""
        super().run_from_argv(argv[:2])

    def handle(self, *args: Any, **options: Any) -> NoReturn:
        raise CommandError(f"This would leave no record in the audit. Use: manage.py {self.instead}")
