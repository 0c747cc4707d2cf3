from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import msgspec
import pytest
import redis
from django.db import connection

from accounts.models import LedgerEntry
from accounts.tenancy import every_tenant, tenant_scope
from inference.dispatch import publishing
from inference.messages import Delta, End, Usage
from inference.settlement import kept_output, settle, settle_from_log, start
from tests.factories import GenerationFactory, LanguageModelFactory
from tests.inference.doors import WORKER, accepted, claimed, end_of, publish_tokens, row

pytestmark = pytest.mark.django_db(transaction=True)


def _ledger() -> list[LedgerEntry]:
    with every_tenant("the test looks at the ledger"):
        return list(LedgerEntry.objects.all())


def test_settling_brings_outcome_and_exact_usage_into_the_ledger_once(valkey: redis.Redis) -> None:
    model = LanguageModelFactory()
    accepted(model)
    got = claimed(valkey, model)
    end = end_of(got, 1, completion_tokens=4)
    generation_id = uuid.UUID(got.task.generation)
    assert settle(generation_id, got.epoch, end, first_token_at=got.task.accepted_at)
    assert not settle(generation_id, got.epoch, end)
    settled = row(got.task.generation)
    assert (settled.state, settled.finish_reason, settled.completion_tokens) == ("completed", "stop", 4)
    assert settled.ended_at is not None
    assert settled.first_token_at is not None
    (entry,) = _ledger()
    assert (entry.prompt_tokens, entry.completion_tokens, entry.lane) == (3, 4, "normal")


def test_what_was_drafted_for_an_answer_is_settled_with_it(valkey: redis.Redis) -> None:
    model = LanguageModelFactory()
    accepted(model)
    got = claimed(valkey, model)
    usage = Usage(
        prompt_tokens=3,
        completion_tokens=9,
        cached_tokens=2,
        accepted_prediction_tokens=5,
        rejected_prediction_tokens=7,
    )
    end = msgspec.structs.replace(end_of(got, 1), usage=usage)
    assert settle(uuid.UUID(got.task.generation), got.epoch, end)
    assert row(got.task.generation).usage == usage
    (entry,) = _ledger()
    assert (entry.accepted_prediction_tokens, entry.rejected_prediction_tokens) == (5, 7)


def test_the_record_says_what_the_ledger_says(valkey: redis.Redis) -> None:
    """A prompt that was never run costs nothing, and is not told to have been."""
    model = LanguageModelFactory()
    accepted(model)
    got = claimed(valkey, model)
    end = end_of(got, 1)
    end = msgspec.structs.replace(end, usage=Usage(prompt_tokens=0, completion_tokens=0))
    assert settle(uuid.UUID(got.task.generation), got.epoch, end)
    assert row(got.task.generation).prompt_tokens == _ledger()[0].prompt_tokens == 0


def test_the_first_token_came_when_the_log_says_if_its_worker_died(valkey: redis.Redis) -> None:
    model = LanguageModelFactory()
    accepted(model)
    got = claimed(valkey, model)
    generation_id = uuid.UUID(got.task.generation)
    began_at = got.task.accepted_at + 2.5
    first = Delta(seq=1, epoch=1, tokens=[1], text="a", at=began_at)
    second = Delta(seq=2, epoch=1, tokens=[2], text="b")
    publishing.publish(
        valkey, WORKER, [(got.task.generation, got.epoch, first), (got.task.generation, got.epoch, second)]
    )
    # Its run has no row: only a worker that lives reports one.
    later = msgspec.structs.replace(end_of(got, 3, completion_tokens=2), epoch=2)
    assert settle(generation_id, 2, later)
    assert row(got.task.generation).first_token_at == datetime.fromtimestamp(began_at, UTC)


def test_of_many_who_settle_at_once_one_does(valkey: redis.Redis) -> None:
    generation = GenerationFactory(state="running", epoch=1)
    model = LanguageModelFactory()
    accepted(model)
    end = end_of(claimed(valkey, model), 1, completion_tokens=4)

    def attempt(_: int) -> bool:
        try:
            return settle(generation.id, 1, end)
        finally:
            connection.close()

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(attempt, range(8))) == 1
    assert len(_ledger()) == 1


def test_an_older_epoch_neither_starts_nor_settles(valkey: redis.Redis) -> None:
    generation = GenerationFactory()
    assert start(generation.id, 2)
    assert not start(generation.id, 2)
    assert not start(generation.id, 1)
    model = LanguageModelFactory()
    accepted(model)
    end = end_of(claimed(valkey, model), 1)
    assert not settle(generation.id, 1, end)
    assert settle(generation.id, 2, end)
    assert not start(generation.id, 3)


def test_kept_output_is_the_token_log_and_only_its_tenant_sees_it(valkey: redis.Redis) -> None:
    model = LanguageModelFactory()
    result = accepted(model, keep_output=True)
    got = claimed(valkey, model)
    publish_tokens(valkey, got, "Hel", "lo")
    end = end_of(got, 3, completion_tokens=2)
    publishing.publish(valkey, WORKER, [(got.task.generation, got.epoch, end)])
    assert settle_from_log(result.generation_id)
    with tenant_scope(uuid.UUID(got.task.tenant)):
        kept = kept_output(result.generation_id)
    assert kept is not None
    assert "".join(entry.text for entry in kept if isinstance(entry, Delta)) == "Hello"
    assert isinstance(kept[-1], End)
    with tenant_scope(uuid.uuid4()):
        assert kept_output(result.generation_id) is None


def test_a_log_without_an_end_settles_nothing(valkey: redis.Redis) -> None:
    model = LanguageModelFactory()
    result = accepted(model)
    got = claimed(valkey, model)
    publish_tokens(valkey, got, "Hel")
    assert not settle_from_log(result.generation_id)
    assert row(got.task.generation).state == "running"
