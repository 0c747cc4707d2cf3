from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import redis
from django.core.cache import cache
from django.db import transaction
from django.test import Client
from django.utils import timezone
from prometheus_client import CollectorRegistry, generate_latest

from accounts import audit, tasks
from accounts.audit import checkpoints, triggers
from accounts.models import AuditEvent, AuditHead, AuditVerification
from signalbox import secret_files
from signalbox.audit_metrics import AuditCollector
from tests.accounts.audit.own_state import settle
from tests.factories import ACTOR

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("valkey")]


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    settle(monkeypatch, tmp_path)
    return tmp_path


def record(count: int) -> None:
    for _ in range(count):
        with transaction.atomic():
            audit.record(ACTOR, "thing.change", audit.ObjectRef("thing", "1"), None, None)


def collected() -> dict[str, float]:
    """Each series by its name, and where it has one its label's value."""
    registry = CollectorRegistry()
    registry.register(AuditCollector())
    lines = generate_latest(registry).decode().splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
    return {name.removeprefix("signalbox_audit_"): float(value) for name, value in pairs}


def test_an_installation_that_has_recorded_nothing_says_so() -> None:
    assert collected() == {
        "events_total": 0,
        "triggers_missing": 0,
        "unsealed_assignments": 0,
        'anchor_waiting{kind="file"}': 0,
    }


def test_the_chain_its_signature_its_last_walk_and_its_file_are_told() -> None:
    record(3)
    before = timezone.now().timestamp()
    assert tasks.checkpoint_audit()
    assert tasks.verify_audit()
    record(1)
    assert checkpoints.make(timezone.now()) is not None
    found = collected()
    assert found["events_total"] == AuditHead.objects.get().sequence == 5
    assert found["holds"] == 1
    assert found["last_checkpoint_sequence"] == 5
    assert found['anchor_waiting{kind="file"}'] == 1
    for name in (
        "last_verification",
        "last_checkpoint",
        'anchor_last_success_timestamp_seconds{kind="file"}',
    ):
        series = name if "{" in name else f"{name}_timestamp_seconds"
        assert before <= found[series] <= before + 60


def test_a_fault_shows(tampering: Callable[[], AbstractContextManager[None]]) -> None:
    record(3)
    with tampering():
        AuditEvent.objects.filter(sequence=2).update(actor_id="somebody-else")
        assert collected()["triggers_missing"] == len(triggers.missing()) > 0
    assert not tasks.verify_audit()
    assert collected()["holds"] == 0
    last = AuditVerification.objects.get()
    assert collected()["last_verification_timestamp_seconds"] == pytest.approx(last.finished_at.timestamp())


def test_without_the_store_the_database_is_told_of_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object, **__: object) -> None:
        raise redis.ConnectionError("gone")

    record(2)
    monkeypatch.setattr(cache, "get", gone)
    found = collected()
    assert found["events_total"] == 2
    assert not any(name.startswith("anchor") for name in found)


def test_metrics_have_them() -> None:
    token = secret_files.read_or_create("metrics_token")
    answer = Client(headers={"Authorization": f"Bearer {token}"}).get("/metrics")
    assert b"signalbox_audit_events_total 0.0" in answer.content
