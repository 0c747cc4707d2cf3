"""Every way to tamper with the audit is found, and the first bad record is named, on either database.

The tampering is by somebody who owns the database: without triggers, and who may know how records are hashed.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db.models import F
from django.utils import timezone

from accounts.audit import checkpoint_lines, checkpoints, sealing, verification
from accounts.audit.canonical import GENESIS_HASH
from accounts.audit.faults import Fault
from accounts.audit.verification import FaultKind, verify, verify_and_store
from accounts.models import (
    AuditCheckpoint,
    AuditEvent,
    AuditHead,
    AuditPersonalValue,
    AuditSigningKey,
    AuditVerification,
    LaneAssignment,
    SealedAssignment,
)
from accounts.tenancy import every_tenant
from tests.accounts.audit import older
from tests.accounts.audit.chains import (
    Built,
    Tampering,
    assign,
    build,
    chain_anew,
    forge,
    record_events,
    seal_anew,
    set_row,
)
from tests.accounts.audit.own_state import settle

pytestmark = pytest.mark.django_db


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(verification, "configuration", lambda: own)
    own = settle(monkeypatch, tmp_path)
    return tmp_path


@pytest.fixture
def built(state: Path, tampering: Tampering) -> Iterator[Built]:
    """A whole chain that holds, for a test to tamper with: its triggers are away."""
    chain = build(tampering)
    found = verify(from_scratch=True)
    assert found.fault is None
    with tampering():
        yield chain


def fault(*, from_scratch: bool = True, **options: Any) -> Fault:
    found = verify(from_scratch=from_scratch, **options)
    assert found.fault is not None, "nothing was found"
    assert found.last_sequence < max(found.fault.sequence, 1) or found.fault.kind in (
        FaultKind.HEAD,
        FaultKind.CHECKPOINT,
        FaultKind.KEY,
    ), "what holds ends before the fault"
    return found.fault


def named(found: Fault) -> tuple[str, int, str]:
    return found.kind.value, found.sequence, found.reason.value


def event(sequence: int) -> AuditEvent:
    return AuditEvent.objects.get(sequence=sequence)


def leaf(batch: int, index: int) -> SealedAssignment:
    return SealedAssignment.objects.get(batch=batch, index=index)


def row(generation_id: uuid.UUID) -> LaneAssignment:
    with every_tenant("the test looks"):
        return LaneAssignment.objects.get(pk=generation_id)


# What holds


def test_an_empty_chain_holds() -> None:
    found = verify(from_scratch=True)
    assert (found.fault, found.events, found.head_sequence, found.last_hash) == (None, 0, 0, GENESIS_HASH)


def test_a_whole_chain_holds_with_its_archive_its_batches_and_its_checkpoints(built: Built) -> None:
    found = verify(from_scratch=True)
    assert found.fault is None
    assert (found.events, found.assignments, found.unsealed) == (built.head, 4 + 5 + 3 + 2, 1)
    assert (found.first_sequence, found.last_sequence, found.head_sequence) == (1, built.head, built.head)
    assert found.last_hash == found.head_hash == AuditHead.objects.get().hash
    assert found.notes == ()


def test_events_of_both_formats_hold_in_one_chain(tampering: Tampering) -> None:
    older.record_in_format_1(3, tampering)
    record_events(2)
    assert verify(from_scratch=True).events == 5
    with tampering():
        set_row(event(2), session="f" * 16)
    assert named(fault()) == ("event", 2, "altered")


def test_progress_is_told_up_to_all_there_is(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr("accounts.audit.chain_walk._TOLD_EVERY", 1)
    verify(from_scratch=True, progress=lambda done, total: told.append((done, total)))
    everything = built.head + 4 + 5 + 3 + 2
    assert told[-1] == (everything, everything)
    assert told == sorted(told)


# Events


@pytest.mark.parametrize(
    "columns",
    [
        {"format": 1},
        {"format": 3},
        {"at": datetime(2026, 1, 1, tzinfo=UTC)},
        {"actor_kind": "system"},
        {"actor_id": str(uuid.UUID(int=9))},
        {"actor_name": "eve"},
        {"session": "0" * 16},
        {"action": "thing.delete"},
        {"object_kind": "key"},
        {"object_id": "2"},
        {"object_name": "another thing"},
        {"tenant_id": uuid.UUID(int=9)},
        {"before": {"n": 7}},
        {"after": None},
        {"request_id": ""},
        {"address": "203.0.113.1"},
        {"personal": {}},
        {"previous_hash": "0" * 64},
        {"previous_hash": "no hash"},
        {"hash": "f" * 64},
        {"hash": ""},
    ],
    ids=lambda columns: "-".join(map(str, next(iter(columns.items()))))[:30],
)
def test_an_event_of_which_anything_was_altered_is_named(built: Built, columns: dict[str, Any]) -> None:
    set_row(event(built.first + 1), **columns)
    found = verify(from_scratch=True)
    assert found.fault is not None
    assert named(found.fault) == ("event", built.first + 1, "altered")
    assert found.last_sequence == found.events == built.first


@pytest.mark.parametrize("behind", [0, 1, 4])
def test_an_event_that_was_taken_out_is_named(built: Built, behind: int) -> None:
    event(built.first + behind).delete()
    assert named(fault()) == ("event", built.first + behind, "missing")


def test_an_event_that_was_taken_out_and_whose_gap_was_closed_is_named(built: Built) -> None:
    event(built.first + 1).delete()
    for later in AuditEvent.objects.filter(sequence__gt=built.first + 1).order_by("sequence"):
        set_row(later, sequence=later.sequence - 1)
    assert named(fault()) == ("event", built.first + 1, "missing")


def test_exchanged_events_are_told_from_altered_ones(built: Built) -> None:
    one, other = built.first + 1, built.first + 4
    set_row(event(one), sequence=10_000)
    set_row(event(other), sequence=one)
    set_row(event(10_000), sequence=other)
    assert named(fault()) == ("event", one, "reordered")


def test_an_event_that_was_put_between_others_is_named(built: Built) -> None:
    place = built.first + 2
    for later in AuditEvent.objects.filter(sequence__gte=place).order_by("-sequence"):
        set_row(later, sequence=later.sequence + 1)
    made_up = event(place - 1)
    made_up.previous_hash, made_up.sequence, made_up.hash = made_up.hash, place, "x"
    made_up.save(force_insert=True)
    AuditPersonalValue.objects.filter(event_id__gte=place).delete()
    forge(place, action="thing.invent", personal={})
    assert named(fault()) == ("event", place, "inserted")


def test_an_event_that_was_put_behind_the_head_is_found(built: Built) -> None:
    last = event(built.head)
    AuditEvent.objects.create(
        sequence=built.head + 1, at=last.at, action="thing.invent", previous_hash=last.hash, hash="x" * 64
    )
    assert named(fault()) == ("head", built.head, "head_mismatch")
    set_row(event(built.head + 1), previous_hash="0" * 64)
    assert named(fault()) == ("event", built.head + 1, "inserted")


def test_an_event_made_anew_with_its_own_hash_no_longer_fits_the_next(built: Built) -> None:
    forge(built.first + 1, after={"n": 7})
    assert named(fault()) == ("event", built.first + 2, "unlinked")


def test_the_last_event_made_anew_no_longer_fits_the_head(built: Built) -> None:
    forge(built.head, after={"n": 7})
    assert named(fault()) == ("head", built.head, "head_mismatch")


def test_a_cut_off_end_is_found_by_the_head(built: Built) -> None:
    AuditEvent.objects.filter(sequence__gte=built.head - 1).delete()
    assert named(fault()) == ("event", built.head - 1, "truncated")


@pytest.mark.parametrize(
    "columns", [{"value": "eve"}, {"salt": "0" * 32}, {"salt": "no"}, {"path": "before.n"}], ids=str
)
def test_a_personal_value_that_was_altered_is_found_and_one_that_was_erased_is_none(
    built: Built, columns: dict[str, str]
) -> None:
    values = AuditPersonalValue.objects.filter(event_id=built.first + 1)
    assert values.count() >= 2
    values.order_by("path")[0].delete()
    assert verify(from_scratch=True).fault is None
    set_row(values.order_by("path")[0], **columns)
    assert named(fault()) == ("event", built.first + 1, "altered")


def test_a_salt_in_capitals_is_not_what_was_recorded(built: Built) -> None:
    salted = next(one for one in AuditPersonalValue.objects.order_by("pk") if one.salt.upper() != one.salt)
    set_row(salted, salt=salted.salt.upper())
    assert named(fault()) == ("event", salted.event_id, "altered")


def test_a_signature_in_capitals_is_not_what_was_made(built: Built) -> None:
    signed = AuditCheckpoint.objects.get(sequence=built.checkpoint)
    set_row(signed, signature=signed.signature.upper())
    found = fault()
    assert (found.kind.value, found.reason.value) == ("checkpoint", "bad_signature")


def test_a_personal_value_of_an_archived_event_that_was_altered_is_found(built: Built) -> None:
    value = AuditPersonalValue.objects.filter(event_id=2).order_by("path")[0]
    set_row(value, value="eve")
    assert named(fault()) == ("event", 2, "altered")


# The head


def test_a_chain_without_its_head_is_found(built: Built) -> None:
    AuditHead.objects.all().delete()
    assert named(fault()) == ("head", 0, "missing")


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"hash": "0" * 64}, ("head", 0, "head_mismatch")),
        ({"sequence": F("sequence") - 1}, ("head", -1, "head_mismatch")),
        ({"sequence": F("sequence") + 3}, ("event", 1, "truncated")),
    ],
    ids=["hash", "back", "ahead"],
)
def test_a_head_that_was_altered_is_found(
    built: Built, columns: dict[str, Any], expected: tuple[str, int, str]
) -> None:
    AuditHead.objects.update(**columns)
    kind, offset, reason = expected
    assert named(fault()) == (kind, built.head + offset, reason)


def test_a_head_that_was_set_back_to_a_true_hash_is_found_by_what_is_behind_it(built: Built) -> None:
    earlier = event(built.head - 1)
    AuditHead.objects.update(sequence=earlier.sequence, hash=earlier.hash)
    assert named(fault()) == ("head", earlier.sequence, "head_mismatch")


# Assignments


@pytest.mark.parametrize(
    "columns",
    [
        {"tenant_id": uuid.UUID(int=9)},
        {"tenant_name": "Rail"},
        {"api_key_id": None},
        {"api_key_prefix": ""},
        {"user_id": uuid.UUID(int=9)},
        {"requested_lane": ""},
        {"given_lane": "high"},
        {"reason": "requested"},
        {"entitlement_id": uuid.UUID(int=9)},
        {"step_downs": []},
        {"budget_position": [{"name": "tokens_per_day", "limit": 1000, "used": 65}]},
        {"policy_version": 2},
        {"created_at": timezone.now() - timedelta(days=1)},
    ],
    ids=lambda columns: next(iter(columns)),
)
def test_a_sealed_assignment_of_which_anything_was_altered_is_named(
    built: Built, columns: dict[str, Any]
) -> None:
    batch, ids = next(iter(built.batches.items()))
    set_row(row(ids[2]), **columns)
    found = fault()
    assert (named(found), found.id) == (("assignment", batch, "altered"), str(ids[2]))


def test_a_sealed_assignment_that_is_gone_is_named(built: Built) -> None:
    batch, ids = next(iter(built.batches.items()))
    with every_tenant("the test takes one away"):
        LaneAssignment.objects.filter(pk=ids[3]).delete()
    found = fault()
    assert (named(found), found.id) == (("assignment", batch, "missing"), str(ids[3]))


@pytest.mark.parametrize("index", [0, 2, 4])
def test_a_leaf_that_is_gone_is_named(built: Built, index: int) -> None:
    batch = next(iter(built.batches))
    leaf(batch, index).delete()
    found = fault()
    assert named(found) == ("assignment", batch, "missing")
    assert f"Leaf {index} of batch {batch}" in found.message


def test_all_leaves_of_a_batch_gone_are_found(built: Built) -> None:
    batch = next(iter(built.batches))
    SealedAssignment.objects.filter(batch=batch).delete()
    assert named(fault()) == ("assignment", batch, "missing")


@pytest.mark.parametrize("hash_", ["0" * 64, "no hash", ""])
def test_a_leaf_that_was_altered_is_named(built: Built, hash_: str) -> None:
    batch, ids = next(iter(built.batches.items()))
    set_row(leaf(batch, 1), hash=hash_)
    found = fault()
    assert (named(found), found.id) == (("assignment", batch, "altered"), str(ids[1]))


@pytest.mark.parametrize(("one", "other"), [(0, 1), (1, 4), (0, 4)])
def test_exchanged_leaves_are_told_by_the_root_and_named_by_their_order(
    built: Built, one: int, other: int
) -> None:
    batch, ids = next(iter(built.batches.items()))
    first, second = leaf(batch, one), leaf(batch, other)
    set_row(first, index=99)
    set_row(second, index=one)
    set_row(first, index=other)
    found = fault()
    assert (named(found), found.id) == (("assignment", batch, "reordered"), str(ids[other]))


def test_leaves_of_two_assignments_that_were_exchanged_fit_neither(built: Built) -> None:
    batch, ids = next(iter(built.batches.items()))
    first, second = leaf(batch, 1), leaf(batch, 3)
    set_row(first, hash=second.hash)
    set_row(second, hash=first.hash)
    found = fault()
    assert (named(found), found.id) == (("assignment", batch, "altered"), str(ids[1]))


def test_an_assignment_altered_with_its_leaf_and_its_root_is_told_by_the_batches_event(built: Built) -> None:
    batch, ids = next(iter(built.batches.items()))
    set_row(row(ids[2]), given_lane="high")
    seal_anew(batch)
    assert named(fault()) == ("event", batch, "altered")


def test_a_leaf_made_anew_alone_is_told_by_the_root(built: Built) -> None:
    batch, ids = next(iter(built.batches.items()))
    set_row(row(ids[2]), given_lane="high")
    set_row(leaf(batch, 2), hash=sealing.assignment_leaf(row(ids[2])))
    assert named(fault()) == ("batch", batch, "altered")


def test_a_leaf_that_was_added_to_a_batch_is_named(built: Built) -> None:
    batch = next(iter(built.batches))
    SealedAssignment.objects.create(
        generation_id=built.unsealed, batch=batch, index=5, hash=sealing.assignment_leaf(row(built.unsealed))
    )
    found = fault()
    assert (named(found), found.id) == (("assignment", batch, "inserted"), str(built.unsealed))


@pytest.mark.parametrize("behind", [0, 100])
def test_a_leaf_of_no_batch_is_named(built: Built, behind: int) -> None:
    place = built.first + behind
    assert place not in built.batches
    SealedAssignment.objects.create(generation_id=built.unsealed, batch=place, index=0, hash="0" * 64)
    found = fault()
    assert (named(found), found.id) == (("assignment", place, "misplaced"), str(built.unsealed))


def test_a_leaf_that_was_moved_to_another_batch_is_missing_in_its_own(built: Built) -> None:
    one, other, *_ = built.batches
    set_row(leaf(one, 4), batch=other, index=3)
    assert named(fault()) == ("assignment", one, "missing")


def test_an_assignment_sealed_a_second_time_by_a_leaf_of_another_batch_is_found(built: Built) -> None:
    one, other, *_ = built.batches
    SealedAssignment.objects.filter(batch=one, index=0).delete()
    set_row(leaf(other, 0), generation_id=built.batches[one][0])
    assert named(fault()) == ("assignment", one, "missing")


def test_a_batch_whose_event_and_leaves_disagree_is_named(built: Built) -> None:
    batch = next(iter(built.batches))
    for after in (
        {**event(batch).after, "count": 6},
        {**event(batch).after, "root": "0" * 64},
        {**event(batch).after, "last_at": event(batch).after["first_at"]},
        {"root": event(batch).after["root"]},
        None,
    ):
        forge(batch, after=after)
        found = fault()
        assert found.sequence == batch
        assert found.kind in (FaultKind.BATCH, FaultKind.ASSIGNMENT)


def test_what_was_never_sealed_is_counted_and_what_was_sealed_late_is_noted(
    built: Built,
) -> None:
    assign(1, at=timezone.now() - timedelta(hours=2))
    assert verify(from_scratch=True).unsealed == 2
    sealing.seal(timezone.now(), sweep=True)
    found = verify(from_scratch=True)
    assert (found.fault, found.unsealed) == (None, 0)
    assert found.notes == (
        f"Sealed more than an hour after the lane was given: 1 assignment, first in batch {built.head + 1}.",
    )


def test_a_clock_that_was_set_back_is_noted_and_no_fault(tampering: Tampering) -> None:
    record_events(3)
    with tampering():
        forge(1, at=timezone.now() + timedelta(hours=1))
        chain_anew(1)
    found = verify(from_scratch=True)
    assert found.fault is None
    assert [note.split(":")[0] for note in found.notes] == [
        "The time runs backwards by more than a minute at 1 event, first at event 2"
    ]


# Whoever writes the chain anew


def test_a_chain_that_was_written_anew_is_found_by_the_checkpoint_behind_it(built: Built) -> None:
    forge(built.first + 1, after={"n": 7})
    chain_anew(built.first + 1)
    assert named(fault()) == ("checkpoint", built.checkpoint, "rewritten")


def test_a_chain_written_anew_with_its_checkpoints_is_found_by_those_kept_outside(built: Built) -> None:
    outside = [
        checkpoint_lines.parse(checkpoint_lines.line(one))
        for one in AuditCheckpoint.objects.order_by("sequence")
    ]
    forge(built.first + 1, after={"n": 7})
    chain_anew(built.first + 1)
    AuditCheckpoint.objects.filter(sequence=built.checkpoint).delete()
    assert verify(from_scratch=True).fault is None, "nothing in the database tells"
    assert named(fault(checkpoints=outside)) == ("checkpoint", built.checkpoint, "rewritten")


def test_a_batch_written_anew_with_all_that_follows_is_found_by_the_checkpoint(built: Built) -> None:
    batch, ids = next(iter(built.batches.items()))
    set_row(row(ids[2]), given_lane="high")
    seal_anew(batch)
    chain_anew(batch)
    assert named(fault()) == ("checkpoint", built.checkpoint, "rewritten")


def test_an_end_cut_off_with_the_head_set_back_is_found_by_a_checkpoint_kept_outside(built: Built) -> None:
    outside = [checkpoint_lines.parse(checkpoint_lines.line(one)) for one in AuditCheckpoint.objects.all()]
    end = built.checkpoint - 1
    gone = AuditEvent.objects.filter(sequence__gt=end)
    SealedAssignment.objects.filter(batch__gt=end).delete()
    AuditPersonalValue.objects.filter(event_id__gt=end).delete()
    gone.delete()
    AuditHead.objects.update(sequence=end, hash=event(end).hash)
    AuditCheckpoint.objects.filter(sequence__gt=end).delete()
    assert verify(from_scratch=True).fault is None, "nothing in the database tells"
    assert named(fault(checkpoints=outside)) == ("checkpoint", built.checkpoint, "truncated")


def test_an_end_cut_off_with_the_head_set_back_is_found_by_its_leaves(built: Built) -> None:
    last = max(built.batches)
    AuditEvent.objects.filter(sequence__gte=last).delete()
    AuditHead.objects.update(sequence=last - 1, hash=event(last - 1).hash)
    assert named(fault()) == ("assignment", last, "misplaced")


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"hash": "0" * 64}, "bad_signature"),
        ({"sequence": F("sequence") - 1}, "bad_signature"),
        ({"at": timezone.now() - timedelta(days=1)}, "bad_signature"),
        ({"signature": "0" * 128}, "bad_signature"),
        ({"signature": "no"}, "bad_signature"),
        ({"key_id": "0" * 16}, "unknown_key"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_checkpoint_that_was_altered_is_named(built: Built, columns: dict[str, Any], reason: str) -> None:
    set_row(AuditCheckpoint.objects.get(sequence=built.checkpoint), **columns)
    found = fault()
    assert (found.kind.value, found.reason.value) == ("checkpoint", reason)


def test_a_key_that_was_exchanged_is_found_by_what_it_has_signed(built: Built) -> None:
    AuditSigningKey.objects.update(public_key="0" * 64)
    assert fault().kind in (FaultKind.CHECKPOINT, FaultKind.KEY)


# Incrementally


def test_an_incremental_walk_begins_where_the_last_that_held_has_ended(built: Built) -> None:
    stored = verify_and_store(from_scratch=True)
    assert (stored.first_sequence, stored.last_sequence, stored.fault) == (1, built.head, None)
    record_events(2)
    sealing.seal(timezone.now())
    found = verify(from_scratch=False)
    assert (found.first_sequence, found.events, found.assignments) == (built.head, 4, 1)
    assert found.fault is None
    again = verify_and_store(from_scratch=False)
    assert again.last_sequence == built.head + 3
    assert verification.last_good() == again


def test_without_a_walk_that_held_every_walk_is_from_scratch(built: Built) -> None:
    set_row(event(built.head), action="thing.delete")
    assert verify_and_store(from_scratch=False).fault is not None
    found = verify(from_scratch=False)
    assert (found.first_sequence, found.events) == (1, built.head - 1)


def test_what_is_stored_of_a_broken_chain_names_the_fault(built: Built) -> None:
    set_row(event(built.first + 1), action="thing.delete")
    stored = verify_and_store(from_scratch=True)
    assert stored.fault == {
        "sequence": built.first + 1,
        "kind": "event",
        "id": "",
        "reason": "altered",
        "message": f"Event {built.first + 1} is not what was recorded: it was changed.",
    }
    assert stored.last_sequence == built.first
    assert verification.last_good() is None


def test_an_incremental_walk_looks_again_at_the_event_where_it_begins(built: Built) -> None:
    verify_and_store(from_scratch=True)
    record_events(1)
    set_row(event(built.head), action="thing.delete")
    assert named(fault(from_scratch=False)) == ("event", built.head, "altered")


def test_an_incremental_walk_leaves_what_is_before_it_to_one_from_scratch(built: Built) -> None:
    verify_and_store(from_scratch=True)
    set_row(event(built.first + 1), action="thing.delete")
    record_events(1)
    assert verify(from_scratch=False).fault is None
    assert named(fault()) == ("event", built.first + 1, "altered")


@pytest.mark.parametrize("from_scratch", [True, False])
def test_a_chain_written_anew_since_it_was_last_verified_is_found(built: Built, from_scratch: bool) -> None:
    verify_and_store(from_scratch=True)
    forge(built.head - 1, tenant_id=uuid.UUID(int=9))
    chain_anew(built.head - 1)
    record_events(1)
    assert named(fault(from_scratch=from_scratch)) == ("event", built.head, "rewritten")


@pytest.mark.parametrize("from_scratch", [True, False])
def test_an_end_cut_off_since_it_was_last_verified_is_found(built: Built, from_scratch: bool) -> None:
    verify_and_store(from_scratch=True)
    AuditEvent.objects.filter(sequence=built.head).delete()
    AuditHead.objects.update(sequence=built.head - 1, hash=event(built.head - 1).hash)
    assert named(fault(from_scratch=from_scratch)) == ("head", built.head, "truncated")


def test_an_incremental_walk_fits_a_checkpoint_of_the_event_before_it(built: Built) -> None:
    made = checkpoints.make(timezone.now())
    assert made
    outside = [checkpoint_lines.parse(checkpoint_lines.line(made))]
    record_events(1)
    stored = verify_and_store(from_scratch=True)
    assert stored.last_sequence == made.sequence + 1
    record_events(1)
    found = verify(from_scratch=False, checkpoints=outside)
    assert (found.fault, found.first_sequence) == (None, made.sequence + 1)


def test_what_is_noted_is_kept_with_what_was_found(built: Built) -> None:
    assign(1, at=timezone.now() - timedelta(hours=2))
    sealing.seal(timezone.now(), sweep=True)
    stored = verify_and_store(from_scratch=True)
    stored.refresh_from_db()
    [note] = stored.notes
    assert note.startswith("Sealed more than an hour after")


def test_an_incremental_walk_is_compared_with_checkpoints_of_what_is_before_it(built: Built) -> None:
    outside = [checkpoint_lines.parse(checkpoint_lines.line(one)) for one in AuditCheckpoint.objects.all()]
    verify_and_store(from_scratch=True)
    forge(built.first + 1, after={"n": 7})
    chain_anew(built.first + 1)
    AuditVerification.objects.update(last_hash=AuditHead.objects.get().hash)
    assert verify(from_scratch=False).fault is None
    assert named(fault(from_scratch=False, checkpoints=outside)) == (
        "checkpoint",
        built.checkpoint,
        "rewritten",
    )
