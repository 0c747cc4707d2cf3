"""Whose parked prompt is run next: the lanes' floor in a real worker's ticks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import redis

from inference.engine.engine import Engine
from inference.messages import PrefillProgress
from inference.models import LanguageModel
from tests.inference.doors import entitled_principal
from tests.inference.worker.conftest import PROMPT, SETTINGS, HandDrivenWorker, submit
from tests.inference.worker.test_loop import published

HIGH, LOW = "high", "low"


@pytest.mark.parametrize(
    ("floor", "expected"),
    [
        (4, [*[HIGH] * 4, LOW, *[HIGH] * 4, LOW, LOW]),
        (1, [HIGH, LOW, HIGH, LOW, HIGH, LOW, *[HIGH] * 5]),
    ],
)
def test_prompts_of_two_lanes_are_run_by_rank_with_the_floor_that_is_set(
    model: LanguageModel, engine: Engine, valkey: redis.Redis, floor: int, expected: list[str]
) -> None:
    """Each prompt is a chunk, and its answer its first token: no tick is run but theirs, and no two share one."""
    settings = replace(SETTINGS, slots=len(expected), lane_floor=floor)
    worker = HandDrivenWorker(engine, valkey, model.name, settings=settings)
    chunk = PROMPT[: settings.limits.chunk_tokens]
    lane_of: dict[str, str] = {}
    for lane in (LOW, HIGH):  # the low lane's are admitted first
        by = entitled_principal(lane)
        for _ in range(expected.count(lane)):
            lane_of[submit(model, by=by, requested_lane=lane, prompt=chunk, max_tokens=1)] = lane
            worker.claim()
    worker.run_dry()
    run = [lane_of[key] for key, one in published(valkey) if isinstance(one, PrefillProgress)]
    assert run == expected
