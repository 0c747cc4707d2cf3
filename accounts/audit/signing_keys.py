"""What checkpoints are signed with: Ed25519 keys. The private one is a file, the public ones are rows.

Whoever owns the database can write a new chain into it, and cannot sign it. The first key is made when it is first
needed; ``rotate`` replaces it, the new key signed by the old one; either is an event of the chain, so that a key can be
followed back to the one that somebody has noted down outside.

The private key lies in ``secrets/audit_signing_key.<id>`` on the machine where checkpoints are made, and nowhere else.
A key that was replaced is deleted: it has nothing to sign any more, and what is not there cannot be stolen. (It is not
overwritten first: on today's disks and file systems that says nothing about what remains.)

The file is written before its row, both under the lock of the chain's head. A process that dies in between leaves a
file that no row names; the next one that needs a key takes it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from django.db import transaction
from django.utils import timezone

from accounts.audit.canonical import canonical_json, unhex, utc_text
from accounts.audit.recording import fields_of, record
from accounts.models import AuditArchive, AuditCheckpoint, AuditEvent, AuditHead, AuditSigningKey
from accounts.principal import Actor
from accounts.refusals import ChangeRefusal, ChangeRefused
from signalbox import secret_files
from signalbox.configuration import configuration

_FILE: Final = "audit_signing_key"
_AUDITED: Final = ("public_key", "signed_by", "signature", "created_at")
#: The actions of the events that introduce keys.
INTRODUCING: Final = ("audit_signing_key.create", "audit_signing_key.rotate")
#: Keys are in the order of their times, so no two have the same.
_TICK: Final = timedelta(microseconds=1)


class SigningKeyMissing(RuntimeError):
    """Nothing can be signed here: there is no private key, or not the one that signs now."""


@dataclass(frozen=True, slots=True)
class Signer:
    """The key that signs now, and since when it does. What it signs with is not in its ``repr``."""

    key_id: str
    since: datetime
    _private: Ed25519PrivateKey = field(repr=False)

    def sign(self, message: bytes) -> bytes:
        """The signature over ``message``: 64 bytes."""
        return self._private.sign(message)


@dataclass(frozen=True, slots=True)
class KeyFault:
    """A key that is not there as it was introduced: what is signed with it proves nothing."""

    key_id: str
    message: str


def public_keys() -> list[AuditSigningKey]:
    """Every key that there was, the oldest first; the last one signs."""
    return list(AuditSigningKey.objects.order_by("created_at"))


def current() -> AuditSigningKey | None:
    """The key that signs; None: there is none yet."""
    return AuditSigningKey.objects.order_by("-created_at").first()


def signer() -> Signer:
    """What signs now. Raises ``SigningKeyMissing``."""
    key = current()
    if key is None:
        raise SigningKeyMissing(
            "There is no signing key yet: `manage.py audit checkpoint` makes the first one."
        )
    return _signer(key)


def id_of(public_key: str) -> str:
    """What the key with these 64 hexadecimal digits is called."""
    return hashlib.sha256(bytes.fromhex(public_key)).hexdigest()[:16]


def introduction(key: AuditSigningKey) -> bytes:
    """What the key before ``key`` signs to vouch for it."""
    return canonical_json(
        {
            "signing_key": 1,
            "key": key.id,
            "public_key": key.public_key,
            "at": utc_text(key.created_at),
            "signed_by": key.signed_by,
        }
    )


def is_signed(public_key: str, message: bytes, signature: str) -> bool:
    """Whether ``signature`` over ``message`` is this key's; both are hexadecimal digits."""
    try:
        Ed25519PublicKey.from_public_bytes(unhex(public_key)).verify(unhex(signature), message)
    except (InvalidSignature, ValueError):
        return False
    return True


def is_genuine(key_id: str, message: bytes, signature: str) -> bool:
    """Whether ``signature`` over ``message`` is that of the key ``key_id``, which is one of ours."""
    key = AuditSigningKey.objects.filter(id=key_id).first()
    return key is not None and is_signed(key.public_key, message, signature)


def introduce_first() -> None:
    """Make the installation's first key, unless it has one. May be called by many at once."""
    if current() is not None:
        return
    with transaction.atomic():
        _lock_head()
        if current() is None:
            key = _introduce(None, None)
            record(Actor.system("checkpoints"), INTRODUCING[0], key, None, fields_of(key, *_AUDITED))


def rotate(*, actor: Actor, lost: bool = False) -> AuditSigningKey:
    """Let a new key sign from now on, vouched for by the present one, which is deleted.

    With ``lost`` nobody vouches for the new key: for when the present private key is gone. The chain says so, and so
    does every verification from then on. Raises ``ChangeRefused`` where there is no key yet, or one is said to be lost
    that is here; ``SigningKeyMissing`` where it is gone and not said to be lost.
    """
    with transaction.atomic(durable=True):
        _lock_head()
        old = current()
        if old is None:
            raise ChangeRefused(
                ChangeRefusal.INVALID,
                "There is no signing key to replace: the first one is made with the first checkpoint.",
            )
        if lost and _is_here(old.id):
            raise ChangeRefused(
                ChangeRefusal.KEY_NOT_LOST,
                f"The private key {old.id} is here and can vouch for its successor: rotate without --lost.",
            )
        key = _introduce(old, None if lost else _signer(old))
        record(actor, INTRODUCING[1], key, {"key": old.id}, {"key": key.id, **fields_of(key, *_AUDITED)})
    forget_replaced()
    return key


def forget_replaced() -> None:
    """Delete the private keys that were replaced: also what a process that died has left of them."""
    for replaced in public_keys()[:-1]:
        _path(replaced.id).unlink(missing_ok=True)


def faults(
    archived: Mapping[str, Mapping[str, Any]] | None = None, *, complete: bool = False
) -> list[KeyFault]:
    """The keys that are not as they were introduced, the oldest first; then those that are gone.

    ``archived``: what events in archives say of keys, by their ids. ``complete``: all archives were read, so that a key
    that no event introduces is none of ours.
    """
    keys = public_keys()
    events = AuditEvent.objects.filter(action__in=INTRODUCING).order_by("sequence")
    introduced = {**(archived or {}), **{event.object_id: event.after or {} for event in events}}
    complete = complete or not AuditArchive.objects.exists()
    found: list[KeyFault] = []
    for key, before in zip(keys, [None, *keys], strict=False):
        if problem := _problem_of(key, before, introduced.get(key.id, None if complete else {})):
            found.append(KeyFault(key.id, problem))
    # Asked behind the events: one that was introduced meanwhile is there.
    there = set(AuditSigningKey.objects.values_list("id", flat=True))
    return found + [
        KeyFault(key_id, f"The row of the signing key {key_id} is gone; an event of the chain introduces it.")
        for key_id in introduced
        if key_id not in there
    ]


def notes() -> list[str]:
    """What an auditor has to know of the keys: those that came without the signature of the one before."""
    return [
        f"The signing key {key.id} of {key.created_at:%Y-%m-%d %H:%M}Z was introduced without the signature of the one "
        "before it, which was said to be lost."
        for key in public_keys()[1:]
        if not key.signed_by
    ]


def _problem_of(
    key: AuditSigningKey, before: AuditSigningKey | None, said: Mapping[str, Any] | None
) -> str | None:
    """What is wrong with the row of a key, by the one before it and what the chain says of it; None: no event does."""
    if id_of(key.public_key) != key.id:
        return f"The signing key {key.id} is not called after its public key."
    if said is None:
        return f"No event of the chain introduces the signing key {key.id}."
    if not key.signed_by:
        if key.signature:
            # Exports show it, and their reader refuses it.
            return f"The signing key {key.id} has a signature, and names no key that made it."
    elif before is None or key.signed_by != before.id:
        return f"The signing key {key.id} names {key.signed_by} as the one before it, which it is not."
    elif not is_signed(before.public_key, introduction(key), key.signature):
        return f"The signing key {key.id} does not have the signature of {before.id}, the one before it."
    for name, value in fields_of(key, *_AUDITED).items():
        if said.get(name, value) != value:
            return f"The signing key {key.id} has another {name} than the event that introduces it says."
    return None


def _introduce(before: AuditSigningKey | None, vouching: Signer | None) -> AuditSigningKey:
    """A new key: its file, then its row. Called under the lock of the chain's head."""
    private = _left_over() or _create()
    public_key = private.public_key().public_bytes_raw().hex()
    key = AuditSigningKey(
        id=id_of(public_key),
        public_key=public_key,
        signed_by=vouching.key_id if vouching else "",
        created_at=_time_after(before),
    )
    if vouching:
        key.signature = vouching.sign(introduction(key)).hex()
    key.save(force_insert=True)
    return key


def _time_after(before: AuditSigningKey | None) -> datetime:
    """Now, and after the key before and all that it has signed, whatever the clocks say."""
    times: Sequence[datetime] = [timezone.now()]
    if before is not None:
        last = AuditCheckpoint.objects.order_by("-at").first()
        times = [*times, before.created_at + _TICK, *([last.at + _TICK] if last else [])]
    return max(times)


def _signer(key: AuditSigningKey) -> Signer:
    return Signer(key.id, key.created_at, _private(key.id))


def _lock_head() -> None:
    """The chain's head: whoever has it makes keys alone. ``record`` takes it again, and after it nothing is locked."""
    list(AuditHead.objects.select_for_update(no_key=True).filter(id=1))


def _create() -> Ed25519PrivateKey:
    private = Ed25519PrivateKey.generate()
    secret_files.create(_name(_id(private)), private.private_bytes_raw().hex())
    return private


def _left_over() -> Ed25519PrivateKey | None:
    """A key whose process died before it was introduced."""
    introduced = {key.id for key in public_keys()}
    for path in sorted(configuration().secrets_dir.glob(f"{_FILE}.*")):
        key_id = path.name.removeprefix(f"{_FILE}.")
        if key_id not in introduced and _is_here(key_id):
            return _private(key_id)
    return None


def _is_here(key_id: str) -> bool:
    try:
        _private(key_id)
    except SigningKeyMissing:
        return False
    return True


def _private(key_id: str) -> Ed25519PrivateKey:
    try:
        text = secret_files.read(_name(key_id))
    except FileNotFoundError as error:
        raise SigningKeyMissing(
            f"The private key {key_id} is not in {configuration().secrets_dir}: copy {_name(key_id)} from the machine "
            "that has it, or restore it from your backup. If it is lost for good: `manage.py audit rotate-key --lost`."
        ) from error
    private: Ed25519PrivateKey | None = None
    with suppress(ValueError):
        private = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(text))
    if private is None or _id(private) != key_id:
        raise SigningKeyMissing(
            f"{_path(key_id)} does not hold the private key {key_id}: restore it from your backup. If it is lost for "
            "good: `manage.py audit rotate-key --lost`."
        )
    return private


def _id(private: Ed25519PrivateKey) -> str:
    return id_of(private.public_key().public_bytes_raw().hex())


def _name(key_id: str) -> str:
    return f"{_FILE}.{key_id}"


def _path(key_id: str) -> Path:
    return configuration().secrets_dir / _name(key_id)
