"""A batch of lane assignments: the event that chains the root of their tree, and the order of its leaves. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from accounts.audit import merkle
from accounts.audit.canonical import utc_text
from accounts.audit.contents import AssignmentRow, EventRow
from accounts.models import AuditEvent, LaneAssignment

#: The action of the events that chain batches; lists of what people did leave them out.
ACTION: Final = "lane_assignments.seal"
OBJECT_KIND: Final = "assignment_batch"
#: Assignments in a batch at most.
LARGEST: Final = 4096


def place_of(assignment: LaneAssignment | AssignmentRow) -> tuple[datetime, UUID]:
    """What the leaves of a batch are ordered by: when the lane was given, then the generation."""
    return assignment.created_at, assignment.generation_id


@dataclass(frozen=True, slots=True)
class Batch:
    """What a batch's event says: the root over its leaves, how many they are, and the first and the last one's time."""

    root: str
    count: int
    first_at: str
    last_at: str

    @classmethod
    def over(cls, assignments: Sequence[AssignmentRow], leaves: Sequence[str]) -> Batch:
        """The batch of ``assignments``, which are in their order, with their ``leaves``: at least one."""
        return cls(
            root=merkle.root(leaves),
            count=len(leaves),
            first_at=utc_text(assignments[0].created_at),
            last_at=utc_text(assignments[-1].created_at),
        )

    @classmethod
    def of(cls, event: AuditEvent | EventRow) -> Batch:
        """The batch that ``event`` chains. Raises ``ValueError`` where it says nothing of the kind."""
        match event.after:
            case {"root": str(root), "count": int(count), "first_at": str(first), "last_at": str(last)} if (
                event.action == ACTION and event.object_id == root and count > 0
            ):
                return cls(root, count, first, last)
        raise ValueError(f"event {event.sequence} describes no batch of lane assignments")

    def fields(self) -> dict[str, Any]:
        """What the event has as its ``after``."""
        return asdict(self)
