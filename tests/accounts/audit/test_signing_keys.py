"""Keys that sign the chain's head: made once, replaced with the old one's word, and never in the database."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import time_machine
from django.core.management import CommandError, call_command
from django.db import connection
from django.utils import timezone

from accounts.audit import checkpoints, signing_keys
from accounts.audit.signing_keys import SigningKeyMissing
from accounts.models import AuditEvent, AuditSigningKey
from accounts.refusals import ChangeRefusal, ChangeRefused
from signalbox.configuration import ROOT
from tests.accounts.audit.own_state import settle
from tests.factories import ACTOR
from tests.fixtures.database import database_url

pytestmark = pytest.mark.django_db

#: RFC 8032, section 7.1, test 2: what another implementation of Ed25519 gives.
RFC_PUBLIC = "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c"
RFC_SIGNATURE = (
    "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
    "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
)


@pytest.fixture(autouse=True)
def secrets_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return settle(monkeypatch, tmp_path).secrets_dir


def files_in(secrets_dir: Path) -> list[str]:
    return sorted(path.name for path in secrets_dir.glob("audit_signing_key*"))


def run(*arguments: str) -> str:
    output = StringIO()
    call_command("audit", *arguments, stdout=output, stderr=StringIO())
    return output.getvalue().strip()


def test_signatures_are_those_that_the_standard_publishes() -> None:
    assert signing_keys.is_signed(RFC_PUBLIC, b"\x72", RFC_SIGNATURE)
    assert not signing_keys.is_signed(RFC_PUBLIC, b"\x73", RFC_SIGNATURE)
    assert not signing_keys.is_signed(RFC_PUBLIC, b"\x72", RFC_SIGNATURE[:-2] + "01")
    assert not signing_keys.is_signed("no key", b"\x72", RFC_SIGNATURE)
    assert not signing_keys.is_signed(RFC_PUBLIC, b"\x72", "")


def test_without_a_key_nothing_is_signed_and_the_error_says_how_to_get_one() -> None:
    with pytest.raises(SigningKeyMissing, match=r"manage\.py audit checkpoint"):
        signing_keys.signer()


def test_the_first_key_is_made_once_its_private_half_in_a_file_of_its_owner_alone(secrets_dir: Path) -> None:
    for _ in range(2):
        signing_keys.introduce_first()
    [key] = signing_keys.public_keys()
    assert (key.signed_by, key.signature) == ("", "")
    [path] = secrets_dir.iterdir()
    assert path.name == f"audit_signing_key.{key.id}"
    assert path.stat().st_mode & 0o777 == 0o600
    private = path.read_text().strip()
    event = AuditEvent.objects.get()
    assert (event.action, event.object_id) == ("audit_signing_key.create", key.id)
    assert event.after == {
        "public_key": key.public_key,
        "signed_by": "",
        "signature": "",
        "created_at": key.created_at.isoformat(),
    }
    assert private not in {key.public_key, *map(str, event.after.values())}
    signature = signing_keys.signer().sign(b"message").hex()
    assert signing_keys.is_genuine(key.id, b"message", signature)
    assert not signing_keys.is_genuine(key.id, b"another", signature)
    assert not signing_keys.is_genuine("0" * 16, b"message", signature)
    assert private not in repr(signing_keys.signer())
    assert signing_keys.faults() == []


def test_a_new_key_has_the_old_ones_signature_and_the_old_private_key_is_gone(secrets_dir: Path) -> None:
    signing_keys.introduce_first()
    [old] = signing_keys.public_keys()
    new = signing_keys.rotate(actor=ACTOR)
    assert signing_keys.public_keys() == [old, new]
    assert new.signed_by == old.id
    assert signing_keys.is_genuine(old.id, signing_keys.introduction(new), new.signature)
    assert files_in(secrets_dir) == [f"audit_signing_key.{new.id}"]
    assert signing_keys.signer().key_id == new.id
    event = AuditEvent.objects.latest("sequence")
    assert (event.action, event.object_id) == ("audit_signing_key.rotate", new.id)
    assert event.before == {"key": old.id}
    assert event.after is not None
    assert event.after["public_key"] == new.public_key
    assert signing_keys.faults() == []
    assert signing_keys.notes() == []


def test_keys_are_in_their_order_although_the_clock_is_put_back() -> None:
    signing_keys.introduce_first()
    checkpoint = checkpoints.make(timezone.now())
    assert checkpoint is not None
    with time_machine.travel(timezone.now() - timedelta(hours=1), tick=False):
        new = signing_keys.rotate(actor=ACTOR)
        later = checkpoints.make(timezone.now())
    assert later is not None
    assert checkpoint.at < new.created_at <= later.at
    assert checkpoints.fault_of(checkpoint) is None
    assert checkpoints.fault_of(later) is None


def test_a_key_that_was_made_and_never_introduced_is_taken_by_the_next_who_needs_one(
    secrets_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(signing_keys, "record", die)
        with pytest.raises(KeyboardInterrupt):
            signing_keys.introduce_first()
    [made] = files_in(secrets_dir)
    assert not AuditSigningKey.objects.exists()
    signing_keys.introduce_first()
    assert files_in(secrets_dir) == [made]
    [first] = signing_keys.public_keys()
    with monkeypatch.context() as patch:
        patch.setattr(signing_keys, "record", die)
        with pytest.raises(KeyboardInterrupt):
            signing_keys.rotate(actor=ACTOR)
    assert signing_keys.signer().key_id == first.id
    left = files_in(secrets_dir)
    assert len(left) == 2
    new = signing_keys.rotate(actor=ACTOR)
    assert files_in(secrets_dir) == [f"audit_signing_key.{new.id}"]
    assert f"audit_signing_key.{new.id}" in left


def test_a_replaced_key_that_was_left_behind_is_deleted_with_the_next_checkpoint(secrets_dir: Path) -> None:
    signing_keys.introduce_first()
    [name] = files_in(secrets_dir)
    private = (secrets_dir / name).read_text()
    signing_keys.rotate(actor=ACTOR)
    (secrets_dir / name).write_text(private)
    assert signing_keys.signer().key_id not in name
    checkpoints.make(timezone.now())
    assert name not in files_in(secrets_dir)


@pytest.mark.parametrize("text", [None, "0" * 64, "no key", "00"])
def test_a_private_key_that_is_gone_or_another_is_said(secrets_dir: Path, text: str | None) -> None:
    signing_keys.introduce_first()
    [path] = secrets_dir.iterdir()
    path.unlink()
    if text:
        path.write_text(text)
    for sign in (signing_keys.signer, lambda: signing_keys.rotate(actor=ACTOR)):
        with pytest.raises(SigningKeyMissing, match=rf"{path.name.partition('.')[2]}.*rotate-key --lost"):
            sign()
    with pytest.raises(CommandError, match="rotate-key --lost"):
        run("checkpoint")
    with pytest.raises(CommandError, match="rotate-key --lost"):
        run("rotate-key")


def test_a_key_after_a_lost_one_has_nobodys_word_which_is_recorded_and_noted(secrets_dir: Path) -> None:
    signing_keys.introduce_first()
    [path] = secrets_dir.iterdir()
    path.unlink()
    assert "from now on" in run("rotate-key", "--lost")
    old, new = signing_keys.public_keys()
    assert (new.signed_by, new.signature) == ("", "")
    event = AuditEvent.objects.latest("sequence")
    assert (event.action, event.before) == ("audit_signing_key.rotate", {"key": old.id})
    assert event.actor_name == "manage.py audit rotate-key"
    assert signing_keys.faults() == []
    [note] = signing_keys.notes()
    assert new.id in note
    checkpoint = checkpoints.make(timezone.now())
    assert checkpoint is not None
    assert checkpoint.key_id == new.id


def test_a_key_that_is_here_is_not_lost_and_one_that_never_was_is_not_replaced() -> None:
    with pytest.raises(ChangeRefused, match="first checkpoint"):
        signing_keys.rotate(actor=ACTOR)
    signing_keys.introduce_first()
    with pytest.raises(ChangeRefused) as refused:
        signing_keys.rotate(actor=ACTOR, lost=True)
    assert refused.value.code is ChangeRefusal.KEY_NOT_LOST
    with pytest.raises(CommandError, match="without --lost"):
        run("rotate-key", "--lost")
    assert len(signing_keys.public_keys()) == 1


def test_a_row_that_nobody_introduced_is_found() -> None:
    signing_keys.introduce_first()
    AuditSigningKey.objects.create(
        id=signing_keys.id_of(RFC_PUBLIC), public_key=RFC_PUBLIC, created_at=timezone.now()
    )
    [fault] = signing_keys.faults()
    assert fault.key_id == signing_keys.id_of(RFC_PUBLIC)
    assert "No event" in fault.message


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"public_key": RFC_PUBLIC}, "not called after"),
        ({"signed_by": "f" * 16}, "as the one before it"),
        ({"signature": RFC_SIGNATURE}, "does not have the signature"),
        ({"created_at": datetime(2040, 1, 1, tzinfo=UTC)}, "does not have the signature"),
    ],
)
def test_a_row_that_was_changed_is_found(tampering: object, changes: dict[str, Any], said: str) -> None:
    signing_keys.introduce_first()
    new = signing_keys.rotate(actor=ACTOR)
    with tampering():  # type: ignore[operator]
        AuditSigningKey.objects.filter(id=new.id).update(**changes)
    [fault] = signing_keys.faults()
    assert fault.key_id == new.id
    assert said in fault.message


def test_a_first_key_that_is_signed_by_nobody_has_no_signature(tampering: object) -> None:
    signing_keys.introduce_first()
    with tampering():  # type: ignore[operator]
        AuditSigningKey.objects.update(signature="7")
    [fault] = signing_keys.faults()
    assert "names no key that made it" in fault.message


def test_the_first_key_is_as_its_event_says(tampering: Any) -> None:
    signing_keys.introduce_first()
    with tampering():
        AuditSigningKey.objects.update(created_at=timezone.now() - timedelta(days=1))
    [fault] = signing_keys.faults()
    assert "has another created_at than the event" in fault.message


@pytest.mark.parametrize("which", [0, 1])
def test_a_key_whose_row_is_gone_is_found(tampering: Any, which: int) -> None:
    signing_keys.introduce_first()
    signing_keys.rotate(actor=ACTOR)
    gone = signing_keys.public_keys()[which]
    with tampering():
        AuditSigningKey.objects.filter(id=gone.id).delete()
    fault = signing_keys.faults()[-1]
    assert fault.key_id == gone.id
    assert "is gone" in fault.message


def test_the_command_lists_every_key_with_its_public_half() -> None:
    assert "There is no signing key yet" in run("keys")
    signing_keys.introduce_first()
    signing_keys.rotate(actor=ACTOR)
    first, second = run("keys").splitlines()
    old, new = signing_keys.public_keys()
    assert first.split()[0] == old.id
    assert first.endswith(old.public_key)
    assert "the first" in first
    assert "replaced" in first
    assert f"signed by {old.id}" in second
    assert second.endswith(new.public_key)


@pytest.mark.django_db(transaction=True)
def test_many_threads_that_need_the_first_key_make_one(secrets_dir: Path) -> None:
    start = threading.Barrier(6)

    def introduce() -> str:
        try:
            start.wait()
            signing_keys.introduce_first()
            return signing_keys.signer().key_id
        finally:
            connection.close()

    with ThreadPoolExecutor(6) as threads:
        found = {done.result() for done in [threads.submit(introduce) for _ in range(6)]}
    [key] = signing_keys.public_keys()
    assert found == {key.id}
    assert files_in(secrets_dir) == [f"audit_signing_key.{key.id}"]
    assert AuditEvent.objects.count() == 1


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {
        **os.environ,
        "DATABASE_URL": database_url(),
        "SIGNALBOX_STATE_DIR": str(tmp_path),
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'platform'}",
    }


@pytest.mark.django_db(transaction=True)
def test_two_processes_that_need_the_first_key_at_once_make_one(
    environment: dict[str, str], secrets_dir: Path
) -> None:
    program = (
        "import django, sys; django.setup()\n"
        "from accounts.audit import signing_keys\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "signing_keys.introduce_first(); print(signing_keys.signer().key_id)"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        answers = {process.communicate(timeout=60)[0].strip() for process in processes}
    finally:
        for process in processes:
            process.kill()
            process.wait()
    [key] = signing_keys.public_keys()
    assert answers == {key.id}
    assert files_in(secrets_dir) == [f"audit_signing_key.{key.id}"]
    assert AuditEvent.objects.count() == 1
