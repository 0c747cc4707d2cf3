"""How it stands with the audit: its length, what waits, what was verified, signed, kept outside and archived."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import redis
from django.utils.dateparse import parse_datetime

from accounts.audit import anchors, archive_files, checkpoints, sealing, signing_keys, triggers
from accounts.audit.anchors import AnchorKind
from accounts.audit.sealing import Unsealed
from accounts.formatting import counted, exactly, file_size, number
from accounts.models import AuditArchive, AuditCheckpoint, AuditHead, AuditSigningKey, AuditVerification

_VERIFICATIONS: Final = 5
_CHECKPOINTS: Final = 6
_ARCHIVES: Final = 12
_ANCHORS: Final = {AnchorKind.FILE: "File", AnchorKind.WEBHOOK: "Webhook"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """One verification, in words. ``sequence``: the event that is at fault, 0: none."""

    row: AuditVerification
    held: bool
    said: str
    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed:
    """One checkpoint, and what is wrong with it; empty: nothing."""

    row: AuditCheckpoint
    fault: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchored:
    """Where checkpoints are kept outside of the database, and how far that has come."""

    title: str
    well: bool
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Archived:
    """One archive: whether its file is where it belongs."""

    row: AuditArchive
    size: str
    there: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """All of it."""

    head: AuditHead
    unsealed: Unsealed
    verifications: Sequence[Verified]
    #: Events that no verification has seen yet.
    unverified: int
    checkpoints: Sequence[Signed]
    unsigned: int
    anchors: Sequence[Anchored]
    keys: Sequence[AuditSigningKey]
    archives: Sequence[Archived]
    more_archives: int
    missing_triggers: Sequence[str]

    @property
    def last(self) -> Verified | None:
        """The last verification."""
        return self.verifications[0] if self.verifications else None


def condition() -> Condition:
    """Look at everything once: some twenty small questions, however long the chain is."""
    head = AuditHead.objects.get(id=1)
    verifications = [verified(row) for row in AuditVerification.objects.all()[:_VERIFICATIONS]]
    held = AuditVerification.objects.filter(fault__isnull=True).order_by("-last_sequence").first()
    signed = _signed(list(AuditCheckpoint.objects.order_by("-at")[:_CHECKPOINTS]))
    archived = list(AuditArchive.objects.order_by("-first_sequence")[: _ARCHIVES + 1])
    return Condition(
        head=head,
        unsealed=sealing.unsealed(),
        verifications=verifications,
        unverified=max(0, head.sequence - (held.last_sequence if held else 0)),
        checkpoints=signed,
        unsigned=max(0, head.sequence - (signed[0].row.sequence if signed else 0)),
        anchors=[_anchored(kind) for kind in anchors.kinds()],
        keys=signing_keys.public_keys()[::-1],
        archives=[
            Archived(row=row, size=file_size(row.file_bytes), there=archive_files.path_of(row).is_file())
            for row in archived[:_ARCHIVES]
        ],
        more_archives=max(0, AuditArchive.objects.count() - _ARCHIVES) if len(archived) > _ARCHIVES else 0,
        missing_triggers=triggers.missing(),
    )


def last_held() -> AuditVerification | None:
    """The verification that held and reached farthest."""
    return (
        AuditVerification.objects.filter(fault__isnull=True).order_by("-last_sequence", "-started_at").first()
    )


def verified(row: AuditVerification) -> Verified:
    """What a verification found, as people say it."""
    span = "from the first event" if row.first_sequence <= 1 else f"from event {number(row.first_sequence)}"
    if row.fault is None:
        said = (
            f"Holds: {counted(row.events, 'event')} and {counted(row.assignments, 'assignment')}, {span} to event "
            f"{number(row.last_sequence)}."
        )
        return Verified(row=row, held=True, said=said, sequence=0)
    return Verified(
        row=row, held=False, said=str(row.fault["message"]), sequence=int(row.fault.get("sequence") or 0)
    )


def _signed(rows: Sequence[AuditCheckpoint]) -> list[Signed]:
    faults = checkpoints.faults_of(rows)
    return [
        Signed(row=row, fault=fault.message if fault else "") for row, fault in zip(rows, faults, strict=True)
    ]


def _anchored(kind: AnchorKind) -> Anchored:
    title = _ANCHORS[kind]
    try:
        state = anchors.state_of(kind)
    except redis.RedisError:
        return Anchored(title=title, well=False, said="Not known: Valkey cannot be reached.")
    if state.problem:
        tried = counted(state.failures, "attempt")
        return Anchored(title=title, well=False, said=f"{tried} in a row failed: {state.problem}")
    if state.reached is None:
        return Anchored(title=title, well=True, said="Nothing yet: it follows with the next checkpoint.")
    waiting = anchors.waiting(state).count()
    reached = parse_datetime(state.reached)
    when = exactly(datetime.fromtimestamp(state.succeeded_at, UTC)) if state.succeeded_at else ""
    said = f"Has the checkpoints up to {exactly(reached) if reached else state.reached}"
    said += f", written {when}." if when else "."
    return Anchored(
        title=title, well=not waiting, said=said if not waiting else f"{said} {number(waiting)} wait."
    )
