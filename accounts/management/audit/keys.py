from __future__ import annotations

from typing import Any

from django.core.management.base import OutputWrapper

from accounts.audit import signing_keys
from accounts.management.audit import Verb


class Keys(Verb):
    help = (
        "Print the keys that checkpoints are signed with, the oldest first: note down the first one outside."
    )

    def run(self, stdout: OutputWrapper, options: dict[str, Any]) -> None:
        keys = signing_keys.public_keys()
        if not keys:
            stdout.write("There is no signing key yet: `manage.py audit checkpoint` makes the first one.")
        for key in keys:
            if key.signed_by:
                whence = f"signed by {key.signed_by}"
            else:
                whence = "the first" if key is keys[0] else "NOT signed by the one before it"
            state = "signs" if key is keys[-1] else "replaced"
            since = f"since {key.created_at:%Y-%m-%d %H:%M}Z"
            stdout.write(f"{key.id}  {since}  {state:<8}  {whence:<30}  {key.public_key}")
