"""Lane assignments into batches: each once, in order, those that come late too, whoever else is at it."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest
import redis
import structlog
from django.core.cache import cache
from django.db import IntegrityError, connection
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from accounts.audit import merkle, sealing
from accounts.audit.batches import Batch
from accounts.audit.canonical import utc_text
from accounts.audit.contents import assignment_leaf
from accounts.audit.verification import verify
from accounts.models import AuditEvent, AuditHead, LaneAssignment, SealedAssignment
from accounts.sole_passes import sole_pass
from accounts.tenancy import every_tenant
from tests.accounts.audit.chains import Tampering, assign, record_events
from tests.accounts.audit.raw_rows import set_raw

pytestmark = pytest.mark.django_db


def leaves() -> list[tuple[int, int, uuid.UUID]]:
    return list(
        SealedAssignment.objects.order_by("batch", "index").values_list("batch", "index", "generation_id")
    )


def test_a_batch_is_one_event_over_the_tree_of_its_leaves(tampering: Tampering) -> None:
    record_events(1)
    with tampering():
        ids = assign(5)
    assert sealing.unsealed().count == 5
    assert sealing.seal(timezone.now()) == 5
    with every_tenant("the test looks"):
        rows = list(LaneAssignment.objects.order_by("created_at"))
    hashes = [assignment_leaf(row) for row in rows]
    event = AuditEvent.objects.get(action="lane_assignments.seal")
    assert event.after == {
        "root": merkle.root(hashes),
        "count": 5,
        "first_at": utc_text(rows[0].created_at),
        "last_at": utc_text(rows[-1].created_at),
    }
    assert (event.object_kind, event.object_id) == ("assignment_batch", merkle.root(hashes))
    assert (event.actor_kind, event.actor_name, event.before) == ("system", "sealing", None)
    assert Batch.of(event).count == 5
    assert leaves() == [(2, index, generation_id) for index, generation_id in enumerate(ids)]
    assert list(SealedAssignment.objects.order_by("index").values_list("hash", flat=True)) == hashes
    assert sealing.unsealed() == sealing.Unsealed(0, None)
    assert verify(from_scratch=True).fault is None


def test_where_nothing_waits_nothing_is_recorded() -> None:
    assert sealing.seal(timezone.now()) == 0
    assert AuditHead.objects.get().sequence == 0


def test_a_batch_is_limited_and_a_pass_goes_on_until_nothing_waits(
    tampering: Tampering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealing, "LARGEST", 4)
    with tampering():
        ids = assign(10)
    assert sealing.seal(timezone.now()) == 10
    places = [(1, 0), (1, 1), (1, 2), (1, 3), (2, 0), (2, 1), (2, 2), (2, 3), (3, 0), (3, 1)]
    assert leaves() == [(*place, generation_id) for place, generation_id in zip(places, ids, strict=True)]
    assert verify(from_scratch=True).assignments == 10


def test_one_committed_late_is_found_by_the_next_pass_and_one_far_too_late_by_a_sweep(
    tampering: Tampering,
) -> None:
    now = timezone.now()
    with tampering():
        assign(1)
        assert sealing.seal(now) == 1
        assign(1, at=now - timedelta(minutes=9))
        assert sealing.seal(now) == 1
        assign(1, at=now - timedelta(hours=2))
    assert sealing.unsealed().count == sealing.seal(now) == 0
    assert sealing.unsealed(sweep=True).count == sealing.seal(now, sweep=True) == 1
    assert sealing.unsealed(sweep=True).count == 0
    assert verify(from_scratch=True).notes == (
        "Sealed more than an hour after the lane was given: 1 assignment, first in batch 3.",
    )


def test_a_clock_that_runs_ahead_hides_nothing(tampering: Tampering) -> None:
    now = timezone.now()
    with tampering():
        assign(1, at=now + timedelta(days=1))
        assert sealing.seal(now) == 1
        assign(1, at=now)
    assert sealing.unsealed().count == 1
    assert sealing.seal(now) == 1


def test_what_an_interrupted_pass_has_left_is_found_however_old_it_is(
    tampering: Tampering, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = timezone.now()
    with tampering():
        for hours in range(6, 0, -1):
            assign(2, at=now - timedelta(hours=hours))
    real, done = sealing.record, []

    def record(*args: Any) -> AuditEvent:
        if len(done) == 2:
            raise RuntimeError("killed")
        done.append(args)
        return real(*args)

    monkeypatch.setattr(sealing, "LARGEST", 3)
    monkeypatch.setattr(sealing, "record", record)
    with pytest.raises(RuntimeError):
        sealing.seal(now)
    monkeypatch.setattr(sealing, "record", real)
    assert SealedAssignment.objects.count() == 6
    assert sealing.unsealed().count == sealing.seal(now) == 6
    assert verify(from_scratch=True).fault is None


def test_a_pass_that_another_one_overtakes_seals_nothing_twice(
    tampering: Tampering, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tampering():
        ids = assign(3)
    real = sealing._seal
    passes = []

    def overtaken(waiting: Any, *, may_lose: bool) -> bool:
        if not passes:
            passes.append(waiting)
            assert sealing.seal(timezone.now()) == 3
        return real(waiting, may_lose=may_lose)

    monkeypatch.setattr(sealing, "_seal", overtaken)
    assert sealing.seal(timezone.now()) == 0
    assert leaves() == [(1, index, generation_id) for index, generation_id in enumerate(ids)]
    assert AuditHead.objects.get().sequence == 1
    assert verify(from_scratch=True).fault is None


def test_what_no_other_pass_is_to_blame_for_is_an_error(tampering: Tampering) -> None:
    with tampering():
        assign(1)
        # Somebody has put a leaf where the next batch's first one belongs.
        SealedAssignment.objects.create(generation_id=uuid.uuid4(), batch=1, index=0, hash="0" * 64)
    with pytest.raises(IntegrityError):
        sealing.seal(timezone.now())
    assert not AuditEvent.objects.exists()


def test_a_batch_that_was_tampered_with_does_not_stop_sealing(tampering: Tampering) -> None:
    with tampering():
        assign(1)
        sealing.seal(timezone.now())
        AuditEvent.objects.update(after={"last_at": "yesterday"})
        assign(1, at=timezone.now() - timedelta(days=1))
    assert sealing.seal(timezone.now()) == 1


def test_what_waits_is_told_by_two_questions(
    tampering: Tampering, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    with tampering():
        assign(2)
        sealing.seal(timezone.now())
        now = timezone.now()
        assign(3, at=now)
    with django_assert_num_queries(2):
        assert sealing.unsealed() == sealing.Unsealed(3, now)


def test_one_process_seals_at_a_time_and_sweeps_now_and_then(
    tampering: Tampering, valkey: redis.Redis
) -> None:
    now = timezone.now()
    with tampering():
        assign(2)
        with sole_pass("seal-assignments", at_most_s=60) as alone:
            assert alone
            assert sealing.seal_alone(now) == 0
        assert sealing.seal_alone(now) == 2, "the first pass sweeps"
        assign(1, at=now - timedelta(days=1))
        assign(1, at=now - timedelta(minutes=5))
        assert sealing.seal_alone(now) == 1, "the second looks back"
        assign(1, at=now - timedelta(minutes=5))
        assign(1, at=now - timedelta(seconds=50))
    assert sealing.seal_alone(now) == 1
    cache.delete("audit:sealing-looked-back")
    assert sealing.seal_alone(now) == 1
    assert sealing.seal_alone(now) == 0
    cache.delete("audit:sealing-swept")
    assert sealing.seal_alone(now) == 1


# A row that somebody has changed in the database itself


def _unreadable(generation_id: uuid.UUID) -> None:
    """What neither database refuses, and nobody can read: an object too deep, or on SQLite a time that is none."""
    with every_tenant("the test changes what it likes"):
        row = LaneAssignment.objects.get(pk=generation_id)
    if connection.vendor == "sqlite":
        set_raw(row, "created_at", "2026-99-99 00:00:00")
    else:
        set_raw(row, "step_downs", "[" * 3000 + "]" * 3000, sql="%s::jsonb")


@pytest.mark.parametrize("places", [[0], [2], [4], [0, 1], [1, 3], [0, 1, 2, 3, 4]], ids=str)
@pytest.mark.parametrize("batch", [2, 4096])
def test_a_row_that_cannot_be_read_waits_alone(
    tampering: Tampering, monkeypatch: pytest.MonkeyPatch, places: list[int], batch: int
) -> None:
    monkeypatch.setattr(sealing, "LARGEST", batch)
    with tampering():
        ids = assign(5)
        for place in places:
            _unreadable(ids[place])
        assert sealing.seal(timezone.now()) == 5 - len(places)
        assert {generation_id for _, _, generation_id in leaves()} == {
            generation_id for place, generation_id in enumerate(ids) if place not in places
        }
        assert sealing.unsealed().count == len(places)
        assert sealing.seal(timezone.now()) == 0
        ids = assign(2)
        assert sealing.seal(timezone.now()) == 2
    found = verify(from_scratch=True)
    assert (found.unsealed, found.assignments) == (len(places), 7 - len(places))
    assert found.fault is not None
    assert (found.fault.kind, found.fault.reason, found.fault.sequence) == ("assignment", "altered", 0)
    assert "waits for its batch and cannot be sealed" in found.fault.message


def test_a_row_that_cannot_be_read_is_named_and_logged_once(
    tampering: Tampering,
) -> None:
    with tampering():
        [one] = assign(1)
        _unreadable(one)
        with structlog.testing.capture_logs() as logs:
            for _ in range(3):
                assert sealing.seal(timezone.now()) == 0
    [line] = [line for line in logs if line["event"] == "audit_assignment_not_sealed"]
    assert (line["generation"], line["log_level"]) == (str(one), "error")
    assert line["problem"]
    assert sealing.first_unsealable() == sealing.Unsealable(str(one), line["problem"])
    found = verify(from_scratch=False)
    assert found.fault is not None
    assert found.fault.id == str(one)


def test_what_waits_is_counted_where_the_oldest_time_cannot_be_read(tampering: Tampering) -> None:
    if connection.vendor != "sqlite":
        pytest.skip("PostgreSQL has no such times")
    with tampering():
        for generation_id in assign(2):
            _unreadable(generation_id)
    assert sealing.unsealed(sweep=True) == sealing.Unsealed(2, None)


def test_all_that_waits_is_looked_through_for_what_cannot_be_sealed(
    tampering: Tampering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealing, "LARGEST", 2)
    with tampering():
        ids = assign(7)
        assert sealing.first_unsealable() is None
        _unreadable(ids[6])
    found = sealing.first_unsealable()
    assert found is not None
    assert found.generation_id == str(ids[6])


@pytest.mark.parametrize(
    "after",
    [
        {"last_at": "0001-01-01T00:00:00+00:00"},
        {"last_at": "2026-01-01T00:00:00"},
        {"last_at": 5},
        ["last_at"],
        "last_at",
        {"last_at": {}},
    ],
    ids=str,
)
def test_whatever_a_batch_says_of_itself_sealing_goes_on(tampering: Tampering, after: Any) -> None:
    with tampering():
        assign(1)
        sealing.seal(timezone.now())
        AuditEvent.objects.update(after=after)
        assign(1, at=timezone.now() - timedelta(days=1))
    assert sealing.unsealed().count == sealing.seal(timezone.now()) == 1
