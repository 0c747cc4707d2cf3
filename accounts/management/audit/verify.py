from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, OutputWrapper

from accounts.audit import checkpoint_lines, verification
from accounts.audit.verification import Fault, FaultKind, FaultReason, Progress, Verification
from accounts.formatting import counted
from accounts.management.audit import Verb


class Verify(Verb):
    help = (
        "Walk the chain and name the first record that is not what was recorded; exit 1 where there is one."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--from-scratch",
            action="store_true",
            help="Every record, instead of those since the last verification that held.",
        )
        parser.add_argument(
            "--checkpoints",
            type=Path,
            metavar="FILE",
            help="Signed checkpoints that were kept outside, instead of those in SIGNALBOX_AUDIT_ANCHOR_FILE.",
        )
        parser.add_argument(
            "--archives",
            type=Path,
            metavar="DIR",
            help="Where the archives' files are: all must be there. Instead of those in SIGNALBOX_AUDIT_ARCHIVE_DIR.",
        )

    def run(self, stdout: OutputWrapper, options: dict[str, Any]) -> None:
        archives_dir: Path | None = options["archives"]
        if archives_dir is not None and not archives_dir.is_dir():
            raise CommandError(
                f"{archives_dir} is no directory: --archives is where the archives' files are."
            )
        file: Path | None = options["checkpoints"]
        try:
            outside = checkpoint_lines.read_file(file) if file else None
        except checkpoint_lines.CheckpointFileError as error:
            raise CommandError(str(error)) from error
        with _progress() as progress:
            found = verification.verify(
                from_scratch=options["from_scratch"],
                progress=progress,
                archives_dir=archives_dir,
                checkpoints=outside,
            )
        verification.store(found)
        for note in found.notes:
            stdout.write(f"Note: {note}")
        if found.unsealed:
            stdout.write(f"Not sealed yet, and so not proved: {counted(found.unsealed, 'assignment')}.")
        if found.fault:
            raise CommandError(_broken(found, found.fault))
        stdout.write(f"The chain holds: {_checked(found)}. Head: {found.head_hash}.")


def _broken(found: Verification, fault: Fault) -> str:
    what = f"{fault.kind} {fault.id}".strip()
    held = (
        f"Everything up to event {found.last_sequence} holds ({_checked(found)})."
        if found.last_sequence
        else "Nothing before it was looked at."
    )
    # What stands at no event is a key, or an assignment of no batch.
    where = f" at event {fault.sequence}" if fault.sequence else ""
    return f"The chain is broken{where} ({what}: {fault.reason}). {fault.message} {held} {_advice(fault)}"


def _advice(fault: Fault) -> str:
    if fault.kind is FaultKind.ARCHIVE and fault.reason in (
        FaultReason.FILE_MISSING,
        FaultReason.FILE_ALTERED,
    ):
        return "Nothing in the database is wrong: bring the file back, and verify again."
    return (
        "Change nothing, and let nobody tidy up: copy the database as it is, compare it with your backups around that "
        "record, and find out who could write to it. docs/audit.md, “Verifying”, says how to go on."
    )


def _checked(found: Verification) -> str:
    where = (
        "from the first event on" if found.first_sequence == 1 else f"from event {found.first_sequence} on"
    )
    return f"{counted(found.events, 'event')}, {counted(found.assignments, 'sealed assignment')}, {where}"


@contextmanager
def _progress() -> Iterator[Progress | None]:
    """A bar on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    from tqdm import tqdm

    with tqdm(desc="Records", unit=" records", file=sys.stderr) as bar:

        def advance(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield advance
