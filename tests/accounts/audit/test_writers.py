"""Many threads of several processes append and seal at once: it is one chain, and each assignment is sealed once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection
from django.db.models import Count
from django.utils import timezone

from accounts.audit import sealing
from accounts.audit.batches import ACTION, Batch
from accounts.audit.verification import verify
from accounts.models import AuditEvent, LaneAssignment, SealedAssignment
from accounts.tenancy import every_tenant
from tests.accounts.audit import processes
from tests.accounts.audit.chains import assignment, record_events

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow, pytest.mark.timeout(600)]


def assert_all_is_sealed_once(assignments: int, events: int) -> None:
    found = verify(from_scratch=True)
    assert found.fault is None, found.fault
    assert (found.assignments, found.unsealed) == (assignments, 0)
    with every_tenant("the test looks"):
        made = set(LaneAssignment.objects.values_list("generation_id", flat=True))
    assert set(SealedAssignment.objects.values_list("generation_id", flat=True)) == made
    assert SealedAssignment.objects.count() == len(made) == assignments
    batches = [Batch.of(event) for event in AuditEvent.objects.filter(action=ACTION)]
    assert sum(batch.count for batch in batches) == assignments
    assert AuditEvent.objects.exclude(action=ACTION).count() == events
    leaves = SealedAssignment.objects.values("batch").annotate(leaves=Count("generation_id"))
    assert sorted(row["leaves"] for row in leaves) == sorted(batch.count for batch in batches)


def _at_once(*work: Callable[[], object]) -> None:
    start = threading.Barrier(len(work))

    def one(do: Callable[[], object]) -> None:
        try:
            start.wait()
            do()
        finally:
            connection.close()

    with ThreadPoolExecutor(len(work)) as threads:
        for done in [threads.submit(one, do) for do in work]:
            done.result()


def test_sealers_of_one_process_that_want_the_same_assignments_seal_each_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sealing, "LARGEST", 7)
    with every_tenant("the test assigns"):
        LaneAssignment.objects.bulk_create([assignment() for _ in range(60)])
    _at_once(*[lambda: sealing.seal(timezone.now())] * 6, *[lambda: record_events(5)] * 2)
    assert_all_is_sealed_once(60, 10)


def test_processes_that_append_assign_and_seal_at_once_make_one_chain() -> None:
    count = 40
    started = [
        processes.start("append", str(count), "assign", str(count), "seal", str(count)) for _ in range(3)
    ]
    for process in started:
        processes.finish(process)
    sealing.seal(timezone.now())
    assert_all_is_sealed_once(3 * count, 3 * count)
