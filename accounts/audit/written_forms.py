"""Is a value written as Signalbox writes it? Only then does whoever asks the database find it.

What is hashed is a value: a time, an id, an object. What SQLite compares when it is asked for rows is the text that
stands there, and one value has many: ``2026-W49-1T10:00``, a time of another offset, an id with dashes or in capitals,
JSON that names a key twice (SQLite takes the first, Python the last), bytes in place of a text, a number with a
fraction. A row in another form is hidden from questions while every hash holds, so that the form is looked at too:
each value is written once more as Django writes it, and compared with what stands there.

PostgreSQL has types of its own for times, ids and JSON, which know one form of each value. There nothing is compared.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, cast
from uuid import UUID

from django.db import DatabaseError, connection
from django.db.models import (
    CharField,
    DateTimeField,
    F,
    Field,
    ForeignKey,
    Func,
    IntegerField,
    JSONField,
    Model,
    QuerySet,
    TextField,
    UUIDField,
)

#: What reading and hashing a row raises that holds what it cannot.
UNREADABLE: Final = (ValueError, TypeError, AttributeError, KeyError, OverflowError, RecursionError)
#: SQLite itself refuses to read a text with bytes that are none, and PostgreSQL's driver some times.
UNREADABLE_PAGE: Final = (*UNREADABLE, DatabaseError)


def _written_time(value: datetime) -> str:
    return str(value.astimezone(UTC).replace(tzinfo=None))


def _written_id(value: UUID) -> str:
    return value.hex


#: What Django makes values of when it reads them, and what it writes for one on SQLite. (By its fields' own functions
#: that takes several times as long, and a walk asks for millions.) Of all other kinds it hands on what stands there.
WRITTEN: Final[dict[type[Field[Any, Any]], Callable[[Any], str]]] = {
    DateTimeField: _written_time,
    UUIDField: _written_id,
    JSONField: json.dumps,
}
#: Texts that are remembered: so long, and so many of each column.
_SHORT: Final = 300
_MOST_KNOWN: Final = 1000


class WrittenOtherwise(ValueError):
    """A column holds something in another form than Signalbox writes it in, or of another type."""

    def __init__(self, column: str) -> None:
        super().__init__(f"its {column} is written otherwise than Signalbox writes it")


class WrittenForm:
    """The form in which some columns of a table are written."""

    def __init__(self, model: type[Model], names: Sequence[str]) -> None:
        """``names``: the columns, in their order in a row. Raises ``TypeError`` for one of a kind not known here."""
        fields = [cast("Field[Any, Any]", model._meta.get_field(name)) for name in names]
        self._names = tuple(names)
        self._plain = [
            (place, _type_of(field), field.null, names[place])
            for place, field in enumerate(fields)
            if type(field) not in WRITTEN
        ]
        #: With the texts that were found to be written as they are to be: most stand in very many rows.
        self._converted: list[tuple[int, int, Callable[[Any], str], set[str | None], str]] = [
            (place, stands_at, WRITTEN[type(field)], {None} if field.null else set(), names[place])
            for stands_at, (place, field) in enumerate(
                ((place, field) for place, field in enumerate(fields) if type(field) in WRITTEN), len(fields)
            )
        ]
        #: The types that the columns of a row had, all of them as they are to be.
        self._known_types: set[tuple[type, ...]] = set()
        # By its sign a column is an expression, of which neither Django nor the driver makes a value.
        self._as_they_stand = [
            Func(F(name), template="+%(expressions)s", output_field=TextField())
            for *_, name in self._converted
        ]

    def of(self, rows: QuerySet[Any, Any]) -> QuerySet[Any, Any]:
        """``rows`` as tuples, for ``checked``."""
        beside = self._as_they_stand if connection.vendor == "sqlite" else []
        return rows.values_list(*self._names, *beside)

    def checked(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        """The values of a row of ``of``. Raises ``WrittenOtherwise``."""
        if connection.vendor != "sqlite":
            return row
        types = tuple(map(type, row))
        if types not in self._known_types:
            self._check_types(row)
            self._known_types.add(types)
        for place, stands_at, write, known, name in self._converted:
            stands = row[stands_at]
            if stands in known:
                continue
            try:
                written = write(row[place])
            except UNREADABLE:
                written = None
            if stands is None or stands != written:
                raise WrittenOtherwise(name)
            if len(stands) <= _SHORT:
                if len(known) >= _MOST_KNOWN:
                    known.intersection_update({None})
                known.add(stands)
        return row[: len(self._names)]

    def _check_types(self, row: tuple[Any, ...]) -> None:
        for place, kind, may_be_null, name in self._plain:
            value = row[place]
            if type(value) is not kind and not (value is None and may_be_null):
                raise WrittenOtherwise(name)


def _type_of(field: Field[Any, Any]) -> type:
    if isinstance(field, ForeignKey):
        return _type_of(field.target_field)
    if isinstance(field, IntegerField):
        return int
    if isinstance(field, CharField):
        return str
    raise TypeError(f"{field}: nobody has said yet in which form its values are written")
