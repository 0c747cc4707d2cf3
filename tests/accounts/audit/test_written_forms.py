"""A value that stands in another form than Signalbox writes it in hides its row from questions: it is named."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, models, transaction
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from hypothesis import given
from hypothesis import strategies as st

from accounts import audit
from accounts.audit import sealing, written_forms
from accounts.audit.verification import verify
from accounts.audit.written_forms import WRITTEN, WrittenForm, WrittenOtherwise
from accounts.models import (
    AuditArchive,
    AuditCheckpoint,
    AuditEvent,
    AuditHead,
    AuditPersonalValue,
    AuditSigningKey,
    LaneAssignment,
    SealedAssignment,
    User,
)
from accounts.tenancy import every_tenant
from tests.accounts.audit.chains import THING, Built, Tampering, assign, build
from tests.accounts.audit.own_state import settle
from tests.accounts.audit.raw_rows import raw, set_raw, undone
from tests.factories import ACTOR

pytestmark = pytest.mark.django_db
on_sqlite = pytest.mark.skipif(
    connection.vendor != "sqlite", reason="PostgreSQL knows one form of each value"
)
TENANT = uuid.UUID("ab" * 16)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tampering: Tampering) -> Iterator[Built]:
    settle(monkeypatch, tmp_path)
    chain = build(tampering)
    with transaction.atomic():
        audit.record(ACTOR, "thing.change", THING, {"n": 1, "ö": "ä"}, {"n": 2}, tenant_id=TENANT)
    with tampering():
        yield chain


def at_another_offset(text: str) -> str:
    """A day ahead by the clock that it is said in: what a filter by days takes it for."""
    at = parse_datetime(text)
    assert at is not None
    return (at + timedelta(hours=23, minutes=59)).isoformat(" ") + "+23:59"


def by_week(text: str) -> str:
    at = datetime.fromisoformat(text)
    year, week, day = at.isocalendar()
    return f"{year}-W{week:02}-{day}T{at.time().isoformat()}"


#: Other ways to write a time, an id and an object; each is read as the same value.
TIMES: dict[str, Callable[[str], Any]] = {
    "week": by_week,
    "offset": at_another_offset,
    "T": lambda text: text.replace(" ", "T"),
    "Z": lambda text: f"{text}Z",
    "UTC": lambda text: f"{text}+00:00",
    "comma": lambda text: text.replace(".", ","),
    "digits": lambda text: f"{text}0",
    "basic": lambda text: f"{text[:10].replace('-', '')}T{text[11:]}",
    "bytes": str.encode,
}
IDS: dict[str, Callable[[str], Any]] = {
    "dashes": lambda text: str(uuid.UUID(text)),
    "capitals": lambda text: text.upper() if text.upper() != text else f"{{{text}}}",
    "braces": lambda text: f"{{{text}}}",
    "urn": lambda text: uuid.UUID(text).urn,
}
OBJECTS: dict[str, Callable[[str], Any]] = {
    "twice": lambda text: (
        text.replace("{", '{"lane": "FIRST", "n": "FIRST", ', 1) if _has_keys(text) else f" {text}"
    ),
    "spaces": lambda text: f"{text} ",
    "close": lambda text: json.dumps(json.loads(text), separators=(",", ":")) + "\n",
    "letters": lambda text: json.dumps(json.loads(text), ensure_ascii=False, indent=1),
    "bytes": str.encode,
}


def _has_keys(text: str) -> bool:
    """Whether the object has the keys that are said twice, so that the second ones count."""
    return "{" in text and all(f'"{key}"' in text for key in ("lane", "n"))


def other_forms(field: models.Field[Any, Any], text: str) -> dict[str, Any]:
    """What reads as the same value and is another text."""
    ways = {
        models.DateTimeField: TIMES,
        models.UUIDField: IDS,
        models.JSONField: OBJECTS,
    }[type(field)]
    return {name: form for name, write in ways.items() if (form := write(text)) != text}


def rows_of(built: Built) -> list[tuple[models.Model, list[str], tuple[str, int, str]]]:
    """Of each table a row, its columns that have other forms, and what is to be named of it."""
    batch, ids = next(iter(built.batches.items()))
    event = AuditEvent.objects.get(tenant_id=TENANT)
    value = AuditPersonalValue.objects.exclude(person_id=None).order_by("event_id")[0]
    with every_tenant("the test looks"):
        assignment = LaneAssignment.objects.get(pk=ids[2])
    return [
        (event, ["at", "tenant_id", "before", "after", "personal"], ("event", event.sequence, "")),
        (
            assignment,
            [
                "tenant_id",
                "api_key_id",
                "user_id",
                "entitlement_id",
                "step_downs",
                "budget_position",
                "created_at",
            ],
            ("assignment", batch, str(ids[2])),
        ),
        (SealedAssignment.objects.get(pk=ids[2]), ["generation_id"], ("assignment", batch, str(ids[2]))),
        (value, ["person_id"], ("event", value.event_id, "")),
        (
            AuditCheckpoint.objects.get(sequence=built.checkpoint),
            ["at"],
            ("checkpoint", built.checkpoint, ""),
        ),
        (AuditArchive.objects.get(), ["created_at"], ("archive", 1, AuditArchive.objects.get().file_name)),
        (AuditSigningKey.objects.get(), ["created_at"], ("key", 0, AuditSigningKey.objects.get().id)),
    ]


@pytest.mark.slow
@on_sqlite
@pytest.mark.parametrize("table", range(7))
def test_a_value_in_another_form_is_named_with_its_column(built: Built, table: int) -> None:
    row, columns, named = rows_of(built)[table]
    assert verify(from_scratch=True).fault is None
    for column in columns:
        text = raw(row, column)
        assert isinstance(text, str), column
        for form, written in other_forms(row._meta.get_field(column), text).items():
            with undone():
                set_raw(row, column, written)
                with every_tenant("the test looks"):
                    now = type(row)._base_manager.filter(pk=row.pk).first()
                if now is not None:
                    assert getattr(now, column) == getattr(row, column), (
                        f"{column}, {form}: it is another value"
                    )
                fault = verify(from_scratch=True).fault
                assert fault is not None, f"{column}, {form}: {written!r} was not found"
                assert (fault.kind.value, fault.sequence, fault.id) == named, f"{column}, {form}: {fault}"
                assert fault.reason == "altered"
                assert f"its {column} is written otherwise than Signalbox writes it" in fault.message


@on_sqlite
@pytest.mark.parametrize(
    ("model", "column", "kind"),
    [
        (AuditEvent, "action", "event"),
        (AuditEvent, "hash", "event"),
        (AuditEvent, "format", "event"),
        (LaneAssignment, "given_lane", "assignment"),
        (LaneAssignment, "policy_version", "assignment"),
        (SealedAssignment, "hash", "assignment"),
        (AuditHead, "hash", "head"),
        (AuditHead, "sequence", "head"),
        (AuditArchive, "last_hash", "archive"),
        (AuditCheckpoint, "sequence", "checkpoint"),
        (AuditPersonalValue, "value", "event"),
    ],
)
def test_bytes_that_spell_the_value_are_another_form(
    built: Built, model: type[models.Model], column: str, kind: str
) -> None:
    with every_tenant("the test looks"):
        row = model._base_manager.exclude(pk=built.unsealed).order_by("pk")[0]
    set_raw(row, column, str(raw(row, column)).encode())
    fault = verify(from_scratch=True).fault
    assert fault is not None
    assert (fault.kind.value, fault.reason.value) == (kind, "altered")


@on_sqlite
def test_who_ran_on_a_day_cannot_be_hidden_by_the_way_a_time_is_written(built: Built) -> None:
    """What the other forms are for: the question by days no longer finds the row."""
    _, ids = next(iter(built.batches.items()))
    with every_tenant("the test asks"):
        row = LaneAssignment.objects.get(pk=ids[2])
        day = row.created_at.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        that_day = LaneAssignment.objects.filter(
            created_at__gte=day, created_at__lt=day + timedelta(days=1), pk=row.pk
        )
        assert that_day.exists()
        set_raw(row, "created_at", by_week(raw(row, "created_at")))
        assert not that_day.exists()
        assert LaneAssignment.objects.get(pk=row.pk).created_at == row.created_at
    fault = verify(from_scratch=True).fault
    assert fault is not None
    assert fault.id == str(ids[2])


@on_sqlite
def test_what_waits_in_another_form_is_not_sealed_and_named(built: Built) -> None:
    with every_tenant("the test looks"):
        row = LaneAssignment.objects.get(pk=built.unsealed)
    set_raw(row, "tenant_id", str(row.tenant_id))
    assert sealing.seal(row.created_at) == 0
    fault = verify(from_scratch=True).fault
    assert fault is not None
    assert (fault.kind.value, fault.reason.value, fault.id) == ("assignment", "altered", str(built.unsealed))
    assert "its tenant_id is written otherwise" in fault.message


def test_postgresql_knows_one_form_of_each_value(built: Built) -> None:
    if connection.vendor != "postgresql":
        pytest.skip("SQLite keeps what it is given")
    event = AuditEvent.objects.get(tenant_id=TENANT)
    set_raw(event, "tenant_id", str(TENANT).upper(), sql="%s::uuid")
    set_raw(event, "after", '{"n": 1, "n": 2}', sql="%s::jsonb")
    set_raw(event, "at", event.at.astimezone(UTC).isoformat("T"), sql="%s::timestamptz")
    assert verify(from_scratch=True).fault is None


def test_what_signalbox_itself_writes_is_in_its_form(built: Built) -> None:
    assign(3)
    assert sealing.seal(timezone.now()) == 4, "the one that waited is among them"
    found = verify(from_scratch=True)
    assert (found.fault, found.unsealed) == (None, 0)


@on_sqlite
@given(
    time=st.datetimes(timezones=st.just(UTC)),
    number=st.uuids(),
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.dictionaries(st.text(), inner)
    ),
)
def test_the_form_is_the_one_that_django_writes(time: datetime, number: uuid.UUID, value: Any) -> None:
    values = {models.DateTimeField: time, models.UUIDField: number, models.JSONField: value or {}}
    assert values.keys() == WRITTEN.keys()
    for kind, one in values.items():
        assert WRITTEN[kind](one) == kind().get_db_prep_save(one, connection)


@on_sqlite
def test_what_is_remembered_of_texts_has_an_end_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(written_forms, "_MOST_KNOWN", 3)
    form = WrittenForm(SealedAssignment, ["generation_id", "index"])
    for number in [*range(10), *range(10)]:
        generation_id = uuid.UUID(int=number)
        row = (generation_id, number, generation_id.hex)
        assert form.checked(row) == row[:2]
        with pytest.raises(WrittenOtherwise, match="generation_id"):
            form.checked((generation_id, number, str(generation_id)))
        with pytest.raises(WrittenOtherwise, match="index"):
            form.checked((generation_id, str(number), generation_id.hex))


def test_a_column_of_a_kind_that_is_not_known_is_refused() -> None:
    with pytest.raises(TypeError, match="is_active"):
        WrittenForm(User, ["id", "is_active"])
