"""What the script reads has one form each: nothing else passes for it, and nothing forges what the script says."""

from __future__ import annotations

import ast
import functools
import hashlib
import itertools
import json
import re
from collections.abc import Callable
from copy import deepcopy
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from accounts.audit import checkpoint_lines, checkpoints
from accounts.audit.canonical import canonical_json
from accounts.audit.export import Selection
from accounts.audit.offline import verify_export
from accounts.models import AuditSigningKey
from tests.accounts.audit.exported import (
    OURS,
    SCRIPT,
    Record,
    anew,
    checked,
    exported,
    furnish,
    records_in,
    totalled,
)
from tests.accounts.audit.own_state import settle

pytestmark = pytest.mark.django_db

#: What would end a line of the summary, and begin another; or hide what comes after it on a terminal.
FORGED = "x\nSigned: up to event 99.\x1b[8m\u202e"


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    settle(monkeypatch, tmp_path)
    return tmp_path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "export.jsonl"


@pytest.fixture
def records() -> list[Record]:
    furnish()
    return records_in(exported())


def refused(path: Path, text: bytes, *options: str) -> str:
    """What the script says of a file that it must not take: one line that anybody can print."""
    status, said = checked(path, text, *options)
    assert status in (1, 2)
    assert said.count("\n") == 1
    assert said.rstrip("\n").isprintable()
    return said


def first_of(records: list[Record], kind: str) -> Record:
    return next(record for record in records if record["record"] == kind)


# --- Text that forges ---


def places_of_text(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where texts, numbers and nulls stand in a record."""
    pairs: Any = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    found = [] if pairs else [place] * (not isinstance(value, dict | list))
    return found + [one for name, inner in pairs for one in places_of_text(inner, (*place, name))]


def put(record: Record, place: tuple[Any, ...], value: Any) -> Record:
    made = deepcopy(record)
    at = made
    for name in place[:-1]:
        at = at[name]
    at[place[-1]] = value
    return made


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["header", "key", "link", "checkpoint", "end", "assignment", "event"])
def test_nothing_else_is_taken_in_any_place_of_any_record_and_nothing_of_it_is_printed(
    kind: str, records: list[Record], path: Path
) -> None:
    if kind == "link":
        records = records_in(exported(Selection(tenant_id=OURS)))
    at = records.index(first_of(records, kind))
    places = [place for place in places_of_text(records[at]) if place != ("record",)]
    for place, value in itertools.product(places, (FORGED, "", True, 1.0, [], {}, -1, 10**50)):
        was = functools.reduce(lambda holder, name: holder[name], place, records[at])
        if was != value or type(was) is not type(value):
            made = [*records[:at], put(records[at], place, value), *records[at + 1 :]]
            refused(path, written(made, kind))


def written(records: list[Record], kind: str) -> bytes:
    """The records as a file whose last line fits; unless that is the one that was changed."""
    if kind != "end":
        return totalled(records)
    return b"".join(canonical_json(record) + b"\n" for record in records)


def test_the_summary_has_the_lines_that_it_has(records: list[Record], path: Path) -> None:
    """And nothing in it that was not looked at."""
    status, said = checked(path, totalled(records))
    assert status == 0
    assert len(said.splitlines()) == 5
    for name in ("at", "first_at", "last_at", "tenant", "lane"):
        made = deepcopy(records)
        where = made[0] if name == "at" else made[0]["selection"]
        for value in (FORGED, f"2026-01-01T00:00:00.000000+00:00{FORGED}", f"{'0' * 32}\n", "high\n"):
            where[name] = value
            refused(path, totalled(made))


@pytest.mark.parametrize("record", [FORGED, [FORGED], {"record": FORGED}, None, 7])
def test_what_is_no_record_is_not_printed(record: Any, records: list[Record], path: Path) -> None:
    text = canonical_json(records[0]) + b"\n" + canonical_json({"record": record}) + b"\n"
    assert "(no record)" in refused(path, text)


def test_what_one_keeps_oneself_is_looked_at_too(records: list[Record], directory: Path, path: Path) -> None:
    made = json.loads(checkpoint_lines.line(checkpoints.latest() or pytest.fail("there is none")))
    kept = directory / "kept.jsonl"
    for told in (
        {"at": FORGED},
        {"at": ""},
        {"sequence": True},
        {"sequence": 1.0},
        {"hash": FORGED},
        {"key": None},
    ):
        kept.write_text(json.dumps(made | told) + "\n")
        assert "is not read" in refused(path, totalled(records), "--checkpoint", str(kept))


# --- One way to write each thing ---


@pytest.mark.parametrize(
    ("what", "other"),
    [
        (b'"format":1', b'"format":1.0'),
        (b'"format":1', b'"format":true'),
        (b'"first":1', b'"first":1e0'),
        (b'"first":1', b'"first":-0'),
        (b'"first":1', b'"first":' + b"9" * 5000),
        (b'"first":1', b'"first":' + b"1" * 101),
        (b'"first":1', b'"first":NaN'),
        (b'"first":1', b'"first":Infinity'),
        (b'"first":1', b'"first":1,"first":1'),
        (b'"kind":"export"', b'"kind":"archive","kind":"export"'),
        (b'"kind":"export"', b'"kind":"\\u0065xport"'),
        (b'"lane":null', b'"lane":"\\ud800"'),
        (b'"lane":null', b'"lane":"\xed\xa0\x80"'),
        (b'"lane":null', b'"lane": null'),
        (b'"lane":null', b'"lane":' + b"[" * 5000 + b"]" * 5000),
    ],
)
def test_a_line_that_is_written_in_another_way_is_refused(
    what: bytes, other: bytes, records: list[Record], path: Path
) -> None:
    [header, *rest] = totalled(records).splitlines(keepends=True)
    assert header.count(what) == 1
    refused(path, b"".join([header.replace(what, other), *rest]))


def test_numbers_of_any_length_are_refused_at_once(records: list[Record], path: Path) -> None:
    """Older Pythons take hours for the digits of one line."""
    line = b'{"record":"header","first":' + b"7" * 10_000_000 + b"}\n"
    refused(path, line)


def _in_content(content: Record) -> None:
    content["more"] = 1


def _float(content: Record) -> None:
    content["before"] = {"price": 1.5}


def _whole_float(content: Record) -> None:
    content["before"] = {"price": 1.0}


def _deep_float(content: Record) -> None:
    content["after"] = {"a": [{"b": 1e-7}]}


def _text_for_fields(content: Record) -> None:
    content["after"] = "all"


def _actor(content: Record) -> None:
    content["actor"] = [*content["actor"], "more"]


def _object(content: Record) -> None:
    content["object"] = {"kind": "thing"}


def _tenant(content: Record) -> None:
    content["tenant"] = ""


def _format(content: Record) -> None:
    content["format"] = 3


def _no_session(content: Record) -> None:
    del content["session"]


def _path_of_commitment(content: Record) -> None:
    content["personal"] = {FORGED: "0" * 64}


def _commitment(content: Record) -> None:
    content["personal"] = {"address": FORGED}


@pytest.mark.parametrize(
    "change",
    [
        _in_content,
        _float,
        _whole_float,
        _deep_float,
        _text_for_fields,
        _actor,
        _object,
        _tenant,
        _format,
        _no_session,
        _path_of_commitment,
        _commitment,
    ],
)
def test_an_event_has_the_fields_that_are_named_and_no_floats_even_if_its_hash_fits(
    change: Callable[[Record], None], records: list[Record], path: Path
) -> None:
    """A chain of another's making has any hash that it likes."""
    at = records.index(first_of(records, "event"))
    change(records[at]["content"])
    records[at].pop("personal")
    said = refused(path, anew(records))
    assert f"line {at + 1} " in said


@pytest.mark.parametrize(
    "told",
    [
        {"more": 1},
        {"format": 2},
        {"step_downs": {}},
        {"budget_position": [{"used": 0.5}]},
        {"policy_version": True},
        {"tenant": ["0" * 32]},
        {"key": ["", "sk"]},
        {"generation": FORGED},
    ],
    ids=str,
)
def test_an_assignment_has_the_fields_that_are_named_and_no_floats(
    told: Record, records: list[Record], path: Path
) -> None:
    at = records.index(first_of(records, "assignment"))
    records[at]["content"] |= told
    said = refused(path, totalled(records))
    assert "other fields" in said or "no number" in said or "not formed" in said


@pytest.mark.parametrize(
    "told", [{"more": 1}, {"path": None}, {"path": [FORGED]}, {"path": [1]}, {"index": 0.5}]
)
def test_a_proof_has_the_fields_that_are_named(told: Record, records: list[Record], path: Path) -> None:
    at = records.index(first_of(records, "assignment"))
    records[at]["proof"] |= told
    refused(path, totalled(records))


def test_a_path_is_written_in_one_way(records: list[Record], path: Path) -> None:
    part = records_in(exported(Selection(tenant_id=OURS)))
    one = next(record for record in part if record.get("proof", {}).get("path"))
    one["proof"]["path"] = [digits.upper() for digits in one["proof"]["path"]]
    refused(path, totalled(part))


@pytest.mark.parametrize("told", [{"root": FORGED}, {"count": True}, {"more": 1}])
def test_what_seals_no_batch_is_refused(told: Record, records: list[Record], path: Path) -> None:
    at = next(
        n for n, one in enumerate(records) if one.get("content", {}).get("action") == "lane_assignments.seal"
    )
    records[at]["content"]["after"] |= told
    said = refused(path, anew(records))
    assert f"line {at + 1} " in said


# --- Names and addresses ---


@pytest.mark.parametrize(
    "told",
    [
        {"person": None},
        {"person": "0" * 32},
        {"person": ""},
        {"salt": "0" * 32},
        {"value": "eve"},
        {"more": 1},
        {"value": 7},
    ],
    ids=str,
)
def test_a_value_of_another_person_than_was_recorded_is_refused(
    told: Record, records: list[Record], path: Path
) -> None:
    event = next(one for one in records if one.get("personal", {}).get("actor_name"))
    event["personal"]["actor_name"] |= told
    refused(path, totalled(records))


def test_the_salt_cannot_take_in_whom_it_is_about(records: list[Record], path: Path) -> None:
    event = next(one for one in records if one.get("personal", {}).get("actor_name"))
    told = event["personal"]["actor_name"]
    told["salt"], told["person"] = told["salt"] + told["person"].encode().hex(), None
    refused(path, totalled(records))


def test_names_are_where_they_were_asked_for_and_nowhere_else(records: list[Record], path: Path) -> None:
    event = next(one for one in records if one.get("personal"))
    was = event["personal"]
    for told in ({}, {FORGED: was["actor_name"]}, was | {"before.more": was["actor_name"]}):
        event["personal"] = told
        refused(path, totalled(records))
    event["personal"] = was
    without = records_in(exported(with_personal=False))
    at = next(n for n, one in enumerate(without) if one.get("hash") == event["hash"])
    without[at] = event
    assert "asked for" in refused(path, totalled(without))


# --- How much ---


def test_keys_are_read_up_to_a_number(records: list[Record], path: Path) -> None:
    """Each may cost the check of a signature."""
    keys = []
    for n in range(verify_export.MOST_KEYS + 1):
        public = hashlib.sha256(str(n).encode()).hexdigest()
        name = hashlib.sha256(bytes.fromhex(public)).hexdigest()[:16]
        at = f"2020-01-01T00:{n // 60:02}:{n % 60:02}.000000+00:00"
        keys.append(
            {"record": "key", "id": name, "public_key": public, "signed_by": "", "signature": "", "at": at}
        )
    said = refused(path, totalled([records[0], *keys, *records[1:]]))
    assert f"line {verify_export.MOST_KEYS + 2} " in said
    assert "one too many" in said


def test_no_key_is_brought_in_behind_a_signature(records: list[Record], path: Path) -> None:
    """What a replaced key signs is refused by the one that follows it: that has to stand before."""
    signed = first_of(records, "checkpoint")
    after = records[records.index(signed) + 1]["content"]["at"]
    later = records_in(exported(Selection(first_at=datetime.fromisoformat(after))))
    at = next(n for n, one in enumerate(later) if one["record"] == "checkpoint")
    assert later[at] == signed
    assert checked(path, totalled(later))[0] == 0
    later[at - 1 : at + 1] = [later[at], later[at - 1]]
    assert "(key) is out of place" in refused(path, totalled(later))


def test_a_file_s_name_forges_no_line_either(tmp_path: Path) -> None:
    refused(tmp_path / f"{FORGED}.jsonl", b"{}\n")


def test_it_is_one_short_file_of_the_standard_library_for_pythons_since_3_9() -> None:
    source = SCRIPT.read_text()
    assert len(source.splitlines()) <= 360
    imported = set(re.findall(r"^(?:import|from) (\w+)", source, re.MULTILINE))
    assert imported <= {"__future__", "argparse", "gzip", "hashlib", "json", "re", "sys", "typing", "zlib"}
    ast.parse(source, feature_version=(3, 9))


def test_its_key_is_the_one_that_signs(records: list[Record], path: Path) -> None:
    key = AuditSigningKey.objects.order_by("created_at")[0]
    assert checked(path, totalled(records), "--key", key.public_key)[0] == 0
