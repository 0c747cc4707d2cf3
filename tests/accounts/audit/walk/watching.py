"""What a scenario writes: each transaction that changes what is audited has to append an event to the chain.

The tests run in a transaction of their own, so that a savepoint directly below it stands for a transaction, and a
statement beside all savepoints for one of itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from django.apps import apps
from django.db import connection
from django.db.models import Model

from accounts.tenancy import every_tenant

#: Rows of these are changed by nobody without a record.
AUDITED: Final = frozenset(
    {
        "ApiKey",
        "Allowance",
        "AuditArchive",
        "AuditSettings",
        "AuditSigningKey",
        "Entitlement",
        "Lane",
        "LanguageModel",
        "Membership",
        "Price",
        "PublishedPrefix",
        "Tenant",
        "User",
        "WebhookEndpoint",
    }
)
#: Rows of these may be made and changed, but nobody deletes them without a record.
AUDITED_WHEN_DELETED: Final = frozenset({"AuditPersonalValue", "Conversation", "SpeculationVerdict"})
#: Rows of these have no events of their own.
NOT_AUDITED: Final[Mapping[str, str]] = {
    "AuditCheckpoint": "is itself a proof: the head, signed",
    "AuditEvent": "is the record; the database itself keeps it",
    "AuditHead": "is the chain's own",
    "AuditVerification": "is what one walk along the chain has found",
    "BudgetEvent": "follows from what was used, and is told to the tenant",
    "BudgetWindow": "counts reservations; repairs of it are scenarios of their own",
    "ChatMessage": "a person's own words",
    "Generation": "has its lane assignment, and says itself who ended it and why",
    "GenerationOutput": "goes with its generation",
    "GenerationRequest": "goes with its generation",
    "GenerationRun": "goes with its generation",
    "IdempotencyKey": "a client's own name for a request",
    "LaneAssignment": "is the record of one generation; the database itself keeps it",
    "LedgerEntry": "is a record itself; repairs of it are scenarios of their own",
    "Reservation": "goes with its generation; repairs of it are scenarios of their own",
    "SealedAssignment": "goes with its batch, which is an event; the database itself keeps it",
    "UsageRollup": "sums the ledger; repairs of it are scenarios of their own",
    "WebhookDelivery": "a message on its way; sending it again by hand is a scenario of its own",
    "Worker": "a process that lives, or has ended",
}
#: Columns of audited rows that only say what was measured, counted or seen.
_STAMPS: Final[Mapping[str, frozenset[str]]] = {
    "accounts_user": frozenset({"last_login"}),
    "accounts_apikey": frozenset({"last_used_at"}),
    "accounts_allowance": frozenset({"live_generations"}),
    "inference_languagemodel": frozenset({"kv_capacity_tokens"}),
}
_STATEMENT: Final = re.compile(
    r'\s*(?P<verb>INSERT(?: OR \w+)? INTO|REPLACE INTO|UPDATE|DELETE FROM)\s+"?(?P<table>\w+)"?',
    re.IGNORECASE,
)
_SET: Final = re.compile(r"\bSET\b(?P<columns>.*?)(?:\bWHERE\b|$)", re.IGNORECASE | re.DOTALL)


@dataclass
class _Frame:
    """What was written in one transaction, or in a part of it that may still be rolled back."""

    writes: list[str] = field(default_factory=list)
    recorded: bool = False


@dataclass
class Watch:
    """What was written, and what of it without a record."""

    unrecorded: list[str] = field(default_factory=list)
    _frames: list[_Frame] = field(default_factory=list)

    def __call__(self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        """Of ``connection.execute_wrapper``."""
        result = execute(sql, params, many, context)
        word = sql.lstrip()[:24].upper()
        if word.startswith("SAVEPOINT"):
            self._frames.append(_Frame())
        elif word.startswith("RELEASE"):
            self._committed(self._frames.pop())
        elif word.startswith("ROLLBACK TO"):
            self._frames[-1] = _Frame()
        else:
            self._note(sql, context["cursor"].rowcount)
        return result

    def _note(self, sql: str, rows: int) -> None:
        written = _STATEMENT.match(sql)
        if written is None or rows == 0:
            return
        one = _Frame()
        if written["table"] == "accounts_auditevent" and written["verb"].upper().startswith("INSERT"):
            one.recorded = True
        elif _is_audited(written["table"], written["verb"].upper(), sql):
            one.writes.append(f"{written['verb'].upper()} {written['table']}")
        self._committed(one)

    def _committed(self, frame: _Frame) -> None:
        if self._frames:
            self._frames[-1].writes += frame.writes
            self._frames[-1].recorded |= frame.recorded
        elif frame.writes and not frame.recorded:
            self.unrecorded += frame.writes


@contextmanager
def watched() -> Iterator[Watch]:
    """Watch what is written meanwhile, by this thread."""
    watch = Watch()
    with connection.execute_wrapper(watch):
        yield watch


def our_models() -> list[type[Model]]:
    """Every table of ours."""
    return [model for app in ("accounts", "inference") for model in apps.get_app_config(app).get_models()]


def audited_rows() -> dict[str, list[dict[str, Any]]]:
    """All that must not change without a record, as it is now; stamps left out."""
    rows: dict[str, list[dict[str, Any]]] = {}
    with every_tenant("the test compares everything"):
        for model in our_models():
            if model.__name__ in AUDITED | AUDITED_WHEN_DELETED:
                stamps = _STAMPS.get(model._meta.db_table, frozenset())
                rows[model.__name__] = [
                    {name: value for name, value in row.items() if name not in stamps}
                    for row in model._default_manager.order_by("pk").values()
                ]
    return rows


def _is_audited(table: str, verb: str, sql: str) -> bool:
    name = _NAMES.get(table)
    if name in AUDITED_WHEN_DELETED:
        return verb.startswith("DELETE")
    if name not in AUDITED:
        return False
    stamps = _STAMPS.get(table)
    if verb != "UPDATE" or stamps is None:
        return True
    assigned = _SET.search(sql)
    columns = set(re.findall(r'"(\w+)"\s*=', assigned["columns"])) if assigned else set()
    return not columns <= stamps


_NAMES: Final = {model._meta.db_table: model.__name__ for model in our_models()}
