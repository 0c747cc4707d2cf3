from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from signalbox.configuration import ROOT
from signalbox.configuration_page import page


class Command(BaseCommand):
    """Keeps the configuration's page true."""

    help = "Write docs/configuration.md from the settings' own declarations."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--check", action="store_true", help="Write nothing; fail when the page is not up to date."
        )

    def handle(self, *args: Any, **options: Any) -> None:
        path = ROOT / "docs" / "configuration.md"
        text = page()
        if not options["check"]:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            raise CommandError("docs/configuration.md is out of date. Write it anew: make configuration")
