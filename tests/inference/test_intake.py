from __future__ import annotations

from pathlib import Path

import pytest
import redis

from accounts.models import LaneAssignment
from accounts.tenancy import every_tenant
from inference.dispatch.queue import DispatchQueue, dispatch_queue
from inference.intake import RefusalCode, Refused, accept
from inference.messages import task_decoder
from inference.models import Generation, GenerationRequest
from inference.recovery import sweep
from signalbox.configuration import configuration
from tests.factories import EntitlementFactory, LanguageModelFactory, TenantFactory
from tests.inference.doors import accepted, claimed, entitled_principal, principal_of, row, submission

pytestmark = pytest.mark.django_db(transaction=True)


def _nothing_is_left(client: redis.Redis, model: str) -> bool:
    with every_tenant("the test looks for leftovers"):
        rows = (
            Generation.objects.exists()
            or GenerationRequest.objects.exists()
            or LaneAssignment.objects.exists()
        )
    return not rows and client.keys(f"*{model}*") == []


def test_an_accepted_generation_is_in_the_database_and_in_the_queue_with_its_lane_assignment(
    valkey: redis.Redis,
) -> None:
    model = LanguageModelFactory()
    result = accepted(model)
    generation = row(result.task.generation)
    with every_tenant("the test looks at what it made"):
        assignment = LaneAssignment.objects.get(generation_id=generation.id)
        request = GenerationRequest.objects.get(generation=generation)
    assert (generation.state, generation.lane_id, generation.prompt_tokens) == ("queued", "normal", 3)
    assert (assignment.given_lane, assignment.reason) == ("normal", "tenant_default")
    assert task_decoder.decode(request.task) == result.task
    assert dispatch_queue().position(result.task.generation) == 1


def test_a_worker_learns_only_from_the_answers_of_tenants_that_let_it(valkey: redis.Redis) -> None:
    model = LanguageModelFactory()
    willing = TenantFactory(suffix_pool=True)
    EntitlementFactory(tenant=willing)
    assert accepted(model, by=principal_of(willing)).task.suffix_pool
    assert not accepted(model).task.suffix_pool


def test_without_max_tokens_the_models_default_is_taken_and_at_most_what_the_context_leaves(
    valkey: redis.Redis,
) -> None:
    model = LanguageModelFactory(context_length=100, default_max_tokens=60)
    assert accepted(model, max_tokens=None).task.max_tokens == 60
    assert accepted(model, max_tokens=None, prompt=[1] * 70).task.max_tokens == 30


@pytest.mark.parametrize(
    ("prompt_tokens", "max_tokens", "fits"),
    [(90, 10, True), (90, 11, False), (99, None, True), (100, None, False), (101, None, False)],
)
def test_what_cannot_fit_is_refused_with_both_numbers(
    valkey: redis.Redis, prompt_tokens: int, max_tokens: int | None, fits: bool
) -> None:
    model = LanguageModelFactory(context_length=100)
    if fits:
        accepted(model, prompt=[1] * prompt_tokens, max_tokens=max_tokens)
        return
    with pytest.raises(Refused) as refusal:
        accepted(model, prompt=[1] * prompt_tokens, max_tokens=max_tokens)
    assert refusal.value.code is RefusalCode.CONTEXT_LENGTH_EXCEEDED
    assert "100" in refusal.value.message
    assert str(prompt_tokens) in refusal.value.message
    assert _nothing_is_left(valkey, model.name)


def test_f15_what_there_is_no_memory_for_is_refused_with_both_numbers(valkey: redis.Redis) -> None:
    model = LanguageModelFactory(context_length=100, kv_capacity_tokens=64, default_max_tokens=60)
    assert accepted(model, prompt=[1] * 10, max_tokens=None).task.max_tokens == 54
    with pytest.raises(Refused, match=r"memory for 64 tokens.*takes 10 plus 55") as refusal:
        accepted(model, prompt=[1] * 10, max_tokens=55)
    assert refusal.value.code is RefusalCode.KV_MEMORY_EXCEEDED
    with every_tenant("the test counts"):
        assert Generation.objects.count() == 1, "the one that fits"


def test_a_tenant_without_an_entitlement_is_refused_and_leaves_nothing(valkey: redis.Redis) -> None:
    model = LanguageModelFactory()
    with pytest.raises(Refused) as refusal:
        accept(principal_of(TenantFactory()), submission(model))
    assert refusal.value.code is RefusalCode.NO_ENTITLEMENT
    assert _nothing_is_left(valkey, model.name)


def test_a_fault_in_the_accept_transaction_leaves_nothing(valkey: redis.Redis) -> None:
    model = LanguageModelFactory()

    def fail(generation: Generation) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        accept(entitled_principal(), submission(model), within=fail)
    assert _nothing_is_left(valkey, model.name)


def test_a_full_queue_refuses_exactly_the_excess(
    valkey: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, principal = LanguageModelFactory(), entitled_principal()
    limited = configuration().model_copy(update={"queue_limit": 4})
    monkeypatch.setattr("inference.intake.configuration", lambda: limited)
    outcomes = []
    for _ in range(10):
        try:
            accept(principal, submission(model))
            outcomes.append("accepted")
        except Refused as refusal:
            outcomes.append(f"{refusal.code}, wait {refusal.retry_after_s:.0f} s")
    assert outcomes == ["accepted"] * 4 + ["queue_full, wait 2 s"] * 6
    with every_tenant("the test counts"):
        assert Generation.objects.count() == LaneAssignment.objects.count() == 4


def test_from_80_percent_of_valkeys_memory_nothing_new_is_admitted(valkey: redis.Redis) -> None:
    model = LanguageModelFactory()
    used = int(valkey.info("memory")["used_memory"])
    before = valkey.config_get("maxmemory")["maxmemory"]
    valkey.config_set("maxmemory", used + used // 10)
    try:
        with pytest.raises(Refused) as refusal:
            accepted(model)
    finally:
        valkey.config_set("maxmemory", before)
    assert refusal.value.code is RefusalCode.OVERLOADED
    assert _nothing_is_left(valkey, model.name)


def test_a_generation_that_was_committed_but_not_enqueued_is_swept_in(valkey: redis.Redis) -> None:
    model = LanguageModelFactory()
    result = accepted(model)
    valkey.flushall()  # as if the web had died between commit and enqueue
    assert sweep() == 1
    assert sweep() == 0
    assert claimed(valkey, model).task == result.task


def test_an_unreachable_valkey_refuses_before_anything_is_written(
    valkey: redis.Redis, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = LanguageModelFactory()
    nowhere = DispatchQueue(redis.Redis(unix_socket_path=str(tmp_path / "nobody.sock")))
    monkeypatch.setattr("inference.intake.dispatch_queue", lambda: nowhere)
    with pytest.raises(Refused) as refusal:
        accepted(model)
    assert refusal.value.code is RefusalCode.QUEUE_UNAVAILABLE
    assert _nothing_is_left(valkey, model.name)
