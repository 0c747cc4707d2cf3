"""What stands outside of the chain's numbers, before its first event or behind its head: it was not recorded there."""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

from django.db.models import QuerySet

from accounts.audit import chain_rows
from accounts.audit.chain_rows import LeafRow, number_of
from accounts.audit.faults import Broken, FaultKind, FaultReason
from accounts.audit.row_pages import columns_of, page
from accounts.audit.written_forms import WrittenForm
from accounts.models import AuditEvent, AuditHead, AuditPersonalValue, SealedAssignment

_HEAD: Final = WrittenForm(AuditHead, ("sequence", "hash"))


def read_head() -> tuple[int, str]:
    """The number and the hash of the last event, as the head says. Raises ``Broken``."""
    rows, error = page(_HEAD, AuditHead.objects.filter(id=1), 1)
    if error is not None:
        raise Broken(
            0, FaultKind.HEAD, FaultReason.ALTERED, f"The head of the chain cannot be read ({error})."
        ) from error
    if not rows:
        raise Broken(0, FaultKind.HEAD, FaultReason.MISSING, "The head of the chain is gone.")
    if AuditHead.objects.exclude(id=1).exists():
        raise Broken(
            0, FaultKind.HEAD, FaultReason.INSERTED, "The chain has a second head, which was put there."
        )
    [(sequence, chain_hash)] = rows
    return sequence, chain_hash


def check_before_first() -> None:
    """Raise ``Broken`` where an event, a leaf or a personal value has a number below 1."""
    events = AuditEvent.objects.filter(sequence__lt=1).order_by("sequence")
    if events.exists():
        [sequence] = columns_of(events, 0, "sequence")
        raise Broken(
            number_of(sequence),
            FaultKind.EVENT,
            FaultReason.INSERTED,
            f"Event {sequence} stands before the first one: it was not recorded.",
        )
    leaves = SealedAssignment.objects.filter(batch__lt=1).order_by("batch", "index")
    if leaves.exists():
        raise chain_rows.misplaced(_leaf(leaves))
    values = AuditPersonalValue.objects.filter(event_id__lt=1).order_by("event_id")
    if values.exists():
        raise _stray_value(values)


def check_behind_head() -> None:
    """Raise ``Broken`` where such rows are behind the head. What was recorded since the walk began is before it now."""
    # Read before the head: whatever is recorded in between cannot be behind it.
    last_event, last_batch, last_value = (
        _last(AuditEvent.objects.all(), "sequence"),
        _last(SealedAssignment.objects.all(), "batch"),
        _last(AuditPersonalValue.objects.all(), "event_id"),
    )
    head, chain_hash = read_head()
    if _is_behind(last_event, head):
        _refuse_event(head, chain_hash, last_event)
    if _is_behind(last_batch, head):
        raise chain_rows.misplaced(
            _leaf(SealedAssignment.objects.filter(batch__gt=head).order_by("batch", "index"))
        )
    if _is_behind(last_value, head):
        raise _stray_value(AuditPersonalValue.objects.filter(event_id__gt=head).order_by("event_id"))


def _last(rows: QuerySet[Any, Any], name: str) -> Any:
    """The highest number in a column, whatever stands there; 0: there is no row."""
    [found] = columns_of(rows.order_by(f"-{name}"), 0, name)
    return 0 if found is None else found


def _is_behind(found: Any, head: int) -> bool:
    """Texts and bytes stand behind all numbers, for SQLite."""
    return not isinstance(found, (int, float)) or found > head


def _refuse_event(head: int, chain_hash: str, last: Any) -> None:
    behind = AuditEvent.objects.filter(sequence__gt=head).order_by("sequence")
    sequence, previous = columns_of(behind, 0, "sequence", "previous_hash")
    if previous == chain_hash:
        raise Broken(
            head,
            FaultKind.HEAD,
            FaultReason.HEAD_MISMATCH,
            f"The head says that event {head} is the last one, and event {sequence} follows it: the head was set back, "
            "or that event was put behind it.",
        )
    raise Broken(
        number_of(sequence) or head + 1,
        FaultKind.EVENT,
        FaultReason.INSERTED,
        f"Event {last if sequence is None else sequence} is behind the chain's end, and was not recorded.",
    )


def _leaf(rows: QuerySet[SealedAssignment]) -> LeafRow:
    batch, index, generation_id = columns_of(rows, 0, "batch", "index", "generation_id")
    return LeafRow(batch, index, generation_id if isinstance(generation_id, UUID) else None)


def _stray_value(values: QuerySet[AuditPersonalValue]) -> Broken:
    sequence, path = columns_of(values, 0, "event_id", "path")
    return Broken(
        number_of(sequence),
        FaultKind.EVENT,
        FaultReason.INSERTED,
        f"A personal value ({path}) stands beside event {sequence}, and there is no such event.",
    )
