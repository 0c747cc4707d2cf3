"""Accounts of the operating system that commands ran under: the audit keeps their names where they can be erased.

Such a name may be a person's, and no user of ours need belong to it: it is found by what it is.
"""

from __future__ import annotations

from django.db import transaction

from accounts import audit
from accounts.audit.values import ACCOUNT_PATH, LONGEST_PERSONAL, masked_text
from accounts.models import AuditPersonalValue
from accounts.principal import Actor
from accounts.refusals import ChangeRefusal, ChangeRefused


def erase(*, account: str, actor: Actor) -> int:
    """Erase the name ``account`` from what the audit keeps of the commands that ran under it; of how many.

    The chain holds as before, and says which commands they were. It cannot be undone. Raises ``ChangeRefused`` where
    ``actor`` runs under that account: the record of the erasure would name it again.
    """
    if account == actor.account:
        raise ChangeRefused(
            ChangeRefusal.OWN_ACCOUNT,
            f"This command runs under {account} itself, and its own record would name that account again. Run it under "
            "another one.",
            field="account",
        )
    with transaction.atomic():
        kept = masked_text(account)[:LONGEST_PERSONAL]
        erased, _ = AuditPersonalValue.objects.filter(path=ACCOUNT_PATH, value=kept).delete()
        if erased:
            reference = audit.ObjectRef("command_account", "")
            audit.record(
                actor, "command_account.erase", reference, None, {"erased": {"audit_values": erased}}
            )
    return erased
