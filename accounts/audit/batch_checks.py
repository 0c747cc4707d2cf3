"""Is a batch of assignments whole: its leaves, their order, the assignments behind them, and the root in the chain?"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from accounts.audit import merkle
from accounts.audit.batches import Batch, place_of
from accounts.audit.canonical import utc_text
from accounts.audit.chain_rows import LeafRow
from accounts.audit.contents import EventRow, assignment_leaf
from accounts.audit.faults import Broken, FaultKind, FaultReason
from accounts.audit.written_forms import UNREADABLE

#: An assignment is sealed within seconds. After so long somebody may want to know why it was not.
LATE: Final = timedelta(hours=1)


def batch_of(event: EventRow) -> Batch:
    """What ``event`` says of its batch. Raises ``Broken`` where that is nothing."""
    try:
        return Batch.of(event)
    except ValueError as error:
        raise _bad_batch(event, FaultReason.ALTERED, f"{error}.") from error


def check_batch(event: EventRow, batch: Batch, leaves: Iterable[LeafRow]) -> int:
    """Compare the batch that ``event`` chains with its ``leaves``, all there are; how many were sealed late.

    Raises ``Broken`` at the first that is wrong; where only the root tells that something is, at the batch.
    """
    hashes: list[str] = []
    places: list[tuple[datetime, UUID]] = []
    late = 0
    for leaf in leaves:
        _check_place(event, batch, leaf, len(hashes))
        places.append(_check_leaf(event, leaf))
        hashes.append(leaf.hash)
        late += event.at - places[-1][0] > LATE
    if len(hashes) < batch.count:
        raise _no_leaf(event, batch, len(hashes))
    if merkle.root(hashes) != batch.root:
        _find_displaced(event, places)
        raise _bad_batch(
            event,
            FaultReason.ALTERED,
            f"The leaves of batch {event.sequence} do not have the root that the chain has: at least one of them was "
            "made anew, together with its assignment.",
        )
    if (utc_text(places[0][0]), utc_text(places[-1][0])) != (batch.first_at, batch.last_at):
        raise _bad_batch(
            event, FaultReason.ALTERED, f"Batch {event.sequence} names other times than its assignments have."
        )
    return late


def _check_place(event: EventRow, batch: Batch, leaf: LeafRow, expected: int) -> None:
    if isinstance(leaf.index, int) and expected < min(leaf.index, batch.count):
        raise _no_leaf(event, batch, expected)
    if leaf.unreadable:
        raise _bad_leaf(event, leaf, FaultReason.ALTERED, f"As {_place(event, leaf)}, {leaf.unreadable}.")
    if leaf.index == expected < batch.count:
        return
    raise _bad_leaf(
        event,
        leaf,
        FaultReason.INSERTED,
        f"It is leaf {leaf.index} of batch {event.sequence}, in which {batch.count} were sealed: it was put there "
        "afterwards.",
    )


def _check_leaf(event: EventRow, leaf: LeafRow) -> tuple[datetime, UUID]:
    if leaf.assignment is None:
        raise _bad_leaf(
            event, leaf, FaultReason.MISSING, f"It is {_place(event, leaf)}, and its own row is gone."
        )
    try:
        found = assignment_leaf(leaf.assignment)
    except UNREADABLE as error:
        raise _bad_leaf(
            event, leaf, FaultReason.ALTERED, f"It is {_place(event, leaf)}, and cannot be read ({error})."
        ) from error
    if found != leaf.hash:
        raise _bad_leaf(
            event,
            leaf,
            FaultReason.ALTERED,
            f"It is {_place(event, leaf)}, and is not what was sealed: its row or its leaf was changed.",
        )
    return place_of(leaf.assignment)


def _find_displaced(event: EventRow, places: list[tuple[datetime, UUID]]) -> None:
    """Leaves that were exchanged fit their assignments, and no root."""
    for index, (found, expected) in enumerate(zip(places, sorted(places), strict=True)):
        if found != expected:
            raise Broken(
                event.sequence,
                FaultKind.ASSIGNMENT,
                FaultReason.REORDERED,
                f"The assignment of generation {found[1]} is leaf {index} of batch {event.sequence} and belongs "
                "elsewhere in it: the leaves are in the order of their times.",
                record_id=str(found[1]),
            )


def _no_leaf(event: EventRow, batch: Batch, index: int) -> Broken:
    return Broken(
        event.sequence,
        FaultKind.ASSIGNMENT,
        FaultReason.MISSING,
        f"Leaf {index} of batch {event.sequence} is gone: {batch.count} assignments were sealed in it.",
    )


def _bad_leaf(event: EventRow, leaf: LeafRow, reason: FaultReason, message: str) -> Broken:
    whose = f"generation {leaf.generation_id}" if leaf.generation_id else "an unknown generation"
    return Broken(
        event.sequence,
        FaultKind.ASSIGNMENT,
        reason,
        f"The assignment of {whose} does not hold. {message}",
        record_id=str(leaf.generation_id or ""),
    )


def _bad_batch(event: EventRow, reason: FaultReason, message: str) -> Broken:
    return Broken(event.sequence, FaultKind.BATCH, reason, message)


def _place(event: EventRow, leaf: LeafRow) -> str:
    return f"leaf {leaf.index} of batch {event.sequence}"
