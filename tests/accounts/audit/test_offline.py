"""The script that checks exports without Signalbox: what holds is proved, whatever was changed is refused."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, redirect_stderr
from copy import deepcopy
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from django.utils import timezone
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from accounts.audit import archives, checkpoint_lines, checkpoints, merkle, signing_keys
from accounts.audit.canonical import canonical_json
from accounts.audit.export import Selection
from accounts.audit.offline import verify_export
from accounts.models import AuditCheckpoint, AuditEvent, AuditSigningKey
from tests.accounts.audit.chains import chain_anew, record_events, set_row
from tests.accounts.audit.exported import (
    OURS,
    SCRIPT,
    Record,
    checked,
    exported,
    furnish,
    of_kind,
    records_in,
    totalled,
    verdict,
)
from tests.accounts.audit.own_state import settle
from tests.factories import ACTOR

Tampering = Callable[[], AbstractContextManager[None]]

#: From RFC 8032, section 7.1: public key, message, signature.
VECTORS = [
    (
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155"
        "5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    ),
    (
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"
        "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
    ),
    (
        "ec172b93ad5e563bf4932c70e1245034c35467ef2efd4d64ebf819683467e2bf",
        "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a"
        "2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f",
        "dc2a4459e7369633a52b1bf277839a00201009a3efbf3ecb69bea2186c26b589"
        "09351fc9ac90b3ecfdfbc7c66431e0303dca179c138ac17ad9bef1177331a704",
    ),
]


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    settle(monkeypatch, tmp_path)
    return tmp_path


# --- Ed25519 ---


@pytest.mark.parametrize(("public_key", "message", "signature"), VECTORS)
def test_the_signatures_of_rfc_8032_are_genuine_and_no_other_is(
    public_key: str, message: str, signature: str
) -> None:
    text = bytes.fromhex(message)
    assert verify_export.is_signed(public_key, text, signature)
    assert not verify_export.is_signed(public_key, text + b"\0", signature)
    for at in range(0, 128, 7):
        changed = signature[:at] + f"{int(signature[at], 16) ^ 1:x}" + signature[at + 1 :]
        assert not verify_export.is_signed(public_key, text, changed)


@settings(max_examples=60)
@given(seed=st.binary(min_size=32, max_size=32), message=st.binary(max_size=200), flip=st.integers(0, 64 * 8))
def test_it_finds_what_another_implementation_finds(seed: bytes, message: bytes, flip: int) -> None:
    key = Ed25519PrivateKey.from_private_bytes(seed)
    public = key.public_key().public_bytes_raw().hex()
    number = int.from_bytes(key.sign(message), "big") ^ (1 << flip if flip < 512 else 0)
    signature = number.to_bytes(64, "big")
    assert verify_export.is_signed(public, message, signature.hex()) == (flip == 512)
    assert _by_cryptography(public, message, signature) == (flip == 512)


@settings(max_examples=60)
@given(public=st.binary(min_size=32, max_size=32), signature=st.binary(min_size=64, max_size=64))
@example(public=b"\xff" * 32, signature=b"\0" * 64)
@example(public=(2**255 - 19).to_bytes(32, "little"), signature=b"\0" * 64)
@example(public=(1 + (1 << 255)).to_bytes(32, "little"), signature=b"\0" * 64)
def test_what_is_no_key_or_no_signature_is_refused(public: bytes, signature: bytes) -> None:
    assert not verify_export.is_signed(public.hex(), b"message", signature.hex())


def test_a_signature_whose_number_is_too_large_is_refused() -> None:
    public, message, signature = VECTORS[1]
    s = int.from_bytes(bytes.fromhex(signature[64:]), "little") + verify_export.ORDER
    assert not verify_export.is_signed(
        public, bytes.fromhex(message), signature[:64] + s.to_bytes(32, "little").hex()
    )


def _by_cryptography(public_key: str, message: bytes, signature: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key)).verify(signature, message)
    except InvalidSignature:
        return False
    return True


@given(leaves=st.lists(st.binary(max_size=2).map(merkle.leaf_hash), min_size=1, max_size=70), data=st.data())
def test_its_trees_are_those_that_batches_are_sealed_under(leaves: list[str], data: st.DataObject) -> None:
    root, index = merkle.root(leaves), data.draw(st.integers(0, len(leaves) - 1))
    assert verify_export.root_of(list(leaves)) == root
    assert verify_export.root_by_proof(leaves[index], index, len(leaves), merkle.proof(leaves, index)) == root


# --- Files that were changed ---


@pytest.fixture
def first_key(db: None) -> AuditSigningKey:
    return furnish()


@pytest.fixture(params=["everything", "tenant", "time", "gap"])
def text(first_key: AuditSigningKey, request: pytest.FixtureRequest) -> bytes:
    """An export: of everything; with links; with links at its end; with a gap behind these."""
    match request.param:
        case "everything":
            return exported()
        case "tenant":
            return exported(Selection(tenant_id=OURS))
        case _:
            until = timezone.now()
            record_events(1)
            if request.param == "gap":
                assert checkpoints.make(timezone.now())
                record_events(3)
            return exported(Selection(last_at=until))


@pytest.mark.slow
def test_a_file_in_which_any_byte_is_another_is_refused(text: bytes, tmp_path: Path) -> None:
    path = tmp_path / "export.jsonl"
    assert checked(path, text)[0] == 0

    @settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
    @given(at=st.integers(0, len(text) - 1), flip=st.integers(1, 255))
    def changed(at: int, flip: int) -> None:
        status, said = checked(path, text[:at] + bytes([text[at] ^ flip]) + text[at + 1 :])
        assert status != 0
        assert said.count("\n") == 1
        assert int(said.split("line ")[1].split()[0]) >= 1

    changed()


@pytest.mark.slow
def test_a_file_from_which_lines_are_taken_or_to_which_they_are_added_is_refused(
    text: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "export.jsonl"
    lines = text.splitlines(keepends=True)

    @settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
    @given(
        what=st.sampled_from(["drop", "double", "swap", "insert", "cut", "cut within", "append"]),
        at=st.integers(0, len(lines) - 1),
        other=st.integers(0, len(lines) - 1),
    )
    def changed(what: str, at: int, other: int) -> None:
        made = list(lines)
        match what:
            case "drop":
                del made[at]
            case "double":
                made.insert(at, made[at])
            case "swap":
                made[at], made[other] = made[other], made[at]
            case "insert":
                made.insert(at, made[other])
            case "cut":
                made = made[:at]
            case "cut within":
                made = [*made[:at], made[at][: other % len(made[at])]]
            case _:
                made.append(made[other])
        if made != lines:
            assert checked(path, b"".join(made))[0] != 0

    changed()


@pytest.mark.slow
def test_a_file_whose_last_line_was_made_to_fit_what_was_changed_is_refused_all_the_same(
    text: bytes, tmp_path: Path, first_key: AuditSigningKey
) -> None:
    """The counts and the checksum at the end are no proof: whoever changes a line can make them anew."""
    path = tmp_path / "export.jsonl"
    records = records_in(text)
    proved = [number for number, record in enumerate(records) if record["record"] not in ("header", "end")]

    @settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
    @given(data=st.data())
    def changed(data: st.DataObject) -> None:
        made = deepcopy(records)
        at = data.draw(st.sampled_from(proved))
        match data.draw(st.sampled_from(["change", "change", "change", "drop", "double", "swap", "copy"])):
            case "change":
                _change_something(data, made[at])
            case "drop" if not _may_lack(made[at]):
                del made[at]
            case "double":
                made.insert(at, made[at])
            case "copy":
                made.insert(data.draw(st.sampled_from(proved)), made[at])
            case _:
                other = data.draw(st.sampled_from(proved))
                made[at], made[other] = made[other], made[at]
        if _without_personal(made) != _without_personal(records):
            status, said = checked(path, totalled(made), "--key", first_key.id)
            assert status == 1, said

    changed()


def _may_lack(record: Record) -> bool:
    """Whether nothing tells that it is gone: a signature, or one of a batch that is shown in part."""
    return record["record"] in ("checkpoint", "key") or "path" in record.get("proof", {})


def _without_personal(records: list[Record]) -> list[Record]:
    """The records but for what may be left out of them."""
    return [{name: value for name, value in record.items() if name != "personal"} for record in records]


def _change_something(data: st.DataObject, record: Record) -> None:
    """Put something else somewhere into the record."""
    places: list[tuple[Any, Any]] = []

    def look(value: Any) -> None:
        pairs = (
            value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        )
        for name, inner in pairs:
            places.append((value, name))
            look(inner)

    look(record)
    # Nobody vouches for when the first key was made.
    unproved = (id(record), "at") if record["record"] == "key" and not record["signed_by"] else None
    proved = [(holder, name) for holder, name in places if (id(holder), name) != unproved]
    holder, name = data.draw(st.sampled_from(proved))
    value = holder[name]
    if isinstance(value, str) and value:
        at = data.draw(st.integers(0, len(value) - 1))
        holder[name] = value[:at] + data.draw(st.sampled_from("0123456789abcdefZ é")) + value[at + 1 :]
    elif isinstance(value, bool | int):
        holder[name] = value + data.draw(st.sampled_from([-1, 1, 100]))
    elif data.draw(st.booleans()):
        holder[name] = data.draw(st.sampled_from([None, "", 0, [], {}]))
    elif isinstance(holder, dict):
        del holder[name]
    else:
        holder.append(value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("format", 2),
        ("kind", "other"),
        ("first", 2),
        ("first", 0),
        ("last", 3),
        ("previous", "1" * 64),
        ("id", "0" * 32),
        ("event", 1),
        ("selection", {"tenant": None, "lane": None, "first_at": None, "last_at": None, "personal": False}),
    ],
)
def test_a_header_that_tells_of_something_else_is_refused(
    name: str, value: Any, first_key: AuditSigningKey, tmp_path: Path
) -> None:
    records = records_in(exported())
    records[0][name] = value
    assert checked(tmp_path / "export.jsonl", totalled(records))[0] != 0


def test_an_export_of_everything_in_which_something_is_not_shown_is_refused(
    first_key: AuditSigningKey, tmp_path: Path
) -> None:
    part = records_in(exported(Selection(tenant_id=OURS)))
    part[0]["selection"]["tenant"] = None
    status, said = checked(tmp_path / "export.jsonl", totalled(part))
    assert status == 1
    assert "is not shown, but is to be" in said
    whole = records_in(exported())
    sealed = [
        n
        for n, record in enumerate(whole)
        if record["record"] == "assignment" and record["proof"]["size"] == 1
    ]
    del whole[sealed[0]]
    status, said = checked(tmp_path / "export.jsonl", totalled(whole))
    assert status == 1
    assert "(event " in said


@pytest.mark.django_db
def test_a_chain_that_was_made_anew_and_signed_with_another_key_holds_by_itself_and_not_for_who_has_the_key(
    directory: Path, tampering: Tampering
) -> None:
    genuine = furnish()
    kept = directory / "kept.jsonl"
    kept.write_text("".join(checkpoint_lines.line(one) + "\n" for one in AuditCheckpoint.objects.all()))
    with tampering():
        for key in (directory / "secrets").glob("audit_signing_key*"):
            key.unlink()
        AuditSigningKey.objects.all().delete()
        AuditCheckpoint.objects.all().delete()
        forged = AuditEvent.objects.get(sequence=2)
        set_row(forged, after=(forged.after or {}) | {"lane_id": "high"})
        chain_anew(2)
        # Events of keys name those that are gone now: nobody can tell, from a chain that was made anew.
        assert checkpoints.make(timezone.now())
    text = exported()
    [other, *_] = signing_keys.public_keys()
    path = directory / "export.jsonl"
    status, said = checked(path, text)
    assert status == 0
    assert "NOT compared" in said
    assert checked(path, text, "--key", other.public_key)[0] == 0
    for pinned in (genuine.public_key, genuine.id):
        status, said = checked(path, text, "--key", pinned)
        assert status == 1
        assert "nothing is signed with your key" in said
    status, said = checked(path, text, "--checkpoint", str(kept))
    assert status == 1
    assert "written anew" in said


def test_checkpoints_are_trusted_only_from_keys_that_follow_from_the_one_that_is_named(
    first_key: AuditSigningKey, tmp_path: Path
) -> None:
    second = signing_keys.public_keys()[1]
    text = exported()
    path = tmp_path / "export.jsonl"
    for pinned in (first_key.public_key, second.public_key):
        status, said = checked(path, text, "--key", pinned)
        assert status == 0
        assert f"key {second.public_key}" in said
    assert checked(path, text, "--key", "0" * 64)[0] == 1
    for key in (tmp_path / "secrets").glob("audit_signing_key*"):
        key.unlink()
    third = signing_keys.rotate(actor=ACTOR, lost=True)
    text = exported()
    status, said = checked(path, text, "--key", first_key.public_key)
    assert status == 3
    assert f"key {second.public_key}" in said
    assert "Not proved by either: 0" not in said
    status, said = checked(path, text, "--key", third.public_key)
    assert status == 0
    assert f"key {third.public_key}" in said


def test_a_checkpoint_of_a_key_that_was_replaced_before_is_refused(
    first_key: AuditSigningKey, directory: Path, tampering: Tampering
) -> None:
    private = Ed25519PrivateKey.generate()
    public = private.public_key().public_bytes_raw().hex()
    records = records_in(exported())
    [first, second] = [record for record in records if record["record"] == "key"]
    first |= {"public_key": public, "id": signing_keys.id_of(public)}
    second["signed_by"] = first["id"]
    said = {name: second[name] for name in ("public_key", "at", "signed_by")}
    second["signature"] = private.sign(canonical_json({"signing_key": 1, "key": second["id"], **said})).hex()
    for record in records:
        if record["record"] == "checkpoint" and record["key"] != second["id"]:
            record["key"] = first["id"]
            _sign(private, record)
    path = directory / "export.jsonl"
    assert checked(path, totalled(records))[0] == 0
    late = [record for record in records if record["record"] == "checkpoint"][-1]
    late["key"] = first["id"]
    _sign(private, late)
    status, complaint = checked(path, totalled(records))
    assert status == 1
    assert "did not sign then" in complaint


def _sign(private: Ed25519PrivateKey, record: Record) -> None:
    said = {name: record[name] for name in ("sequence", "hash", "at", "key")}
    record["signature"] = private.sign(canonical_json({"checkpoint": 1, **said})).hex()


# --- What it is told, and what it tells ---


def test_it_runs_alone_and_names_the_first_bad_line(first_key: AuditSigningKey, tmp_path: Path) -> None:
    text = exported()
    alone = tmp_path / "auditor"
    found = verdict(alone, text, "--key", first_key.public_key)
    assert (found.status, found.complaint) == (0, "")
    lines = text.splitlines(keepends=True)
    number = next(n for n, line in enumerate(lines) if b'"entitlement.change"' in line)
    lines[number] = lines[number].replace(b'"normal"', b'"hurried"')
    found = verdict(alone, b"".join(lines))
    assert (found.status, found.said) == (1, "")
    assert found.complaint.startswith(f"export.jsonl: line {number + 1} (event 1) is not what was recorded")
    assert found.complaint.count("\n") == 1


def test_it_reads_the_standard_input(first_key: AuditSigningKey, tmp_path: Path) -> None:
    command = [sys.executable, "-I", str(SCRIPT), "-", "--key", first_key.public_key]
    ended = subprocess.run(command, input=exported(), capture_output=True, cwd=tmp_path, timeout=60)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.django_db
def test_it_checks_archives_as_they_are(directory: Path) -> None:
    key = furnish()
    [*moved] = archives.archive(timezone.now(), timezone.now() + timedelta(days=1), least=1)
    path = archives.path_of(moved[0])
    found = verdict(directory / "auditor", path.read_bytes(), "--key", key.public_key, name="segment.gz")
    assert found.status == 0, found.complaint
    assert f"This archive holds: events 1 to {moved[0].last_sequence}" in found.said
    assert "Not proved by either: 0 events" in found.said
    unpacked = bytearray(gzip.decompress(path.read_bytes()))
    unpacked[len(unpacked) // 2] ^= 1
    assert verdict(directory / "auditor", gzip.compress(unpacked), name="segment.gz").status == 1
    damaged = path.read_bytes()[:-40]
    assert verdict(directory / "auditor", damaged, name="segment.gz").status == 1


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\n",
        b"nonsense\n",
        b"[]\n",
        b'{"record":"end"}\n',
        b"\x1f\x8bnonsense",
        b"\xff\xfe\n",
        b"[" * 99999,
    ],
)
def test_what_is_no_export_is_told_from_one_that_is_wrong(text: bytes, tmp_path: Path) -> None:
    found = verdict(tmp_path / "auditor", text)
    assert found.status == 2
    assert found.complaint.count("\n") == 1


def test_a_file_or_key_or_checkpoint_that_is_none_is_no_verdict(tmp_path: Path) -> None:
    path = tmp_path / "export.jsonl"
    path.write_bytes(b"")
    wrong = tmp_path / "checkpoints"
    wrong.write_text('{"sequence": 1}\n')
    for arguments in (
        [str(tmp_path / "nothing")],
        [str(tmp_path)],
        [str(path), "--key", "nonsense"],
        [str(path), "--checkpoint", str(tmp_path / "nothing")],
        [str(path), "--checkpoint", str(wrong)],
    ):
        said = io.StringIO()
        with redirect_stderr(said):
            assert verify_export.main(arguments) == 2
        assert "is not read" in said.getvalue()


@pytest.mark.django_db
def test_a_file_is_read_line_by_line(directory: Path) -> None:
    """Whatever its length: what is kept of it is the batch that is being read."""
    furnish()
    check = verify_export.Check("")
    sizes = []
    for line in exported().splitlines(keepends=True):
        check.line(line)
        sizes.append(len(json.dumps([check.batch, check.keys], default=str)))
    assert max(sizes[len(sizes) // 2 :]) <= 2 * max(sizes[: len(sizes) // 2])


def test_events_are_only_looked_up(first_key: AuditSigningKey) -> None:
    assert of_kind(exported(), "end")[0]["counts"]["key"] == 2
