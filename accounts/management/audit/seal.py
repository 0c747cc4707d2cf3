from __future__ import annotations

from typing import Any

from django.core.management.base import OutputWrapper
from django.utils import timezone

from accounts.audit import sealing
from accounts.formatting import counted
from accounts.management.audit import Verb


class Seal(Verb):
    help = (
        "Seal every lane assignment that still waits for its batch, however old. Celery does it each second."
    )

    def run(self, stdout: OutputWrapper, options: dict[str, Any]) -> None:
        sealed = sealing.seal(timezone.now(), sweep=True)
        stdout.write(f"Sealed {counted(sealed, 'assignment')}.")
