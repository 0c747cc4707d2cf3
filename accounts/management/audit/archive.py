from __future__ import annotations

from argparse import ArgumentParser
from datetime import datetime, timedelta
from typing import Any

from django.core.management.base import CommandError, OutputWrapper
from django.utils import timezone

from accounts.actors import command_actor
from accounts.audit import archives
from accounts.audit.archives import ArchiveDamaged, ArchiveRefused
from accounts.management import progress
from accounts.management.audit import Verb
from accounts.management.audit.export import moment
from accounts.models import AuditSettings
from signalbox.state_directory import StateDirectoryError


class Archive(Verb):
    help = "Move old events and assignments to archive files; the chain stays provable."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--before",
            type=moment,
            metavar="DATE",
            help="What was recorded before then; without it, as old as the audit's settings say.",
        )

    def run(self, stdout: OutputWrapper, options: dict[str, Any]) -> None:
        before: datetime | None = options["before"]
        now = timezone.now()
        least = 1 if before else archives.LEAST
        if before is None:
            days = AuditSettings.objects.get(id=1).archive_after_days
            if days is None:
                raise CommandError(
                    "The audit's settings say that nothing is archived. Give --before, or set `archive_after_days`."
                )
            before = now - timedelta(days=days)
        try:
            with progress.bar("Events", archives.waiting(before), "events") as advance:
                made = archives.archive(
                    now, before, actor=command_actor("audit archive"), least=least, advance=advance
                )
        except (ArchiveRefused, ArchiveDamaged, StateDirectoryError) as error:
            raise CommandError(str(error)) from error
        except OSError as error:
            raise CommandError(f"The archive cannot be written: {error}.") from error
        for one in made:
            stdout.write(
                f"{archives.path_of(one)}: {one}, {one.assignments:,} assignments, {one.file_bytes:,} bytes"
            )
        if not made:
            stdout.write(
                "Nothing to archive: it is not old enough, too little, or younger than the last checkpoint."
            )
