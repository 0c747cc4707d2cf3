"""Walking the chain: is everything there, unchanged and in its place?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from accounts.audit.canonical import GENESIS_HASH
from accounts.audit.contents import event_hash
from accounts.models import AuditEvent, AuditHead


class FaultReason(StrEnum):
    """What is wrong where the chain is broken."""

    MISSING = "missing"
    ALTERED = "altered"
    UNLINKED = "unlinked"
    HEAD_MISMATCH = "head_mismatch"


@dataclass(frozen=True, slots=True)
class Fault:
    """Where the chain is broken first, and how."""

    sequence: int
    reason: FaultReason


@dataclass(frozen=True, slots=True)
class Verification:
    """What a walk along the chain found: how many events hold, and the first fault if there is one."""

    events: int
    head_hash: str
    fault: Fault | None


def verify() -> Verification:
    """Walk the chain from its first event to the head as it is now. Events appended meanwhile are left out."""
    head = AuditHead.objects.get(id=1)
    previous, expected = GENESIS_HASH, 1
    events: Iterable[AuditEvent] = (
        AuditEvent.objects.filter(sequence__lte=head.sequence).order_by("sequence").iterator(chunk_size=1000)
    )
    for event in events:
        reason = None
        if event.sequence != expected:
            reason = FaultReason.MISSING
        elif event.previous_hash != previous:
            reason = FaultReason.UNLINKED
        elif event.hash != event_hash(event):
            reason = FaultReason.ALTERED
        if reason is not None:
            return Verification(expected - 1, head.hash, Fault(expected, reason))
        previous, expected = event.hash, expected + 1
    if expected - 1 != head.sequence:
        return Verification(expected - 1, head.hash, Fault(expected, FaultReason.MISSING))
    if previous != head.hash:
        return Verification(expected - 1, head.hash, Fault(head.sequence, FaultReason.HEAD_MISMATCH))
    return Verification(expected - 1, head.hash, None)
