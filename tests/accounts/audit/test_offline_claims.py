"""What an export says of itself is in the chain too: nobody can cut something off, and call the rest an export."""

from __future__ import annotations

import hashlib
from copy import deepcopy
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from django.utils import timezone

from accounts.audit import archives, checkpoint_lines, checkpoints, export, signing_keys
from accounts.audit.canonical import canonical_json, content_hash
from accounts.audit.export import Selection
from accounts.models import AuditArchive, AuditCheckpoint, AuditSigningKey
from tests.accounts.audit.chains import record_events
from tests.accounts.audit.exported import (
    OURS,
    Record,
    anew,
    checked,
    exported,
    furnish,
    of_kind,
    record_of,
    records_in,
    totalled,
)
from tests.accounts.audit.own_state import settle
from tests.factories import ACTOR

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    settle(monkeypatch, tmp_path)
    return tmp_path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "export.jsonl"


@pytest.fixture
def key() -> AuditSigningKey:
    return furnish()


def with_gap() -> bytes:
    """An export of a time that is over, behind which much was recorded."""
    until = timezone.now()
    record_events(1)
    assert checkpoints.make(timezone.now())
    record_events(4)
    text = exported(Selection(last_at=until))
    assert of_kind(text, "gap")
    return text


def place_of(records: list[Record], sequence: int) -> int:
    """Where the event is."""
    return next(n for n, one in enumerate(records) if one.get("content", {}).get("sequence") == sequence)


# --- The beginning ---


def cut_before(records: list[Record], sequence: int) -> list[Record]:
    """The records without the events before ``sequence``, as if the file had always begun there."""
    made = deepcopy(records)
    head = [one for one in made if one["record"] in ("header", "key")]
    at = place_of(made, sequence)
    head[0] |= {"first": sequence, "previous": made[place_of(made, sequence - 1)]["hash"]}
    return [*head, *made[at:]]


def test_an_export_of_everything_whose_beginning_was_cut_off_is_refused(
    key: AuditSigningKey, path: Path
) -> None:
    records = records_in(exported())
    cut = cut_before(records, 4)
    for options in ((), ("--key", key.public_key)):
        status, said = checked(path, anew(cut), *options)
        assert (status, "begins" in said) == (1, True)
    cut[0]["selection"]["first_at"] = cut[place_of(cut, 4)]["content"]["at"]
    status, said = checked(path, anew(cut), "--key", key.public_key)
    assert status == 1
    assert "records another export than the header tells of" in said


def test_a_beginning_that_the_own_event_was_made_to_fit_is_not_proved(
    key: AuditSigningKey, path: Path
) -> None:
    """The event that says so is behind the last signature then."""
    cut = cut_before(records_in(exported()), 4)
    own = cut[place_of(cut, cut[0]["event"])]
    since = cut[place_of(cut, 4)]["content"]["at"]
    cut[0]["selection"]["first_at"] = since
    own["content"]["after"] |= {"first": 4, "first_at": since}
    status, said = checked(path, anew(cut), "--key", key.public_key)
    assert status == 3
    assert f"NOT PROVED: only event {cut[0]['event']} says so" in said
    assert "and what was asked for" in said


def test_the_first_event_of_a_time_is_proved(key: AuditSigningKey, path: Path) -> None:
    records = records_in(exported())
    since = records[place_of(records, 3)]["content"]["at"]
    text = exported(Selection(first_at=datetime.fromisoformat(since)))
    records = records_in(text)
    assert records[0]["first"] == 3
    assert checked(path, text, "--key", key.public_key)[0] == 0
    status, said = checked(path, anew(cut_before(records, 4)), "--key", key.public_key)
    assert status == 1
    assert "records another export" in said


# --- The selection ---


@pytest.mark.parametrize(
    "told",
    [
        {"tenant": None},
        {"lane": "high"},
        {"last_at": "2027-01-01T00:00:00.000000+00:00"},
        {"personal": False},
    ],
)
def test_another_selection_than_was_asked_for_is_refused(
    told: dict[str, Any], key: AuditSigningKey, path: Path
) -> None:
    records = records_in(exported(Selection(tenant_id=OURS)))
    records[0]["selection"] |= told
    status, _ = checked(path, totalled(records), "--key", key.public_key)
    assert status == 1


def test_events_of_everything_cannot_be_made_links_by_another_selection(
    key: AuditSigningKey, path: Path
) -> None:
    whole = records_in(exported())
    at = place_of(whole, 5)
    hidden = whole[at]["content"]
    whole[at] = {"record": "link", "sequence": 5, "content_hash": content_hash(hidden)}
    for told in ({}, {"tenant": ""}, {"tenant": "0" * 32}, {"last_at": ""}, {"lane": "normal"}):
        records = deepcopy(whole)
        records[0]["selection"] |= told
        assert checked(path, totalled(records), "--key", key.public_key)[0] in (1, 2)


def test_the_header_of_another_export_is_refused(key: AuditSigningKey, path: Path) -> None:
    one, other = records_in(exported()), records_in(exported(Selection(tenant_id=OURS)))
    for made in ([other[0], *one[1:]], [one[0], *other[1:]]):
        assert checked(path, totalled(made))[0] == 1


def test_of_two_exports_in_one_chain_the_own_event_counts(key: AuditSigningKey, path: Path) -> None:
    first, second = records_in(exported(Selection(tenant_id=OURS))), records_in(exported())
    second[0] |= {"id": first[0]["id"], "event": first[0]["event"], "at": first[0]["at"]}
    assert checked(path, totalled(second))[0] == 1
    second[0] |= {"selection": first[0]["selection"], "last": first[0]["event"]}
    assert checked(path, totalled(second))[0] == 1


def test_an_older_export_is_one_and_says_when_it_was_made(key: AuditSigningKey, path: Path) -> None:
    older = records_in(exported())
    exported()
    status, said = checked(path, totalled(older), "--key", key.public_key)
    assert status == 0
    assert f"this is what there was at {older[0]['at']} (event {older[0]['event']} says so)" in said


def test_true_is_not_taken_for_one_in_the_own_event(key: AuditSigningKey, path: Path) -> None:
    """Python finds them equal."""
    records = records_in(exported())
    records[place_of(records, records[0]["event"])]["content"]["after"]["first"] = True
    assert checked(path, anew(records))[0] == 1


# --- The end, and checkpoints that were kept ---


def kept_in(directory: Path, *made: AuditCheckpoint) -> tuple[str, str]:
    path = directory / "kept.jsonl"
    path.write_text("".join(checkpoint_lines.line(one) + "\n" for one in made))
    return "--checkpoint", str(path)


def cut_behind(records: list[Record], sequence: int, at: str) -> list[Record]:
    """The records up to an event, and a made-up own event behind it."""
    made = deepcopy(records)
    own = made[place_of(made, made[0]["event"])]
    own["content"] |= {"sequence": sequence + 1, "at": at}
    made[0] |= {"event": sequence + 1, "last": sequence + 1, "at": at}
    return [*made[: place_of(made, sequence) + 1], own, made[-1]]


def test_an_end_that_was_cut_off_is_told_by_a_checkpoint_that_was_kept(
    key: AuditSigningKey, directory: Path, path: Path
) -> None:
    record_of(OURS, n=9)
    last = checkpoints.make(timezone.now())
    assert last
    kept = kept_in(directory, last)
    records = records_in(exported())
    status, said = checked(path, totalled(records), *kept)
    assert status == 0
    assert f"1 of 1 agree, up to event {last.sequence}" in said
    at = place_of(records, last.sequence)
    shorter = [*records[:at], records[-1]]
    assert checked(path, anew(shorter), *kept)[0] == 1
    short = cut_behind(records, last.sequence - 3, records[0]["at"])
    assert checked(path, anew(short))[0] == 0
    status, said = checked(path, anew(short), *kept)
    assert status == 1
    assert f"you have a checkpoint of event {last.sequence}" in said
    # Said to be of a time before: then it is no more than that.
    short = cut_behind(records, last.sequence - 3, "2020-01-01T00:00:00.000000+00:00")
    status, said = checked(path, anew(short), *kept)
    assert status == 0
    assert f"THE FILE ENDS BEFORE 1, the first of event {last.sequence}" in said
    assert "NOT PROVED" in said
    assert checked(path, anew(short), *kept, "--key", key.public_key)[0] == 3


@pytest.mark.parametrize("at", ["0", "", "2027", "2027-01-01T00:00:00.000000+00:00\n"])
def test_the_time_that_a_file_goes_to_has_one_form(at: str, key: AuditSigningKey, path: Path) -> None:
    records = records_in(exported())
    records[0]["at"] = at
    assert checked(path, totalled(records))[0] != 0
    records[0]["at"] = records_in(exported())[0]["at"]
    records[0]["selection"]["last_at"] = at
    assert checked(path, totalled(records))[0] != 0


def test_an_older_export_says_that_it_ends_before_a_younger_checkpoint(
    key: AuditSigningKey, directory: Path, path: Path
) -> None:
    text = exported()
    record_of(OURS, n=9)
    younger = checkpoints.make(timezone.now())
    assert younger
    status, said = checked(path, text, "--key", key.public_key, *kept_in(directory, younger))
    assert status == 0
    assert f"THE FILE ENDS BEFORE 1, the first of event {younger.sequence}" in said


def test_a_time_that_is_over_is_held_against_checkpoints_of_that_time(
    key: AuditSigningKey, directory: Path, path: Path
) -> None:
    """Events before the time's end cannot be hidden behind the last one that is shown."""
    record_of(OURS, n=9)
    within = checkpoints.make(timezone.now())
    assert within
    kept = kept_in(directory, within)
    records = records_in(with_gap())
    assert checked(path, totalled(records), *kept, "--key", key.public_key)[0] == 0
    before = deepcopy(records)
    last = within.sequence - 1
    for n, record in enumerate(before):
        if record["record"] == "event" and last < record["content"]["sequence"] < records[0]["event"]:
            content = record["content"]
            before[n] = {
                "record": "link",
                "sequence": content["sequence"],
                "content_hash": content_hash(content),
            }
    before[0]["last"] = last
    own = before[place_of(before, before[0]["event"])]
    own["content"]["after"]["last"] = last
    status, said = checked(path, anew(before), *kept)
    assert status == 1
    assert f"you have a checkpoint of event {within.sequence}, made before" in said


def test_checkpoints_of_events_that_are_not_in_the_file_are_not_said_to_agree(
    key: AuditSigningKey, directory: Path, path: Path
) -> None:
    every = list(AuditCheckpoint.objects.order_by("sequence"))
    since = timezone.now()
    record_of(OURS, n=9)
    text = exported(Selection(first_at=since))
    status, said = checked(path, text, *kept_in(directory, *every))
    assert status == 0
    assert f"0 of {len(every)} agree" in said


# --- The gap ---


def test_a_time_that_is_over_is_proved_without_all_that_came_after(key: AuditSigningKey, path: Path) -> None:
    text = with_gap()
    records = records_in(text)
    [gap] = of_kind(text, "gap")
    own = of_kind(text, "event")[-1]["content"]
    assert (gap["sequence"] + 1, own["action"]) == (records[0]["event"], "audit.export")
    assert own["after"] == records[0]["selection"] | {"first": 1, "last": records[0]["last"]}
    assert sum(of_kind(text, "end")[0]["counts"].values()) < len(records)
    status, said = checked(path, text, "--key", key.public_key)
    assert status == 0
    assert "Not proved by either: 0 events of these." in said


def test_a_time_that_is_over_comes_with_the_event_that_says_so(key: AuditSigningKey, path: Path) -> None:
    records = records_in(with_gap())
    gap = next(n for n, record in enumerate(records) if record["record"] == "gap")
    for cut in (gap, gap + 1):
        status, said = checked(path, anew([*records[:cut], records[-1]]), "--key", key.public_key)
        assert (status, "without the export's own event" in said) == (1, True)


def test_a_gap_where_nothing_was_left_out_is_none(key: AuditSigningKey, path: Path) -> None:
    until = timezone.now()
    assert checkpoints.make(until)
    text = exported(Selection(last_at=until))
    assert not of_kind(text, "gap")
    assert checked(path, text, "--key", key.public_key)[0] == 0


@pytest.mark.parametrize("what", ["earlier", "no checkpoint", "another event", "twice", "in an archive"])
def test_a_gap_elsewhere_is_refused(what: str, key: AuditSigningKey, path: Path) -> None:
    records = records_in(with_gap())
    at = next(n for n, record in enumerate(records) if record["record"] == "gap")
    match what:
        case "earlier":
            del records[at - 2 : at]
        case "no checkpoint":
            del records[at - 1]
        case "another event":
            records[at]["sequence"] -= 1
        case "twice":
            records.insert(at, records[at] | {"sequence": records[at]["sequence"] - 1})
        case _:
            records[0] |= {"kind": "archive", "event": None, "id": None}
            records[0]["selection"]["personal"] = False
    assert checked(path, anew(records))[0] == 1


def test_events_that_were_made_up_before_a_gap_are_not_proved_by_what_is_behind_it(
    key: AuditSigningKey, path: Path
) -> None:
    """Not even where whoever made them up signs them."""
    records = records_in(with_gap())
    records[place_of(records, 1)]["content"]["after"]["lane_id"] = "high"
    status, said = checked(path, anew(records), "--key", key.public_key)
    assert (status, "(gap) is out of place" in said) == (1, True)
    private = Ed25519PrivateKey.generate()
    public = private.public_key().public_bytes_raw().hex()
    since = "2099-01-01T00:00:00.000000+00:00"
    theirs = {"record": "key", "id": signing_keys.id_of(public), "public_key": public, "at": since}
    newest = [n for n, record in enumerate(records) if record["record"] == "key"][-1]
    records.insert(newest + 1, theirs | {"signed_by": "", "signature": ""})
    gap = next(n for n, record in enumerate(records) if record["record"] == "gap")
    [*made_up, end] = records_in(anew([*records[:gap], records[-1]]))
    statement = {"sequence": end["sequence"], "hash": end["hash"], "at": since, "key": theirs["id"]}
    signature = private.sign(canonical_json({"checkpoint": 1, **statement})).hex()
    signed = {"record": "checkpoint", **statement, "signature": signature}
    for options, expected in (((), 0), (("--key", key.public_key), 3)):
        status, said = checked(path, totalled([*made_up, signed, *records[gap:]]), *options)
        assert status == expected
        assert f"Not proved by either: {records[0]['last']} events of these" in said


# --- Archives ---


@pytest.fixture
def archived(key: AuditSigningKey) -> list[Record]:
    [made] = archives.archive(timezone.now(), timezone.now() + timedelta(days=1), least=1)
    return list(archives.read(made))


def test_an_archive_says_that_nothing_but_itself_says_where_it_begins(
    archived: list[Record], key: AuditSigningKey, path: Path
) -> None:
    status, said = checked(path, totalled(archived), "--key", key.public_key)
    assert status == 0
    assert "NOT PROVED: only the file says so: see audit.archive for its SHA-256" in said
    status, said = checked(path, anew(cut_before(archived, 4)), "--key", key.public_key)
    assert status == 1
    file = archives.path_of(AuditArchive.objects.get())
    assert hashlib.sha256(file.read_bytes()).hexdigest() in exported().decode()


@pytest.mark.parametrize(
    "told",
    [
        {"tenant": "0" * 32},
        {"lane": "high"},
        {"personal": True},
        {"first_at": None},
        {"last_at": None},
        {"first_at": "2020-01-01T00:00:00.000000+00:00"},
        {"last_at": "2030-01-01T00:00:00.000000+00:00"},
    ],
)
def test_an_archive_tells_of_all_of_its_time(
    told: dict[str, Any], archived: list[Record], path: Path
) -> None:
    archived[0]["selection"] |= told
    assert checked(path, totalled(archived))[0] == 1


def test_an_archive_has_no_links(archived: list[Record], path: Path) -> None:
    at = place_of(archived, 2)
    content = archived[at]["content"]
    archived[at] = {"record": "link", "sequence": 2, "content_hash": content_hash(content)}
    assert checked(path, totalled(archived))[0] == 1
    archived[0]["selection"]["tenant"] = "0" * 32
    assert checked(path, totalled(archived))[0] == 1


def test_an_archive_that_is_held_against_a_checkpoint_goes_to_its_last_event(
    archived: list[Record], directory: Path, path: Path
) -> None:
    record_of(OURS, n=9)
    younger = checkpoints.make(timezone.now())
    assert younger
    status, said = checked(path, totalled(archived), *kept_in(directory, younger))
    assert status == 0
    assert f"THE FILE ENDS BEFORE 1, the first of event {younger.sequence}" in said


# --- Exports that nothing signs ---


def test_an_export_that_could_not_be_signed_says_so(
    key: AuditSigningKey, directory: Path, path: Path
) -> None:
    assert export.begin(Selection(), with_personal=False, actor=ACTOR).is_signed
    for one in (directory / "secrets").glob("audit_signing_key*"):
        one.unlink()
    begun = export.begin(Selection(), with_personal=False, actor=ACTOR)
    assert not begun.is_signed
    status, said = checked(path, b"".join(export.pages(begun)), "--key", key.public_key)
    assert status == 3
    assert "and what was asked for" in said
