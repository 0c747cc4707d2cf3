"""Is a value written as Signalbox writes it? Only then does whoever asks the database find it.

What is hashed is a value: a time, an id, an object. What SQLite compares when it is asked for rows is the text that
stands there, and one value has many: ``2026-W49-1T10:00``, a time of another offset, an id with dashes or in capitals,
JSON that names a key twice (SQLite takes the first, Python the last), bytes in place of a text, a number with a
fraction. A row in another form is hidden from questions while every hash holds, so that the form is looked at too:
each value is written once more as Django writes it, and compared with what stands there.

PostgreSQL has types of its own for times, ids and JSON, which know one form of each value. There nothing is compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

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

#: Of these Django makes values from what stands there; of all others it hands on what stands there.
_CONVERTED: Final = (DateTimeField, UUIDField, JSONField)


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
            if not isinstance(field, _CONVERTED)
        ]
        self._converted = [
            (place, field, names[place])
            for place, field in enumerate(fields)
            if isinstance(field, _CONVERTED)
        ]
        # By its sign a column is an expression, of which neither Django nor the driver makes a value.
        self._as_they_stand = [
            Func(F(name), template="+%(expressions)s", output_field=TextField())
            for _, _, name in self._converted
        ]

    def of(self, rows: QuerySet[Any, Any]) -> QuerySet[Any, Any]:
        """``rows`` as tuples, for ``checked``."""
        beside = self._as_they_stand if connection.vendor == "sqlite" else []
        return rows.values_list(*self._names, *beside)

    def checked(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        """The values of a row of ``of``. Raises ``WrittenOtherwise``."""
        if connection.vendor != "sqlite":
            return row
        for place, kind, may_be_null, name in self._plain:
            value = row[place]
            if type(value) is not kind and not (value is None and may_be_null):
                raise WrittenOtherwise(name)
        for stands_at, (place, field, name) in enumerate(self._converted, len(self._names)):
            if not _is_written(field, row[place], row[stands_at]):
                raise WrittenOtherwise(name)
        return row[: len(self._names)]


def _is_written(field: Field[Any, Any], value: Any, stands: Any) -> bool:
    """Whether ``stands`` is what the field writes for ``value``, which was made from it."""
    if stands is None:
        return bool(field.null)
    try:
        return bool(stands == field.get_db_prep_save(value, connection))
    except UNREADABLE:
        return False


def _type_of(field: Field[Any, Any]) -> type:
    if isinstance(field, ForeignKey):
        return _type_of(field.target_field)
    if isinstance(field, IntegerField):
        return int
    if isinstance(field, CharField):
        return str
    raise TypeError(f"{field}: nobody has said yet in which form its values are written")
