from __future__ import annotations

from typing import Any

import redis
from django.core.management.base import CommandError, OutputWrapper
from django.utils import timezone

from accounts.audit import anchors, checkpoint_lines, checkpoints
from accounts.audit.checkpoints import CheckpointRefused
from accounts.audit.signing_keys import SigningKeyMissing
from accounts.management.audit import Verb
from accounts.models import AuditCheckpoint


class Checkpoint(Verb):
    help = "Sign the chain's head now, bring the checkpoint outside, and print it: a line to keep elsewhere."

    def run(self, stdout: OutputWrapper, options: dict[str, Any]) -> None:
        now = timezone.now()
        try:
            checkpoint = checkpoints.make(now) or AuditCheckpoint.objects.latest("at")
        except (CheckpointRefused, SigningKeyMissing) as error:
            raise CommandError(str(error)) from error
        stdout.write(checkpoint_lines.line(checkpoint))
        try:
            problems = anchors.deliver(now, at_once=True)
        except redis.RedisError as error:
            raise CommandError(f"It was made, but brought nowhere: Valkey is away ({error}).") from error
        if problems:
            raise CommandError(f"It was made, but: {' '.join(problems)}")
