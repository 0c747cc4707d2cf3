"""What events are called, for whoever looks for some of them: which actions there are, and what they are about."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from django.db import connection

from accounts.audit import batches
from accounts.models import AuditEvent


@dataclass(frozen=True, slots=True)
class Family:
    """Actions that belong together: those of these kinds of objects."""

    title: str
    kinds: frozenset[str]


def _family(title: str, *kinds: str) -> Family:
    return Family(title, frozenset(kinds))


#: By the name that addresses have for it. What is in none of them is among ``OTHERS``.
FAMILIES: Final[Mapping[str, Family]] = {
    "rights": _family("Lanes, budgets and prices", "entitlement", "lane", "price"),
    "keys": _family("API keys", "api_key", "pepper"),
    "people": _family("People, roles and log-ins", "user", "membership", "session", "command_account"),
    "tenants": _family("Tenants", "tenant"),
    "models": _family(
        "Models and scheduling",
        "language_model",
        "scheduler_settings",
        "published_prefix",
        "speculation_verdict",
        "suffix_pool",
    ),
    "work": _family(
        "Generations, usage, ledger", "generation", "conversation", "usage", "ledger", "retention"
    ),
    "webhooks": _family("Webhooks", "webhook_endpoint", "webhook_delivery"),
    "audit": _family(
        "The audit itself",
        "audit",
        "audit_archive",
        "audit_checkpoint",
        "audit_settings",
        "audit_signing_key",
        "lane_assignments",
    ),
}
OTHERS: Final = "others"


def recorded() -> list[str]:
    """The actions that there are events of. One question, as quick for millions of events as for a few.

    It jumps from each action to the next one in the index; ``DISTINCT`` would read every entry.
    """
    table = AuditEvent._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(
            f"WITH RECURSIVE found(action) AS (SELECT MIN(action) FROM {table} UNION ALL "  # noqa: S608 — our own name
            f"SELECT (SELECT MIN(event.action) FROM {table} event WHERE event.action > found.action) FROM found "
            "WHERE found.action IS NOT NULL) SELECT action FROM found WHERE action IS NOT NULL"
        )
        return [action for (action,) in cursor.fetchall()]


def chosen(actions: Collection[str], *, family: str | None, with_seals: bool) -> list[str]:
    """Those of ``actions`` that are of ``family`` (None: of any). Batches of assignments only ``with_seals``."""
    return [
        action
        for action in actions
        if (with_seals or action != batches.ACTION) and family in (None, family_of(action))
    ]


def family_of(action: str) -> str:
    """The name of the family that ``action`` belongs to."""
    kind = action.partition(".")[0]
    return next((name for name, family in FAMILIES.items() if kind in family.kinds), OTHERS)
