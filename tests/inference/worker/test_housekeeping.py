"""What a worker's housekeeping does unasked, in a whole worker."""

from __future__ import annotations

from dataclasses import replace

import pytest
import redis
from django.utils import timezone

from accounts.models import ApiKey
from accounts.tenancy import every_tenant
from inference.models import LanguageModel
from inference.models.generation import GenerationState
from inference.scheduler_settings import SchedulerSettings, settings_of
from inference.worker.housekeeping import SettingsWatch
from tests.inference.doors import row
from tests.inference.worker.conftest import ENDLESS, submit
from tests.inference.worker.test_process import StartWorker, wait_for_state, wait_for_tokens


def test_a_worker_ends_what_runs_for_a_revoked_key_unasked(
    start_worker: StartWorker, model: LanguageModel, valkey: redis.Redis
) -> None:
    start_worker()
    generation = submit(model, max_tokens=ENDLESS)
    wait_for_tokens(valkey, generation, 3)
    with every_tenant("the test revokes"):
        ApiKey.objects.filter(id=row(generation).api_key_id).update(revoked_at=timezone.now())
    ended = wait_for_state(generation, GenerationState.CANCELLED)
    assert ended.cancel_reason == "access_revoked"


def test_settings_that_could_not_be_applied_are_applied_after_the_next_reading(model: LanguageModel) -> None:
    before = settings_of(model)
    wanted, applied = (
        replace(before, slots=before.slots + 1),
        list[tuple[SchedulerSettings, SchedulerSettings]](),
    )
    attempts = iter([RuntimeError("away"), None])

    def apply(settings: SchedulerSettings, earlier: SchedulerSettings) -> None:
        if (error := next(attempts)) is not None:
            raise error
        applied.append((settings, earlier))

    watch = SettingsWatch(model.id, before, apply)
    LanguageModel.objects.update(slots=wanted.slots)
    with pytest.raises(RuntimeError, match="away"):
        watch()
    watch()
    watch()
    assert (applied, watch.current) == ([(wanted, before)], wanted)
