"""Very many checkpoints cost no more queries than a few: on a walk, on the audit's page, outside, in the metrics."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from accounts import audit
from accounts.audit import anchors, checkpoints, export, verification
from accounts.audit.selection import Selection
from accounts.models import AuditCheckpoint
from signalbox.audit_metrics import AuditCollector
from tests.accounts.audit.own_state import settle
from tests.factories import ACTOR

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("valkey")]

MANY = 50


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    settle(monkeypatch, tmp_path)
    return tmp_path


def sign(count: int) -> list[AuditCheckpoint]:
    """So many checkpoints, each of an event of its own, and the file of them."""
    made = []
    for _ in range(count):
        with transaction.atomic():
            audit.record(ACTOR, "thing.change", audit.ObjectRef("thing", "1"), None, None)
        checkpoint = checkpoints.make(timezone.now())
        assert checkpoint is not None
        made.append(checkpoint)
    assert anchors.deliver(timezone.now()) == []
    return made


def queries(act: Callable[[], object]) -> int:
    with CaptureQueriesContext(connection) as asked:
        act()
    return len(asked)


def _from_scratch() -> None:
    found = verification.verify(from_scratch=True)
    assert found.fault is None


def _incrementally() -> None:
    """What is kept outside is looked at from the first one on, however little is walked."""
    found = verification.verify(from_scratch=False)
    assert found.fault is None
    assert found.events <= 2


def _export() -> None:
    assert list(export.pages(export.begin(Selection(), with_personal=True, actor=ACTOR)))


PLACES: dict[str, Callable[[], object]] = {
    "from scratch": _from_scratch,
    "incrementally": _incrementally,
    "several at once": lambda: checkpoints.faults_of(list(AuditCheckpoint.objects.all())),
    "brought outside": lambda: anchors.deliver(timezone.now()),
    "the next one": lambda: checkpoints.make_when_due(timezone.now()),
    "an export": _export,
    "the metrics": lambda: list(AuditCollector().collect()),
}


@pytest.mark.parametrize("act", PLACES.values(), ids=PLACES)
def test_fifty_checkpoints_cost_as_many_queries_as_two(act: Callable[[], object]) -> None:
    sign(2)
    verification.verify_and_store(from_scratch=True)
    few = queries(act)
    sign(MANY - 2)
    verification.verify_and_store(from_scratch=True)
    assert queries(act) == few


@pytest.mark.usefixtures("_admin_pages")
def test_so_they_do_on_the_page_of_the_audit(as_operator: Client) -> None:
    sign(1)
    url = reverse("admin:accounts_audit")
    as_operator.get(url)
    few = queries(lambda: as_operator.get(url))
    sign(MANY)
    assert queries(lambda: as_operator.get(url)) == few


def test_several_are_found_out_as_each_of_them_is(tampering: Any) -> None:
    first, second, third = sign(3)
    with tampering():
        AuditCheckpoint.objects.filter(id=second.id).update(hash="0" * 64)
    asked = list(AuditCheckpoint.objects.order_by("at"))
    alone = [checkpoints.fault_of(one) for one in asked]
    assert checkpoints.faults_of(asked) == alone
    assert [fault is None for fault in alone] == [True, False, True]
    assert {first.sequence, third.sequence}.isdisjoint({fault.sequence for fault in alone if fault})
