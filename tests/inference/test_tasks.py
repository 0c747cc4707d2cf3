from __future__ import annotations

import os
import time
from datetime import timedelta

import pytest
import redis
from django.utils import timezone

from accounts.models import ApiKey, Reservation
from accounts.tenancy import every_tenant
from inference import tasks
from inference.models import (
    Generation,
    GenerationOutput,
    GenerationRequest,
    GenerationRun,
    LanguageModel,
    RunOutcome,
)
from inference.models.generation import GenerationState
from signalbox.celery import app
from signalbox.configuration import configuration
from signalbox.tasks import delete_old_logs
from tests.factories import LanguageModelFactory
from tests.inference.doors import accepted, row

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def model(valkey: redis.Redis) -> LanguageModel:
    made: LanguageModel = LanguageModelFactory()
    return made


def generation(model: LanguageModel, *, ended_days_ago: float | None) -> Generation:
    """An accepted generation with a kept output and a run; ended so long ago, or live."""
    with every_tenant("a test makes rows"):
        row: Generation = Generation.objects.get(pk=accepted(model).generation_id)
        GenerationOutput.objects.create(generation=row, events=b"events")
        now = timezone.now()
        GenerationRun.objects.create(
            generation=row, epoch=1, claimed_at=now, ended_at=now, outcome=RunOutcome.REQUEUED, events=[]
        )
        if ended_days_ago is not None:
            row.state = GenerationState.COMPLETED
            row.ended_at = timezone.now() - timedelta(days=ended_days_ago)
            row.save()
    return row


def test_prompts_outputs_and_runs_go_when_retention_ends_and_the_generation_stays(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "BATCH", 2)
    days = configuration().request_retention_days
    old = [generation(model, ended_days_ago=days + 1) for _ in range(5)]
    kept = [generation(model, ended_days_ago=days - 1), generation(model, ended_days_ago=None)]
    assert tasks.delete_old_requests() == 3 * len(old)
    assert tasks.delete_old_requests() == 0
    with every_tenant("a test looks"):
        assert set(GenerationRequest.objects.values_list("generation", flat=True)) == {g.pk for g in kept}
        assert set(GenerationOutput.objects.values_list("generation", flat=True)) == {g.pk for g in kept}
        assert set(GenerationRun.objects.values_list("generation", flat=True)) == {g.pk for g in kept}
        assert Generation.objects.count() == len(old) + len(kept)


def test_old_logs_go_and_the_ones_that_are_written_stay() -> None:
    directory = configuration().logs_dir
    directory.mkdir(exist_ok=True)
    for name in ("web.log", "web.20200101T000000.log", "web.20990101T000000.log"):
        (directory / name).write_text("x")
    long_ago = time.time() - (configuration().log_retention_days + 1) * 86_400
    for name in ("web.log", "web.20200101T000000.log"):
        os.utime(directory / name, (long_ago, long_ago))
    assert delete_old_logs() == 1
    assert sorted(path.name for path in directory.iterdir()) == ["web.20990101T000000.log", "web.log"]


def test_every_scheduled_task_exists() -> None:
    app.loader.import_default_modules()
    scheduled = {entry["task"] for entry in app.conf.beat_schedule.values()}
    assert scheduled <= set(app.tasks)


def test_what_is_overdue_ends_without_any_worker(valkey: redis.Redis, model: LanguageModel) -> None:
    waiting = accepted(model)
    revoked = accepted(model)
    with every_tenant("the test ages one and revokes the key of the other"):
        Generation.objects.filter(id=waiting.generation_id).update(
            created_at=timezone.now() - timedelta(days=1)
        )
        ApiKey.objects.filter(id=row(revoked.task.generation).api_key_id).update(revoked_at=timezone.now())
    assert tasks.end_overdue() == 2
    assert tasks.end_overdue() == 0
    assert row(waiting.task.generation).state == "expired"
    assert row(revoked.task.generation).state == "cancelled"
    with every_tenant("the test looks at what is held"):
        assert not Reservation.objects.filter(settled_at=None).exists()
