"""Exports: what is in them, what is not, and how they are read while the chain moves on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from structlog.testing import capture_logs

from accounts.audit import archives, checkpoints, export, stored
from accounts.audit.canonical import content_hash, utc_text
from accounts.audit.contents import assignment_content, event_content
from accounts.audit.erasure import erase_values
from accounts.audit.export import ExportRefused, Selection
from accounts.audit.stored import ChainBroken
from accounts.models import AuditEvent, AuditHead, AuditSigningKey, LaneAssignment, SealedAssignment
from accounts.tenancy import every_tenant
from tests.accounts.audit.chains import record_events
from tests.accounts.audit.exported import (
    OF_OTHERS,
    OURS,
    PERSON,
    PERSONAL,
    exported,
    furnish,
    of_kind,
    record_of,
    records_in,
    seal_for,
    verdict,
)
from tests.accounts.audit.older import record_in_format_1
from tests.accounts.audit.own_state import settle
from tests.factories import ACTOR, TenantFactory

pytestmark = pytest.mark.django_db

Tampering = Callable[[], AbstractContextManager[None]]


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    settle(monkeypatch, tmp_path)
    return tmp_path


@pytest.fixture
def first_key() -> AuditSigningKey:
    return furnish()


def head() -> int:
    return AuditHead.objects.get(id=1).sequence


def test_an_export_of_everything_holds_every_event_and_assignment_and_proves_them(
    first_key: AuditSigningKey, tmp_path: Path
) -> None:
    text = exported()
    events = of_kind(text, "event")
    assert [event["content"] for event in events] == [
        event_content(row) for row in AuditEvent.objects.order_by("sequence")
    ]
    with every_tenant("the test looks at everything"):
        sealed = [assignment_content(row) for row in LaneAssignment.objects.all()]
    shown = [one["content"] for one in of_kind(text, "assignment")]
    assert sorted(shown, key=content_hash) == sorted(sealed, key=content_hash)
    assert not of_kind(text, "link")
    assert len(of_kind(text, "checkpoint")) == 4
    assert of_kind(text, "key")[0]["id"] == first_key.id
    found = verdict(tmp_path / "auditor", text, "--key", first_key.public_key)
    assert found.status == 0, found.complaint
    assert f"up to event {head()}" in found.said
    assert "Not proved by either: 0 events" in found.said


def test_an_export_is_an_event_that_says_what_was_asked_for_and_is_there_before_the_first_line(
    first_key: AuditSigningKey,
) -> None:
    lines = export.records(Selection(tenant_id=OURS, lane="high"), with_personal=False, actor=ACTOR)
    assert not AuditEvent.objects.filter(action="audit.export").exists()
    header = records_in(next(lines))[0]
    event = AuditEvent.objects.get(action="audit.export")
    assert event.after == {
        "tenant": OURS.hex,
        "lane": "high",
        "first_at": None,
        "last_at": None,
        "personal": False,
        "first": 1,
        "last": None,
    }
    assert (event.actor_id, event.tenant_id, event.object_id) == (ACTOR.id, OURS, header["id"])
    assert (header["event"], header["last"], header["at"]) == (
        event.sequence,
        event.sequence,
        utc_text(event.at),
    )
    assert header["selection"] | {"first": 1, "last": None} == event.after


def test_an_export_of_a_tenant_shows_nothing_of_others_and_is_proved(
    first_key: AuditSigningKey, tmp_path: Path
) -> None:
    text = exported(Selection(tenant_id=OURS))
    for word in OF_OTHERS:
        assert word.encode() not in text
    assert len(of_kind(text, "assignment")) == 8
    shown = {event["content"]["sequence"] for event in of_kind(text, "event")}
    ours = AuditEvent.objects.filter(tenant_id=OURS)
    assert shown >= set(ours.values_list("sequence", flat=True))
    assert {link["sequence"] for link in of_kind(text, "link")} == set(range(1, head() + 1)) - shown
    found = verdict(tmp_path / "auditor", text, "--key", first_key.id)
    assert found.status == 0, found.complaint
    assert "8 assignments of 3 batches, 1 of these whole" in found.said


def test_an_export_of_a_lane_shows_what_is_about_it(first_key: AuditSigningKey, tmp_path: Path) -> None:
    text = exported(Selection(lane="high"))
    assert {one["content"]["given_lane"] for one in of_kind(text, "assignment")} == {"high"}
    changed = [
        event["content"]
        for event in of_kind(text, "event")
        if event["content"]["action"] == "entitlement.change"
    ]
    assert [content["before"]["lane_id"] for content in changed] == ["high", "high"]
    assert verdict(tmp_path / "auditor", text, "--key", first_key.id).status == 0


def test_an_export_of_a_time_begins_and_ends_there_and_goes_on_to_a_signature(tmp_path: Path) -> None:
    record_of(OURS)
    since = timezone.now()
    record_of(OURS, n=1)
    record_of(OURS, n=2)
    until = timezone.now()
    record_of(OURS, n=3)
    assert checkpoints.make(timezone.now())
    record_of(OURS, n=4)
    text = exported(Selection(first_at=since, last_at=until))
    own = AuditEvent.objects.get(action="audit.export")
    assert own.after is not None
    assert (own.after["first"], own.after["last"]) == (2, 3)
    assert [event["content"]["sequence"] for event in of_kind(text, "event")] == [2, 3, own.sequence]
    assert (records_in(text)[0]["first"], records_in(text)[0]["last"]) == (2, 3)
    [signed, head_signed] = [one["sequence"] for one in of_kind(text, "checkpoint")]
    assert [link["sequence"] for link in of_kind(text, "link")] == list(range(4, signed + 1))
    assert [gap["sequence"] for gap in of_kind(text, "gap")] == [own.sequence - 1]
    assert signed < own.sequence - 1
    assert head_signed == own.sequence
    found = verdict(tmp_path / "auditor", text, "--key", of_kind(text, "key")[0]["public_key"])
    assert found.status == 0, found.complaint
    assert f"(event {own.sequence} says so)" in found.said


def test_an_event_that_was_not_committed_yet_when_a_time_was_looked_up_is_in_it() -> None:
    record_of(OURS)
    record_of(OURS, n=1)
    until = timezone.now()
    record_of(OURS, n=2)
    with transaction.atomic():
        assert export._with_those_in_flight(1, until) == 2
        assert export._with_those_in_flight(2, until) == 2


def test_a_time_in_which_nothing_was_recorded_is_refused_and_nothing_is_recorded(
    first_key: AuditSigningKey,
) -> None:
    last = head()
    for selection in (
        Selection(last_at=timezone.now() - timedelta(days=1)),
        Selection(first_at=timezone.now() + timedelta(days=1)),
    ):
        with pytest.raises(ExportRefused, match="Nothing"):
            exported(selection)
    assert head() == last


def test_personal_values_are_left_out_where_they_are_not_wanted(
    first_key: AuditSigningKey, tmp_path: Path
) -> None:
    text = exported(Selection(tenant_id=OURS))
    for value in PERSONAL:
        assert value.encode() in text
    text = exported(Selection(tenant_id=OURS), with_personal=False)
    for value in PERSONAL:
        assert value.encode() not in text
    assert verdict(tmp_path / "auditor", text, "--key", first_key.id).status == 0


def test_what_was_erased_is_not_in_an_export_and_all_else_is_proved_as_before(
    first_key: AuditSigningKey, tmp_path: Path
) -> None:
    before = exported()
    assert b'"value":"grace"' in before
    assert erase_values(PERSON) == 1
    after = exported()
    assert b'"value":"grace"' not in after
    contents = [event["content"] for event in of_kind(after, "event")]
    assert contents[: len(of_kind(before, "event"))] == [
        event["content"] for event in of_kind(before, "event")
    ]
    found = verdict(tmp_path / "auditor", after, "--key", first_key.id)
    assert found.status == 0, found.complaint
    assert "1 erased or left out" in found.said


def test_what_was_archived_is_exported_from_its_file_with_the_names_that_are_still_kept(
    first_key: AuditSigningKey, tmp_path: Path
) -> None:
    before = exported()
    moved = archives.archive(timezone.now(), timezone.now() + timedelta(days=1), least=1)
    assert moved
    assert AuditEvent.objects.order_by("sequence")[0].sequence > moved[-1].last_sequence
    after = exported()
    known = len(of_kind(before, "event"))
    assert of_kind(after, "event")[:known] == of_kind(before, "event")
    assert of_kind(after, "assignment") == of_kind(before, "assignment")
    assert verdict(tmp_path / "auditor", after, "--key", first_key.id).status == 0
    ours = exported(Selection(tenant_id=OURS))
    assert len(of_kind(ours, "assignment")) == 8
    assert verdict(tmp_path / "auditor", ours, "--key", first_key.id).status == 0


def test_times_are_found_in_archives_too(tmp_path: Path) -> None:
    marks: list[datetime] = []
    for n in range(3):
        marks.append(timezone.now())
        record_of(OURS, n=n)
        assert checkpoints.make(timezone.now())
    created = AuditEvent.objects.get(action="audit_signing_key.create").sequence
    archives.archive(timezone.now(), timezone.now() + timedelta(days=1), least=1)
    record_of(OURS, n=3)
    for first in range(3):
        for last in range(first + 1, 3):
            text = exported(Selection(first_at=marks[first], last_at=marks[last]))
            shown = [
                event["content"]["before"]["n"]
                for event in of_kind(text, "event")
                if event["content"]["before"]
            ]
            assert shown == list(range(first, last))
            assert verdict(tmp_path / "auditor", text).status == 0
    assert created == 2


def test_rows_that_are_archived_while_an_export_runs_are_not_missed(
    monkeypatch: pytest.MonkeyPatch, first_key: AuditSigningKey, tmp_path: Path
) -> None:
    monkeypatch.setattr(stored, "PAGE", 2)
    pages = export.pages(export.begin(Selection(), with_personal=True, actor=ACTOR))
    text = next(pages) + next(pages)
    assert archives.archive(timezone.now(), timezone.now() + timedelta(days=1), least=1)
    text += b"".join(pages)
    found = verdict(tmp_path / "auditor", text, "--key", first_key.id)
    assert found.status == 0, found.complaint


@pytest.mark.parametrize("gone", ["event", "leaf", "assignment"])
def test_an_export_ends_where_a_row_is_gone(
    gone: str, first_key: AuditSigningKey, tampering: Tampering
) -> None:
    batch = AuditEvent.objects.filter(action="lane_assignments.seal").order_by("sequence")[1]
    sequence = batch.sequence
    with tampering(), every_tenant("the test deletes what it likes"):
        if gone == "event":
            batch.delete()
        else:
            assignments = LaneAssignment.objects.filter(
                generation_id__in=SealedAssignment.objects.filter(batch=batch.sequence).values(
                    "generation_id"
                )
            )
            [one, *_] = assignments
            if gone == "assignment":
                one.delete()
            else:
                SealedAssignment.objects.filter(generation_id=one.generation_id).delete()
    lines = export.records(Selection(), with_personal=True, actor=ACTOR)
    with pytest.raises(ChainBroken, match=f"Event {sequence} "):
        list(lines)


def test_without_a_key_to_sign_with_an_export_is_proved_up_to_the_last_checkpoint(
    first_key: AuditSigningKey, directory: Path
) -> None:
    for key in (directory / "secrets").glob("audit_signing_key*"):
        key.unlink()
    with capture_logs() as logs:
        text = exported()
    assert [log["event"] for log in logs] == ["audit_export_without_new_checkpoint"]
    found = verdict(directory / "auditor", text, "--key", first_key.id)
    assert found.status == 3, found.complaint
    assert "Not proved by either: 2 events of these, and what was asked for" in found.said


def test_the_command_says_that_nothing_proves_an_export_that_it_could_not_sign(
    first_key: AuditSigningKey, directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("--output", str(directory / "signed.jsonl"))
    assert "no signing key" not in capsys.readouterr().err
    for key in (directory / "secrets").glob("audit_signing_key*"):
        key.unlink()
    run("--output", str(directory / "unsigned.jsonl"))
    assert "no signing key" in capsys.readouterr().err


def test_events_of_the_first_format_are_shown_whole_or_not_at_all(
    tampering: Tampering, tmp_path: Path
) -> None:
    record_in_format_1(3, tampering)
    record_of(OURS)
    whole = exported()
    assert [event["content"]["sequence"] for event in of_kind(whole, "event")][:3] == [1, 2, 3]
    assert verdict(tmp_path / "auditor", whole).status == 0
    part = exported(Selection(tenant_id=OURS))
    assert records_in(part)[0]["first"] == 4
    assert verdict(tmp_path / "auditor", part).status == 0
    assert archives.archive(timezone.now(), timezone.now() + timedelta(days=1), least=1)
    part = exported(Selection(tenant_id=OURS))
    assert records_in(part)[0]["first"] == 4
    assert verdict(tmp_path / "auditor", part).status == 0


def test_a_page_takes_the_same_few_questions_however_long_the_chain_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stored, "PAGE", 10)
    record_events(30)
    pages = export.pages(export.begin(Selection(), with_personal=True, actor=ACTOR))
    next(pages)
    for _ in range(3):
        with CaptureQueriesContext(
            connection,
        ) as asked:
            page = next(pages)
        assert len(page.splitlines()) == 10
        assert len(asked) <= 4


def test_a_batch_of_many_assignments_is_a_page_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "_ASSIGNMENTS_A_PAGE", 5)
    seal_for([OURS] * 7)
    record_events(3)
    pages = list(export.pages(export.begin(Selection(), with_personal=True, actor=ACTOR)))
    assert len(pages[1].splitlines()) == 8


@pytest.mark.django_db(transaction=True)
def test_a_web_answer_gets_the_same_pages_one_by_one(tmp_path: Path) -> None:
    furnish()
    begun = export.begin(Selection(), with_personal=True, actor=ACTOR)

    async def read() -> list[bytes]:
        return [page async for page in export.pages_async(begun)]

    assert asyncio.run(read()) == list(export.pages(begun))


def run(*arguments: str) -> str:
    out = StringIO()
    call_command("audit", "export", *arguments, stdout=out)
    return out.getvalue()


def test_the_command_writes_a_file_that_is_whole_and_its_owners_alone(
    first_key: AuditSigningKey, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "auditor" / "export.jsonl"
    path.parent.mkdir()
    path.write_text("an older one")
    path.chmod(0o644)
    run("--output", str(path))
    assert path.stat().st_mode & 0o777 == 0o600
    assert [found.name for found in path.parent.iterdir()] == ["export.jsonl"]
    assert "verify_export.py" in capsys.readouterr().err
    assert verdict(path.parent, path.read_bytes(), "--key", first_key.id).status == 0


def test_the_command_writes_to_the_standard_output(first_key: AuditSigningKey) -> None:
    text = run("--output", "-", "--without-personal", "--lane", "high").encode()
    assert records_in(text)[-1]["record"] == "end"
    assert of_kind(text, "event")[-1]["content"]["after"]["lane"] == "high"


def test_the_command_takes_a_tenant_and_a_time(first_key: AuditSigningKey, tmp_path: Path) -> None:
    tenant = TenantFactory(slug="rail")
    record_of(tenant.id)
    since = AuditEvent.objects.order_by("-sequence")[0].at
    text = run("--output", "-", "--tenant", "rail", "--from", since.isoformat()).encode()
    header = records_in(text)[0]
    assert (header["selection"]["tenant"], header["selection"]["first_at"]) == (
        tenant.id.hex,
        utc_text(since),
    )
    assert len(of_kind(text, "event")) == 2


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--tenant", "nobody"], "no tenant 'nobody'"),
        (["--lane", "fast"], "no lane 'fast'. There are: high"),
        (["--from", "tomorrow"], "is no date"),
        (["--to", "2020-01-01"], "Nothing that can be shown"),
    ],
)
def test_the_command_says_what_it_cannot_export(
    arguments: list[str], told: str, first_key: AuditSigningKey, tmp_path: Path
) -> None:
    with pytest.raises(CommandError, match=told):
        run("--output", str(tmp_path / "export.jsonl"), *arguments)
    assert not list(tmp_path.glob("*export*"))
    assert not AuditEvent.objects.filter(action="audit.export").exists()


def test_the_command_records_no_export_that_it_has_nowhere_to_write(
    first_key: AuditSigningKey, tmp_path: Path
) -> None:
    with pytest.raises(CommandError, match="cannot be written"):
        run("--output", str(tmp_path / "nowhere" / "export.jsonl"))
    assert not AuditEvent.objects.filter(action="audit.export").exists()


def test_an_export_that_fails_midway_leaves_no_file(
    monkeypatch: pytest.MonkeyPatch, first_key: AuditSigningKey, tmp_path: Path
) -> None:
    def broken(*arguments: object) -> Iterator[bytes]:
        yield b"{}\n"
        raise ChainBroken("Event 7 is not there")

    monkeypatch.setattr(export, "pages", broken)
    with pytest.raises(CommandError, match="Event 7"):
        run("--output", str(tmp_path / "export.jsonl"))
    assert not list(tmp_path.glob("*export*"))
