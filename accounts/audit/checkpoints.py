"""The chain's head, signed: what is kept of it outside shows later whether what came before is still the same.

A chain by itself shows that nothing was changed in its middle. Whoever owns the database can still cut off its end, or
write all of it anew. Neither fits a checkpoint that was taken before and lies where they cannot reach it: a chain that
holds and goes through a checkpoint is, up to there, the chain that was signed.

How one is written down is for ``checkpoint_lines``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cached_property
from typing import Final

from django.db import transaction

from accounts.audit import archive_files, checkpoint_lines, settings, signing_keys
from accounts.audit.canonical import GENESIS_HASH
from accounts.audit.checkpoint_lines import Checkpoint
from accounts.models import AuditArchive, AuditCheckpoint, AuditEvent, AuditHead, AuditSigningKey
from signalbox.configuration import configuration

_TICK: Final = timedelta(microseconds=1)
#: Hashes that one query asks for: fewer than a statement of any database has places for.
_HASHES: Final = 500


class CheckpointReason(StrEnum):
    """Why a checkpoint and the chain do not fit, or why the checkpoint proves nothing."""

    UNKNOWN_KEY = "unknown_key"
    #: Signed with a key at a time at which that was not the one that signs.
    RETIRED_KEY = "retired_key"
    BAD_SIGNATURE = "bad_signature"
    #: The chain ends before it.
    TRUNCATED = "truncated"
    #: At its place the chain has another hash.
    REWRITTEN = "rewritten"
    #: Its place is in an archive whose file is not here: it could not be compared.
    ARCHIVE_MISSING = "archive_missing"


@dataclass(frozen=True, slots=True)
class CheckpointFault:
    """What is wrong with a checkpoint, or by it with the chain: a code, and words."""

    sequence: int
    reason: CheckpointReason
    message: str


class Compared:
    """What checkpoints are compared with, besides the chain's hash at each: read once, for however many of them."""

    def __init__(self) -> None:
        self.keys = signing_keys.public_keys()
        #: The last event of the chain.
        self.head = AuditHead.objects.get(id=1).sequence

    def archive_with(self, sequence: int) -> AuditArchive | None:
        """The archive that an event was moved to; None: none."""
        return next(
            (one for one in self._archives if one.first_sequence <= sequence <= one.last_sequence), None
        )

    @cached_property
    def _archives(self) -> list[AuditArchive]:
        return list(AuditArchive.objects.all())


class CheckpointRefused(RuntimeError):
    """The chain contradicts the last checkpoint: its head is not signed."""


def make(now: datetime) -> AuditCheckpoint | None:
    """Sign the chain's head as it is; None: it has not moved since the last checkpoint.

    Makes the first signing key where there is none. Raises ``CheckpointRefused`` where the chain does not fit the last
    checkpoint, of the database or of the file that they are kept in: a second signature would lend itself to whoever
    has changed it. Raises ``SigningKeyMissing`` where this machine has no key.
    """
    signing_keys.introduce_first()
    signing_keys.forget_replaced()
    with transaction.atomic():
        # Under the lock, so that no key is replaced between the choice of one and its signature.
        head = AuditHead.objects.select_for_update(no_key=True).get(id=1)
        last = latest()
        if last is not None:
            if (fault := fault_of(last)) and fault.reason is not CheckpointReason.ARCHIVE_MISSING:
                raise CheckpointRefused(f"No checkpoint is made: {fault.message}")
            if last.sequence == head.sequence:
                return None
        _refuse_what_was_kept_contradicts()
        signer = signing_keys.signer()
        checkpoint = AuditCheckpoint(
            # After the last one and its key, whatever the clocks say: files are continued by their times.
            at=max([now, signer.since, *([last.at + _TICK] if last else [])]),
            sequence=head.sequence,
            hash=head.hash,
            key_id=signer.key_id,
        )
        checkpoint.signature = signer.sign(checkpoint_lines.statement(checkpoint)).hex()
        checkpoint.save(force_insert=True)
    return checkpoint


def _refuse_what_was_kept_contradicts() -> None:
    """Raise ``CheckpointRefused`` where the chain does not go through the last checkpoint of the file.

    Whoever rewrites the chain can take the database's own checkpoints along, and not always the file.
    """
    path = configuration().audit_anchor_file
    kept = checkpoint_lines.last_of_file(path)
    fault = fault_of(kept) if kept is not None else None
    if fault is not None and fault.reason in (CheckpointReason.TRUNCATED, CheckpointReason.REWRITTEN):
        raise CheckpointRefused(
            f"No checkpoint is made: {fault.message} It is the last one in {path}. If the database was put back from a "
            "backup, keep that file elsewhere; it tells what was lost."
        )


def make_when_due(now: datetime) -> AuditCheckpoint | None:
    """As ``make``, once the last checkpoint is as old as the settings say. None: it is not, or nothing has moved."""
    last = latest()
    minutes = settings.current().checkpoint_minutes
    if last is not None and now - last.at < timedelta(minutes=minutes):
        return None
    return make(now)


def latest() -> AuditCheckpoint | None:
    """The last checkpoint that was made; None: there is none."""
    return AuditCheckpoint.objects.order_by("-at").first()


def hash_at(sequence: int) -> str | None:
    """The chain's hash at an event, as its row has it, or the archive that it was moved to; None: neither is here.

    That it follows from what is recorded is what walking the chain shows.
    """
    if sequence == 0:
        return GENESIS_HASH
    found = AuditEvent.objects.filter(sequence=sequence).values_list("hash", flat=True).first()
    archive = None if found else _archive_with(sequence)
    return found if archive is None else _archived_hash(archive, sequence)


def hashes_at(sequences: Collection[int]) -> dict[int, str]:
    """The chain's hashes at these events, as their rows have them: a query for each few hundred of them.

    Of those that are in archives there are none (``hash_at`` reads the file).
    """
    wanted, found = sorted({*sequences}), {0: GENESIS_HASH}
    for first in range(0, len(wanted), _HASHES):
        rows = AuditEvent.objects.filter(sequence__in=wanted[first : first + _HASHES])
        found |= dict(rows.order_by().values_list("sequence", "hash"))
    return found


def fault_of(
    checkpoint: Checkpoint,
    *,
    hash_at: Callable[[int], str | None] = hash_at,
    compared: Compared | None = None,
) -> CheckpointFault | None:
    """What is wrong with a checkpoint, or by it with the chain; None: the chain goes through it as it was signed.

    ``hash_at`` gives the chain's hash at an event: whoever has walked the chain knows it already. ``compared`` is what
    was read before, for who asks of many (None: it is read now).
    """
    compared = compared or Compared()
    reason, message = (
        _signature_fault(checkpoint, compared.keys)
        or _place_fault(checkpoint, hash_at, compared)
        or _time_fault(checkpoint, compared.keys)
        or (None, "")
    )
    return CheckpointFault(checkpoint.sequence, reason, message) if reason else None


def faults_of(checkpoints: Sequence[Checkpoint]) -> list[CheckpointFault | None]:
    """As ``fault_of``, of each: in as many queries for many as for one."""
    compared, hashes = Compared(), hashes_at([one.sequence for one in checkpoints])

    def known(sequence: int) -> str | None:
        return hashes.get(sequence) or hash_at(sequence)

    return [fault_of(one, hash_at=known, compared=compared) for one in checkpoints]


_Found = tuple[CheckpointReason, str]


def _signature_fault(checkpoint: Checkpoint, keys: list[AuditSigningKey]) -> _Found | None:
    known = {key.id: key for key in keys}
    if checkpoint.key_id not in known:
        return (
            CheckpointReason.UNKNOWN_KEY,
            f"The {_name(checkpoint)} is signed with the key {checkpoint.key_id}, which is not one of ours.",
        )
    public_key = known[checkpoint.key_id].public_key
    if not signing_keys.is_signed(public_key, checkpoint_lines.statement(checkpoint), checkpoint.signature):
        return (
            CheckpointReason.BAD_SIGNATURE,
            f"The signature of the {_name(checkpoint)} is not that of its key.",
        )
    return None


def _time_fault(checkpoint: Checkpoint, keys: list[AuditSigningKey]) -> _Found | None:
    signing_then = [key.id for key in keys if key.created_at <= checkpoint.at][-1:]
    if signing_then == [checkpoint.key_id]:
        return None
    return (
        CheckpointReason.RETIRED_KEY,
        f"The {_name(checkpoint)} is signed with the key {checkpoint.key_id}, which was not the one that signed then.",
    )


def _place_fault(
    checkpoint: Checkpoint, hash_at: Callable[[int], str | None], compared: Compared
) -> _Found | None:
    if checkpoint.sequence > compared.head:
        return (
            CheckpointReason.TRUNCATED,
            f"The chain ends at event {compared.head}; the {_name(checkpoint)} was signed when it went to event "
            f"{checkpoint.sequence}: what followed was cut off, or an older state was restored.",
        )
    found = hash_at(checkpoint.sequence)
    if found is None and (archive := compared.archive_with(checkpoint.sequence)):
        return (
            CheckpointReason.ARCHIVE_MISSING,
            f"The {_name(checkpoint)} cannot be compared: event {checkpoint.sequence} is in {archive.file_name}, "
            "which is not here or is damaged.",
        )
    if found != checkpoint.hash:
        return (
            CheckpointReason.REWRITTEN,
            f"The chain has {f'the hash {found}' if found else 'no event'} at {checkpoint.sequence}; the "
            f"{_name(checkpoint)} says {checkpoint.hash}: the chain was written anew up to there.",
        )
    return None


def _archive_with(sequence: int) -> AuditArchive | None:
    return AuditArchive.objects.filter(first_sequence__lte=sequence, last_sequence__gte=sequence).first()


def _archived_hash(archive: AuditArchive, sequence: int) -> str | None:
    if sequence == archive.last_sequence:
        return archive.last_hash
    try:
        for record in archive_files.read(archive):
            if record["record"] == "event" and record["content"]["sequence"] == sequence:
                return str(record["hash"])
    except archive_files.ArchiveDamaged:
        return None
    return None


def _name(checkpoint: Checkpoint) -> str:
    return f"checkpoint of {checkpoint.at:%Y-%m-%d %H:%M:%S}Z"
