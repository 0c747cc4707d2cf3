from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError, OutputWrapper

from accounts import command_accounts
from accounts.actors import command_actor
from accounts.formatting import counted
from accounts.management.audit import Verb


class EraseAccount(Verb):
    help = (
        "Erase for good the name of an account of the operating system that commands ran under. The records of these "
        "commands stay."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("account", help="The account's name, as the audit shows it behind a command.")

    def run(self, stdout: OutputWrapper, options: dict[str, Any]) -> None:
        account: str = options["account"]
        erased = command_accounts.erase(account=account, actor=command_actor("audit erase-account"))
        if not erased:
            raise CommandError(f"The audit has no command that ran under {account!r}. Nothing was changed.")
        stdout.write(f"Erased beside {counted(erased, 'event')}, which say the same as before otherwise.")
