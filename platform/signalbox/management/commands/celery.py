from __future__ import annotations

import warnings
from typing import Any

from celery.beat import EmbeddedService
from celery.exceptions import SecurityWarning
from django.core.management.base import BaseCommand, CommandError

from signalbox.celery import app
from signalbox.configuration import configuration
from signalbox.migrations_check import NotMigratedError, require_migrated
from signalbox.state_directory import StateDirectoryError, check_file, ensure_directory

#: The tasks wait for the database and for others' servers rather than compute. Several may be slow at once (a walk
#: along the audit, mails, webhooks, a disk that is away); what runs each second must find a free one all the same.
_THREADS = 8


class Command(BaseCommand):
    """Runs the periodic tasks: one process that both schedules and works."""

    help = "Run the periodic tasks (usage roll-ups, retention, stamps) until SIGTERM or Ctrl-C."
    requires_system_checks: list[str] = []

    def handle(self, *args: Any, **options: Any) -> None:
        directory = configuration().state_dir / "celery"
        try:
            ensure_directory(directory, "Celery's directory")
            check_file(directory / "beat", "Celery's schedule")
            require_migrated()
        except (NotMigratedError, StateDirectoryError) as error:
            raise CommandError(str(error)) from error
        beat = EmbeddedService(app, thread=True, schedule_filename=str(directory / "beat"))
        with warnings.catch_warnings():
            # That root runs it is said once, by `up`; tasks are JSON, so nobody can send one that runs code.
            warnings.simplefilter("ignore", SecurityWarning)
            worker = app.Worker(
                pool="threads",
                concurrency=_THREADS,
                loglevel=configuration().log_level,
                quiet=True,
                without_gossip=True,
                without_mingle=True,
            )
        beat.start()
        try:
            worker.start()
        finally:
            beat.stop()
