from typing import Any

from django.core.management.base import BaseCommand, CommandError

from signalbox import server
from signalbox.configuration import configuration
from signalbox.migrations_check import NotMigratedError, require_migrated
from signalbox.state_directory import StateDirectoryError


class Command(BaseCommand):
    """Serves the site: API, chat, admin."""

    help = "Serve the site (API, chat, admin) on the configured address until SIGTERM or Ctrl-C."
    requires_system_checks: list[str] = []

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            require_migrated()
            server.serve(configuration())
        except (NotMigratedError, StateDirectoryError) as error:
            raise CommandError(str(error)) from error
