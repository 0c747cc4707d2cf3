"""A thread that claims beside a tick thread that hangs, and while the database is away."""

from __future__ import annotations

import logging
from uuid import UUID

import pytest
import redis
from django import db

from inference.dispatch.queue import DispatchQueue
from inference.models import LanguageModel
from inference.worker import claim_thread
from inference.worker.backoff import Backoff
from inference.worker.progress import Progress
from inference.worker.requests import Admit, PlanRoom, RoomPlan
from tests.inference.dispatch.conftest import let_lease_lapse, wait_until
from tests.inference.doors import entitled_principal
from tests.inference.worker.conftest import LEASE_S, GettingOn, HandDrivenWorker, submit


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
    thread = worker.claim_thread(asked.append, progress=ticks)
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


def test_a_claim_into_the_room_of_others_is_tried_ever_more_seldom_while_the_database_is_away(
    worker: HandDrivenWorker,
    model: LanguageModel,
    valkey: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """That there is no room is found without the database: it is no sign of its being back."""
    caplog.set_level(logging.INFO)
    low = submit(model, by=entitled_principal("low"), requested_lane="low")
    worker.holdings.resize(1)
    worker.claim()
    high = submit(model, by=entitled_principal("high"), requested_lane="high")
    expected = Backoff(claim_thread._FIRST_RETRY_S, claim_thread._LONGEST_RETRY_S)
    start, away, delays, admitted = claim_thread.start, list[int](), list[float](), list[str]()

    class AtOnce(Backoff):
        """Says what it would have waited."""

        def delay(self) -> float:
            delays.append(super().delay())
            return 0.0

    def away_at_first(generation_id: UUID, epoch: int) -> bool:
        if len(away) < 8:
            away.append(epoch)
            raise db.OperationalError("the database is away")
        return start(generation_id, epoch)

    def answer(request: Admit | PlanRoom) -> None:
        if isinstance(request, PlanRoom):
            request.answer.set_result(RoomPlan(high, {low: 1}))
        else:
            admitted.append(request.claim.task.generation)

    monkeypatch.setattr(claim_thread, "Backoff", AtOnce)
    monkeypatch.setattr(claim_thread, "start", away_at_first)
    thread = worker.claim_thread(answer, progress=GettingOn())
    thread.start()
    try:
        wait_until(lambda: admitted == [high])
    finally:
        thread.stop()
        thread.join(20)
    assert delays == [expected.delay() for _ in away]
    assert delays[-1] == claim_thread._LONGEST_RETRY_S
    assert sum("claiming_failing" in record.getMessage() for record in caplog.records) == 1
    assert sum("claiming_recovered" in record.getMessage() for record in caplog.records) == 1
