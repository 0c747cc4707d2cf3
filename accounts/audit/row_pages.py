"""Rows read a page at a time, up to the first that cannot be read.

What stands in a row may be anything, where somebody has written to the database itself: a text that is no JSON, a
number that is none. A page that cannot be read is narrowed down to the row that is to blame, and what comes before that
one is given first.
"""

from __future__ import annotations

from typing import Any, Final

from django.db.models import QuerySet

from accounts.audit.written_forms import UNREADABLE_PAGE, WrittenForm, WrittenOtherwise
from accounts.models import AuditEvent

#: Stands for what cannot be read of a row.
NOT_READ: Final = "(unreadable)"


def page(
    form: WrittenForm, rows: QuerySet[Any, Any], size: int, start: int = 0
) -> tuple[list[tuple[Any, ...]], Exception | None]:
    """The first ``size`` of ``rows`` behind the first ``start``; or those before one that cannot be read, and why.

    To be read, a row must be written as ``form`` says.
    """
    found, error = _readable(form.of(rows), size, start)
    whole: list[tuple[Any, ...]] = []
    try:
        # Each as it comes: those before one that is not read are given.
        whole.extend(form.checked(row) for row in found)
    except WrittenOtherwise as otherwise:
        return whole, otherwise
    return whole, error


def columns_of(rows: QuerySet[Any, Any], number: int, *names: str) -> list[Any]:
    """Some columns of the row behind the first ``number``, each by itself; None where there is no such row.

    What cannot be read is ``NOT_READ``. What can be may still be of any type.
    """
    return [_column_of(rows, number, name) for name in names]


def require_database() -> None:
    """Raise ``DatabaseError`` where the database itself cannot be reached: then no row is to blame."""
    AuditEvent.objects.filter(sequence=0).exists()


def _column_of(rows: QuerySet[Any, Any], number: int, name: str) -> Any:
    try:
        return next(iter(rows.values_list(name, flat=True)[number : number + 1]), None)
    except UNREADABLE_PAGE:
        require_database()
        return NOT_READ


def _readable(
    rows: QuerySet[Any, Any], size: int, start: int
) -> tuple[list[tuple[Any, ...]], Exception | None]:
    try:
        return list(rows[start : start + size]), None
    except UNREADABLE_PAGE as error:
        require_database()
        reason: Exception = error
    readable, unreadable = 0, size
    while unreadable - readable > 1:
        middle = (readable + unreadable) // 2
        try:
            list(rows[start : start + middle])
        except UNREADABLE_PAGE as error:
            unreadable, reason = middle, error
        else:
            readable = middle
    return list(rows[start : start + readable]) if readable else [], reason
