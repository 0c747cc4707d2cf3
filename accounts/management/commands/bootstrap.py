from __future__ import annotations

import dataclasses
import json
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from accounts.actors import command_actor
from accounts.bootstrap import Bootstrap, bootstrap


class Command(BaseCommand):
    help = "Make the first operator, tenant and API key. On an installation that has them, say what there is."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="Print one JSON object, for programs.")

    def handle(self, *args: Any, **options: Any) -> None:
        result = bootstrap(command_actor("bootstrap"))
        if options["json"]:
            self.stdout.write(json.dumps({**dataclasses.asdict(result), **_commands(result)}))
            return
        if result.first_run:
            self.stdout.write(f"Operator:           {result.username}")
            self.stdout.write(
                f"One-time password:  {result.one_time_password}   (shown once; you set your own)"
            )
            self.stdout.write(f"API key:            {result.api_key}   (shown once; tenant {result.tenant})")
            return
        self.stdout.write(
            f"Operator:  {result.username}   (new password: {_commands(result)['password_command']})"
        )
        key = f"sb_{result.api_key_prefix}…" if result.api_key_prefix else "none"
        self.stdout.write(f"API key:   {key}   (new key: {_commands(result)['key_command']})")


def _commands(result: Bootstrap) -> dict[str, str]:
    return {
        "key_command": f"manage.py key create --tenant {result.tenant} --name NAME",
        "password_command": f"manage.py user password {result.username}",
    }
