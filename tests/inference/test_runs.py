"""The rows of runs: written with the settlement or not at all, once, and seen by their tenant only."""

from __future__ import annotations

import time
import uuid
from dataclasses import replace
from typing import Any

import pytest
import redis
from django.db import IntegrityError

from accounts import ledger
from accounts.tenancy import every_tenant, tenant_scope
from inference.cancellation import cancel
from inference.messages import CancelReason, End, EndState, Usage
from inference.models import GenerationRun, RunOutcome
from inference.runs import EventKind, RunRecord, write
from inference.settlement import settle
from tests.factories import GenerationFactory, LanguageModelFactory, WorkerFactory
from tests.inference.doors import accepted, row

pytestmark = pytest.mark.django_db(transaction=True)

END = End(
    seq=1,
    epoch=1,
    state=EndState.COMPLETED,
    usage=Usage(prompt_tokens=3, completion_tokens=4),
)


def run_of(generation: Any, **changes: Any) -> RunRecord:
    now = time.time()
    fields: dict[str, Any] = {
        "generation": generation.id,
        "epoch": 1,
        "claimed_at": now - 2,
        "ended_at": now,
        "outcome": RunOutcome.COMPLETED,
        "events": [(0.5, EventKind.CLAIMED, {})],
        "worker": WorkerFactory(hostname="mac-1", pid=7),
    }
    return RunRecord(**{**fields, **changes})


def rows() -> list[GenerationRun]:
    with every_tenant("the test looks at what it made"):
        return list(GenerationRun.objects.all())


def test_a_run_is_written_with_the_settlement(valkey: redis.Redis) -> None:
    generation = GenerationFactory(state="running", epoch=1)
    run = run_of(generation)
    assert settle(generation.id, 1, END, run=run)
    (written,) = rows()
    assert (written.epoch, written.outcome, written.worker_name) == (1, "completed", "mac-1:7")
    assert written.worker == run.worker
    assert written.events == [[0.5, "claimed", {}]]
    assert written.claimed_at.timestamp() == pytest.approx(run.claimed_at, abs=1e-3)


def test_a_settlement_that_fails_leaves_no_run(valkey: redis.Redis) -> None:
    generation = GenerationFactory(state="running", epoch=1)
    ledger.settle(  # as if by another hand: the settlement's own entry will break the ledger's constraint
        generation_id=generation.id,
        tenant_id=generation.tenant_id,
        api_key_id=None,
        user_id=None,
        model="m",
        lane="normal",
        prompt_tokens=1,
        cached_tokens=0,
        completion_tokens=1,
        accepted_prediction_tokens=0,
        rejected_prediction_tokens=0,
        at=generation.created_at,
    )
    with pytest.raises(IntegrityError):
        settle(generation.id, 1, END, run=run_of(generation))
    assert rows() == []
    assert row(generation.id.hex).state == "running"


def test_settling_again_writes_no_second_run_and_changes_none(valkey: redis.Redis) -> None:
    generation = GenerationFactory(state="running", epoch=1)
    assert settle(generation.id, 1, END, run=run_of(generation))
    assert not settle(generation.id, 1, END, run=run_of(generation, outcome=RunOutcome.LOST))
    assert [written.outcome for written in rows()] == ["completed"]


def test_a_run_whose_generation_somebody_else_has_settled_is_kept(valkey: redis.Redis) -> None:
    generation = GenerationFactory(state="running", epoch=1)
    assert settle(generation.id, 1, END)
    assert not settle(generation.id, 1, END, run=run_of(generation))
    assert len(rows()) == 1


def test_a_run_of_a_generation_that_is_gone_is_none(valkey: redis.Redis) -> None:
    assert not settle(uuid.uuid4(), 1, END, run=replace(run_of(GenerationFactory()), generation=uuid.uuid4()))
    assert rows() == []


def test_what_is_cancelled_while_it_waits_leaves_a_run_that_nobody_ran(valkey: redis.Redis) -> None:
    generation_id = accepted(LanguageModelFactory()).generation_id
    cancel(generation_id, CancelReason.CLIENT_REQUESTED)
    (written,) = rows()
    settled = row(generation_id.hex)
    assert (written.epoch, written.outcome, written.worker) == (settled.epoch, RunOutcome.WITHDRAWN, None)
    assert written.events[0][1:] == ["cancelled", {"reason": "client_requested"}]


def test_a_tenant_sees_its_own_runs_only() -> None:
    generation = GenerationFactory()
    write(run_of(generation))
    with tenant_scope(generation.tenant_id):
        assert GenerationRun.objects.count() == 1
    with tenant_scope(uuid.uuid4()):
        assert GenerationRun.objects.count() == 0
