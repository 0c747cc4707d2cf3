from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError
from typing import Any, Final

from django.core.management.base import OutputWrapper

from accounts.actors import command_actor
from accounts.audit import settings
from accounts.formatting import counted
from accounts.management.audit import Verb

#: What is said for records that are to stay in the database.
NEVER: Final = "never"


class Settings(Verb):
    help = (
        "Show how often the chain's head is signed, and when old records are archived; change what is named."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--archive-after-days",
            type=_days,
            help=f"Records that are older move to archive files each night; {NEVER}: they stay in the database.",
        )
        parser.add_argument("--checkpoint-minutes", type=int, help="A checkpoint is made that often.")

    def run(self, stdout: OutputWrapper, options: dict[str, Any]) -> None:
        now, days, minutes = settings.current(), options["archive_after_days"], options["checkpoint_minutes"]
        if days is not None or minutes is not None:
            now = settings.change(
                archive_after_days=now.archive_after_days
                if days is None
                else None
                if days == NEVER
                else days,
                checkpoint_minutes=now.checkpoint_minutes if minutes is None else minutes,
                actor=command_actor("audit settings"),
            )
        after = f"after {counted(now.archive_after_days, 'day')}" if now.archive_after_days else NEVER
        stdout.write(f"Archived: {after}. A checkpoint every {counted(now.checkpoint_minutes, 'minute')}.")


def _days(text: str) -> int | str:
    try:
        return NEVER if text == NEVER else int(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is neither a whole number nor {NEVER!r}") from None
