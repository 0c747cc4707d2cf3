from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError, OutputWrapper

from accounts.actors import command_actor
from accounts.audit import signing_keys
from accounts.audit.signing_keys import SigningKeyMissing
from accounts.management.audit import Verb


class RotateKey(Verb):
    help = "Let a new key sign checkpoints from now on; the present one signs it, and is deleted."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--lost",
            action="store_true",
            help="The present private key is gone: nobody signs the new one, and every verification says so.",
        )

    def run(self, stdout: OutputWrapper, options: dict[str, Any]) -> None:
        try:
            key = signing_keys.rotate(actor=command_actor("audit rotate-key"), lost=options["lost"])
        except SigningKeyMissing as missing:
            raise CommandError(str(missing)) from missing
        stdout.write(f"Checkpoints are signed with {key.id} from now on. Its public key: {key.public_key}")
