"""A thread that claims beside a tick thread that hangs."""

from __future__ import annotations

import logging

import pytest
import redis

from inference.dispatch.queue import DispatchQueue
from inference.models import LanguageModel
from inference.worker.claim_thread import ClaimThread
from inference.worker.progress import Progress
from inference.worker.requests import Admit, PlanRoom
from tests.inference.dispatch.conftest import let_lease_lapse, wait_until
from tests.inference.worker.conftest import LEASE_S, SETTINGS, HandDrivenWorker, submit


class Ticks(Progress):
    """The last one finished as long ago as the test says. Counts how often that was asked."""

    def __init__(self, age_s: float) -> None:
        super().__init__()
        self.said_s = age_s
        self.asked = 0

    @property
    def age_s(self) -> float:
        self.asked += 1
        return self.said_s


def test_a_worker_whose_ticks_stand_still_claims_nothing_until_they_go_on(
    worker: HandDrivenWorker, model: LanguageModel, valkey: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    ticks, asked = Ticks(LEASE_S / 2 + 0.1), list[Admit | PlanRoom]()
    thread = ClaimThread(
        valkey,
        worker.name,
        model.name,
        LEASE_S,
        worker.holdings,
        worker.memory,
        lambda: SETTINGS,
        worker.settlements,
        worker.metrics,
        asked.append,
        ticks,
    )
    lost = submit(model)
    worker.claim()  # as it did before it hung
    let_lease_lapse(valkey, lost, model.name)
    new = submit(model)
    thread.start()
    try:
        wait_until(lambda: ticks.asked > 4)
        assert asked == []
        assert valkey.hget(f"dispatch:generation:{lost}", "lapses") is None, "whoever looks returns it"
        assert DispatchQueue(valkey).position(new) == 1
        ticks.said_s = LEASE_S / 2 - 0.1
        wait_until(lambda: len(asked) == 2)
    finally:
        thread.stop()
        thread.join(20)
    claimed = [request.claim.task.generation for request in asked if isinstance(request, Admit)]
    assert set(claimed) == {lost, new}
    assert sum("claiming_paused" in record.getMessage() for record in caplog.records) == 1
    assert sum("claiming_goes_on" in record.getMessage() for record in caplog.records) == 1
