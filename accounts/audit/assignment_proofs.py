"""Whether a lane assignment is still what was sealed: from its row over its leaf, its batch's root and the event that
chains that, to the next checkpoint. Checked when it is asked for, from the rows as they are then.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final
from uuid import UUID

from accounts.audit import checkpoints, merkle
from accounts.audit.batches import Batch
from accounts.audit.canonical import GENESIS_HASH
from accounts.audit.contents import assignment_leaf, event_hash
from accounts.formatting import counted, exactly, number
from accounts.models import (
    AuditArchive,
    AuditCheckpoint,
    AuditEvent,
    AuditHead,
    LaneAssignment,
    SealedAssignment,
)

#: After so long an assignment that has no leaf is not waiting any more: nothing seals, or the leaf was taken away.
SEALED_WITHIN: Final = timedelta(minutes=2)
#: So many events are walked from a batch to the checkpoint after it; of more a verification tells.
MOST_EVENTS: Final = 10_000


class Held(StrEnum):
    """What became of a step, or of a whole record."""

    YES = "yes"
    NO = "no"
    #: It is not sealed or signed yet; it will be.
    NOT_YET = "not_yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a proof: what was compared, and what came of it. ``sequence``: the event that it is about."""

    title: str
    held: Held
    said: str
    sequence: int | None = None
    hash: str = ""


@dataclass(frozen=True, slots=True)
class Proof:
    """The steps as far as they led: after one that does not hold there is none."""

    steps: Sequence[Step]

    @property
    def held(self) -> Held:
        """What came of all of it: the last step's."""
        return self.steps[-1].held


def prove(assignment: LaneAssignment, now: datetime) -> Proof:
    """Check ``assignment`` from its row to the next checkpoint."""
    leaf = SealedAssignment.objects.filter(pk=assignment.pk).first()
    if leaf is None:
        return Proof([_unsealed(assignment, now)])
    steps = [_leaf_step(assignment, leaf)]
    for check in (_root_step, _event_step, _link_step, _checkpoint_step):
        if steps[-1].held is not Held.YES:
            break
        steps.append(check(leaf))
    return Proof(steps)


def standings(assignments: Collection[LaneAssignment], now: datetime) -> Mapping[UUID, Held]:
    """Of each of ``assignments`` whether it is what was sealed in its batch, and the batch what its event says.

    Three queries. What follows in the chain is not looked at: a verification is what does that.
    """
    leaves = SealedAssignment.objects.in_bulk([one.pk for one in assignments])
    whole = _whole_batches({leaf.batch for leaf in leaves.values()})
    found = {}
    for assignment in assignments:
        leaf = leaves.get(assignment.pk)
        if leaf is None:
            late = now - assignment.created_at > SEALED_WITHIN
            found[assignment.pk] = Held.NO if late else Held.NOT_YET
        else:
            same = leaf.batch in whole and leaf.hash == assignment_leaf(assignment)
            found[assignment.pk] = Held.YES if same else Held.NO
    return found


def _whole_batches(sequences: Collection[int]) -> set[int]:
    """Those batches whose leaves come to the root that their event says, which is what it was."""
    leaves: defaultdict[int, list[tuple[int, str]]] = defaultdict(list)
    for batch, index, leaf in SealedAssignment.objects.filter(batch__in=sequences).values_list(
        "batch", "index", "hash"
    ):
        leaves[batch].append((index, leaf))
    events = AuditEvent.objects.filter(sequence__in=sequences)
    return {
        event.sequence
        for event in events
        if event.hash == event_hash(event)
        and _root_of([leaf for _, leaf in sorted(leaves[event.sequence])]) == _root_said(event)
    }


def _root_of(leaves: Sequence[str]) -> str | None:
    return merkle.root(leaves) if leaves else None


def _root_said(event: AuditEvent) -> str:
    """The root that a batch's event says; empty where it is no such event."""
    try:
        return Batch.of(event).root
    except ValueError:
        return ""


def _unsealed(assignment: LaneAssignment, now: datetime) -> Step:
    title = "It is sealed in a batch"
    if now - assignment.created_at <= SEALED_WITHIN:
        said = "Not yet: assignments are sealed about once a second. Look again in a moment."
        return Step(title=title, held=Held.NOT_YET, said=said)
    return Step(
        title=title,
        held=Held.NO,
        said=f"It has no leaf, though it is of {exactly(assignment.created_at)}: nothing seals (does Celery run?), or "
        "its leaf was taken away. `manage.py audit seal` seals what waits.",
    )


def _leaf_step(assignment: LaneAssignment, leaf: SealedAssignment) -> Step:
    title = "The record is what was sealed"
    now = assignment_leaf(assignment)
    if now != leaf.hash:
        return Step(
            title=title,
            held=Held.NO,
            said=f"Its leaf is {leaf.hash}, and what the row says comes to {now}: the record was changed after it was "
            "sealed.",
            hash=now,
        )
    return Step(title=title, held=Held.YES, said="What the row says comes to its leaf.", hash=now)


def _root_step(leaf: SealedAssignment) -> Step:
    title = "The leaf is in its batch"
    leaves = list(
        SealedAssignment.objects.filter(batch=leaf.batch).order_by("index").values_list("index", "hash")
    )
    event = AuditEvent.objects.filter(sequence=leaf.batch).first()
    said = _root_said(event) if event is not None else ""
    hashes = [one for _, one in leaves]
    if not said or [index for index, _ in leaves] != list(range(len(leaves))):
        return Step(
            title=title,
            held=Held.NO,
            said=f"Batch {leaf.batch} is not whole: its event or some of its leaves are gone.",
            sequence=leaf.batch,
        )
    path = merkle.proof(hashes, leaf.index)
    found = merkle.root_by_proof(leaf.hash, leaf.index, len(hashes), path)
    if found != said:
        return Step(
            title=title,
            held=Held.NO,
            said=f"Its proof leads to the root {found}, and event {leaf.batch} says {said}: leaves of this batch were "
            "changed, added or taken away.",
            sequence=leaf.batch,
            hash=found or "",
        )
    return Step(
        title=title,
        held=Held.YES,
        said=f"It is number {number(leaf.index + 1)} of {number(len(hashes))}. Its proof leads to the batch's root in "
        f"{counted(len(path), 'step')}.",
        sequence=leaf.batch,
        hash=found,
    )


def _event_step(leaf: SealedAssignment) -> Step:
    title = f"Event {leaf.batch} chains that root"
    event = AuditEvent.objects.get(sequence=leaf.batch)
    if event.hash != event_hash(event):
        return Step(
            title=title,
            held=Held.NO,
            said="Its hash does not cover what it says: the event was changed.",
            sequence=event.sequence,
            hash=event.hash,
        )
    before = _hash_before(event.sequence)
    if before != event.previous_hash:
        return Step(
            title=title,
            held=Held.NO,
            said=f"It does not follow event {event.sequence - 1}: one of the two was changed, or is gone.",
            sequence=event.sequence,
            hash=event.hash,
        )
    return Step(
        title=title,
        held=Held.YES,
        said=f"Recorded {exactly(event.at)}. Its hash covers what it says and the hash before it.",
        sequence=event.sequence,
        hash=event.hash,
    )


def _link_step(leaf: SealedAssignment) -> Step:
    event = AuditEvent.objects.get(sequence=leaf.batch)
    head = AuditHead.objects.get(id=1)
    if head.sequence == event.sequence:
        same = head.hash == event.hash
        return Step(
            title="The chain's head is this event",
            held=Held.YES if same else Held.NO,
            said="Nothing was recorded after it." if same else f"The head has another hash, {head.hash}.",
            hash=head.hash,
        )
    title = "The next event follows it"
    after = AuditEvent.objects.filter(sequence=event.sequence + 1).first()
    if after is None or after.previous_hash != event.hash:
        said = f"Event {event.sequence + 1} is gone." if after is None else "It names another hash before it."
        return Step(title=title, held=Held.NO, said=said, sequence=event.sequence + 1)
    return Step(
        title=title,
        held=Held.YES,
        said=f"Event {after.sequence} names this hash as the one before it.",
        sequence=after.sequence,
        hash=after.hash,
    )


def _checkpoint_step(leaf: SealedAssignment) -> Step:
    checkpoint = AuditCheckpoint.objects.filter(sequence__gte=leaf.batch).order_by("sequence", "at").first()
    if checkpoint is None:
        return Step(
            title="A signed checkpoint covers it",
            held=Held.NOT_YET,
            said="None was made since. The next one will.",
        )
    title = f"The checkpoint at event {checkpoint.sequence} covers it"
    fault = checkpoints.fault_of(checkpoint)
    if fault is not None:
        return Step(title=title, held=Held.NO, said=fault.message, sequence=checkpoint.sequence)
    between = checkpoint.sequence - leaf.batch
    if between > MOST_EVENTS:
        return Step(
            title=title,
            held=Held.NOT_YET,
            said=f"It is genuine. {counted(between, 'event')} lie between; a verification walks them.",
            sequence=checkpoint.sequence,
            hash=checkpoint.hash,
        )
    broken = _first_break(leaf.batch, checkpoint.sequence)
    if broken is not None:
        return Step(
            title=title,
            held=Held.NO,
            said=f"The chain between the two is broken at event {broken}.",
            sequence=broken,
        )
    way = (
        f"Every link up to it holds, over {counted(between, 'event')}." if between else "It signs that event."
    )
    return Step(
        title=title,
        held=Held.YES,
        said=f"Signed {exactly(checkpoint.at)} with the key {checkpoint.key_id}. {way}",
        sequence=checkpoint.sequence,
        hash=checkpoint.hash,
    )


def _first_break(first: int, last: int) -> int | None:
    """The first event after ``first``, up to ``last``, that is gone, was changed or does not follow; None: none."""
    previous = AuditEvent.objects.values_list("hash", flat=True).get(sequence=first)
    expected = first + 1
    events = AuditEvent.objects.filter(sequence__gt=first, sequence__lte=last).order_by("sequence")
    for event in events.iterator(chunk_size=1000):
        if event.sequence != expected or event.previous_hash != previous or event.hash != event_hash(event):
            return expected
        previous, expected = event.hash, expected + 1
    return None if expected == last + 1 else expected


def _hash_before(sequence: int) -> str | None:
    """The chain's hash before the event ``sequence``; None: the event before it is gone."""
    if sequence == 1:
        return GENESIS_HASH
    before = AuditEvent.objects.filter(sequence=sequence - 1).values_list("hash", flat=True).first()
    if before is None:
        archived = AuditArchive.objects.filter(last_sequence=sequence - 1)
        before = archived.values_list("last_hash", flat=True).first()
    return before
