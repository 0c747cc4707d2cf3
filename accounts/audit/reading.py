"""Events as people read them: with the names and addresses that are kept beside the chain, where they still are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from django.db.models import QuerySet

from accounts.audit.values import ACCOUNT_PATH
from accounts.models import AuditEvent

#: What stands where a personal value was erased.
ERASED: Final = "(erased)"


@dataclass(frozen=True, slots=True)
class Disclosed:
    """What an event says, personal values in their places.

    ``actor_name``: of a command, with the account that it ran under.
    """

    actor_name: str
    object_name: str
    address: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None


def disclosable(events: QuerySet[AuditEvent]) -> QuerySet[AuditEvent]:
    """``events`` with what ``disclose`` reads of each, in one query more."""
    return events.prefetch_related("personal_values")


def disclose(event: AuditEvent) -> Disclosed:
    """What ``event`` says. Reads its personal values, unless ``disclosable`` has."""
    values = {one.path: one.value for one in event.personal_values.all()}

    def at(path: str, chained: str) -> str:
        return values.get(path, ERASED) if path in event.personal else chained

    actor_name, account = at("actor_name", event.actor_name), at(ACCOUNT_PATH, "")
    return Disclosed(
        actor_name=_with_account(actor_name, account),
        object_name=at("object_name", event.object_name),
        address=at("address", event.address),
        before=_fields("before", event.before, event.personal, values),
        after=_fields("after", event.after, event.personal, values),
    )


def _with_account(name: str, account: str) -> str:
    """A command and whose account it ran under. (``ERASED`` has brackets of its own.)"""
    if not account:
        return name
    return f"{name} {account}" if account == ERASED else f"{name} ({account})"


def _fields(
    where: str,
    fields: Mapping[str, Any] | None,
    commitments: Mapping[str, str],
    values: Mapping[str, str],
) -> dict[str, Any] | None:
    if fields is None:
        return None
    return {
        name: values.get(f"{where}.{name}", ERASED) if f"{where}.{name}" in commitments else value
        for name, value in fields.items()
    }
