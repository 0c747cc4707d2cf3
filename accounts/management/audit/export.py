from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, OutputWrapper
from django.utils import timezone
from django.utils.dateparse import parse_date, parse_datetime

from accounts.actors import command_actor
from accounts.audit import export, offline, sealing
from accounts.audit.archive_files import ArchiveDamaged
from accounts.audit.export import ExportRefused, Selection
from accounts.audit.stored import ChainBroken
from accounts.management import progress
from accounts.management.audit import Verb
from accounts.models import Lane, Tenant


class Export(Verb):
    help = "Write events and assignments with their proofs, for somebody to check without Signalbox."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--output", required=True, metavar="FILE", help="The file; - is the standard output."
        )
        parser.add_argument(
            "--tenant", metavar="SLUG", help="What concerns this tenant; all else is in it as bare links."
        )
        parser.add_argument(
            "--from", dest="first_at", type=moment, metavar="DATE", help="What was recorded since then."
        )
        parser.add_argument(
            "--to", dest="last_at", type=moment, metavar="DATE", help="What was recorded before then."
        )
        parser.add_argument("--lane", metavar="NAME", help="What concerns this lane; all else as bare links.")
        parser.add_argument(
            "--without-personal",
            action="store_true",
            help="Leave out people's names and addresses; what was recorded of them stays provable.",
        )

    def run(self, stdout: OutputWrapper, options: dict[str, Any]) -> None:
        selection = _selection(options)
        try:
            with _output(options["output"], stdout) as write:
                begun = export.begin(
                    selection,
                    with_personal=not options["without_personal"],
                    actor=command_actor("audit export"),
                )
                with progress.bar("Events", begun.total, "events") as advance:
                    for page in export.pages(begun, advance):
                        write(page)
        except (ExportRefused, ChainBroken, ArchiveDamaged) as error:
            raise CommandError(str(error)) from error
        except OSError as error:
            raise CommandError(
                f"The export cannot be written to {options['output']}: {error.strerror}."
            ) from error
        _tell(options["output"], begun)


def moment(text: str) -> datetime:
    """A time on the command line: a date (its beginning) or a date and time, in the configured time zone if in none."""
    try:
        at = parse_datetime(text) or parse_datetime(f"{text}T00:00") if parse_date(text[:10]) else None
    except ValueError:
        at = None
    if at is None:
        raise ArgumentTypeError(f"{text!r} is no date, as in 2026-11-30 or 2026-11-30T14:00+01:00")
    return at if timezone.is_aware(at) else timezone.make_aware(at)


def _selection(options: dict[str, Any]) -> Selection:
    tenant = Tenant.objects.filter(slug=options["tenant"]).first() if options["tenant"] else None
    if options["tenant"] and tenant is None:
        raise CommandError(f"There is no tenant {options['tenant']!r}. `manage.py tenant list` prints them.")
    lane = options["lane"]
    if lane and not Lane.objects.filter(name=lane).exists():
        known = ", ".join(Lane.objects.values_list("name", flat=True))
        raise CommandError(f"There is no lane {lane!r}. There are: {known}.")
    return Selection(
        tenant_id=tenant.id if tenant else None,
        first_at=options["first_at"],
        last_at=options["last_at"],
        lane=lane or None,
    )


@contextmanager
def _output(name: str, stdout: OutputWrapper) -> Iterator[Callable[[bytes], object]]:
    """Where the pages go: to a file that is there whole or not at all, and nobody else's to read."""
    if name == "-":
        yield lambda page: stdout.write(page.decode(), ending="")
        return
    path = Path(name)
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            yield file.write
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _tell(output: str, begun: export.Export) -> None:
    script = Path(offline.__file__).with_name("verify_export.py")
    name = "FILE" if output == "-" else output
    remarks = [
        f"{begun.total:,} events. To check it, on any machine with Python 3.9 or newer: python3 {script.name} {name} "
        "--key KEY",
        f"The script is {script}; KEY is what the auditor noted down when `manage.py audit keys` printed it.",
    ]
    if not begun.is_signed:
        remarks.append(
            "It is not signed: this machine has no signing key, or the chain contradicts the last checkpoint "
            "(`manage.py audit verify`; the log tells which). Nothing proves what it says of itself, and with --key "
            "the script does not end with 0."
        )
    if waiting := sealing.unsealed().count:
        remarks.append(
            f"Not in it: {waiting:,} assignments that are not sealed yet (`manage.py audit seal`)."
        )
    for remark in remarks:
        print(remark, file=sys.stderr)
