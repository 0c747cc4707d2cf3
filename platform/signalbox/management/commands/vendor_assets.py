from typing import Any

from django.core.management.base import BaseCommand, CommandError

from signalbox import vendored
from signalbox.configuration import ROOT, configuration


class Command(BaseCommand):
    """Takes the chat page's third-party files from ``node_modules`` into the state directory."""

    help = "Copy the chat page's third-party files from node_modules into the state directory."
    requires_system_checks: list[str] = []

    def handle(self, *args: Any, **options: Any) -> None:
        destination = configuration().state_dir / "vendor"
        try:
            written = vendored.copy(ROOT / "node_modules", destination)
        except vendored.MissingPackagesError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"{len(written)} of {len(vendored.FILES)} files were new in {destination}")
