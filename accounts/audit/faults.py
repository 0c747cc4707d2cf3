"""What can be wrong with the chain, and where."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class FaultKind(StrEnum):
    """What the first bad record is."""

    EVENT = "event"
    #: The event that chains a batch, against its leaves.
    BATCH = "batch"
    #: A lane assignment, or its leaf in a batch.
    ASSIGNMENT = "assignment"
    HEAD = "head"
    ARCHIVE = "archive"
    CHECKPOINT = "checkpoint"
    #: A key that checkpoints are signed with.
    KEY = "key"
    #: A table of the database, against its constraints and indexes.
    TABLE = "table"


class FaultReason(StrEnum):
    """How it is bad."""

    #: It is gone.
    MISSING = "missing"
    #: It is not what was recorded, cannot be read, or is written otherwise than Signalbox writes it.
    ALTERED = "altered"
    #: It is whole, and does not follow the record before it: that one was made anew.
    UNLINKED = "unlinked"
    #: It was not recorded there.
    INSERTED = "inserted"
    #: It was recorded, elsewhere.
    REORDERED = "reordered"
    #: From it on everything is gone.
    TRUNCATED = "truncated"
    #: A leaf of a batch that there is not.
    MISPLACED = "misplaced"
    #: The head does not say what the last event is.
    HEAD_MISMATCH = "head_mismatch"
    #: The chain was made anew: it is not the one that was seen before.
    REWRITTEN = "rewritten"
    BAD_SIGNATURE = "bad_signature"
    UNKNOWN_KEY = "unknown_key"
    #: A checkpoint is signed with a key that did not sign any more, or not yet.
    RETIRED_KEY = "retired_key"
    #: No event of the chain tells of it: an archive, a key.
    UNVOUCHED = "unvouched"
    FILE_MISSING = "file_missing"
    FILE_ALTERED = "file_altered"


@dataclass(frozen=True, slots=True)
class Fault:
    """The first thing that is wrong.

    ``sequence`` is the event that it stands at: of an assignment, its batch's; of an archive, its first. ``id`` names
    the record itself: a generation, an archive's file; empty: the sequence number says it, or nobody knows.
    """

    sequence: int
    kind: FaultKind
    id: str
    reason: FaultReason
    message: str

    def fields(self) -> dict[str, Any]:
        """As ``AuditVerification`` keeps it."""
        return asdict(self)


class Broken(Exception):
    """Ends a walk along the chain at its first fault."""

    def __init__(
        self, sequence: int, kind: FaultKind, reason: FaultReason, message: str, *, record_id: str = ""
    ) -> None:
        super().__init__(message)
        self.fault = Fault(sequence, kind, record_id, reason, message)
