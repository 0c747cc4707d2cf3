from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
import time_machine
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from redis.backoff import NoBackoff
from redis.retry import Retry

from accounts import ledger
from accounts.admission import admit, plan
from accounts.audit.reading import disclose
from accounts.lane_resolution import Wish
from accounts.models import AuditEvent, Lane, LedgerEntry
from accounts.principal import Principal
from accounts.tenancy import every_tenant
from inference.admin.now import WorkerState, now, state_of
from inference.dispatch import heartbeats
from inference.messages import Heartbeat
from inference.models import Generation, LanguageModel, Worker
from signalbox import store
from tests.factories import (
    EntitlementFactory,
    GenerationFactory,
    LanguageModelFactory,
    TenantFactory,
    WorkerFactory,
)
from tests.heartbeats import make_heartbeat

#: A Valkey that is away, not asked for seconds.
NOWHERE = redis.Redis(unix_socket_path="/nowhere/valkey.sock", retry=Retry(NoBackoff(), 0))
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def _url(name: str, *arguments: object) -> str:
    return reverse(f"admin:inference_{name}", args=arguments)


def _beat(worker: Worker, at: datetime, **changes: Any) -> Heartbeat:
    fields: dict[str, Any] = {
        "worker": worker.id.hex,
        "model": worker.model.name,
        "hostname": worker.hostname,
        "pid": worker.pid,
        "decoding": 3,
        "prefilling": 1,
        "counters": {'generated_tokens_total{lane="high"}': 40.0, 'generated_tokens_total{lane="low"}': 2.0},
    }
    return make_heartbeat(at.timestamp(), **{**fields, **changes})


def _failed(**changes: Any) -> Generation:
    failed: Generation = GenerationFactory(
        state="failed",
        ended_at=timezone.now(),
        failure_code="numerical_fault",
        failure_message="It broke.",
        **changes,
    )
    return failed


def _settled(generation: Generation, **counts: int) -> LedgerEntry:
    """A ledger entry of the generation's tenant."""
    tokens = {
        "prompt_tokens": 0,
        "cached_tokens": 0,
        "completion_tokens": 0,
        "accepted_prediction_tokens": 0,
        "rejected_prediction_tokens": 0,
    }
    return ledger.settle(
        generation_id=uuid.uuid4(),
        tenant_id=generation.tenant_id,
        api_key_id=None,
        user_id=None,
        model="m",
        lane="low",
        at=timezone.now(),
        **{**tokens, **counts},
    )


def test_the_landing_page_shows_what_runs_waits_failed_and_was_used(
    as_operator: Client, valkey: redis.Redis
) -> None:
    worker = WorkerFactory(hostname="mac-1")
    heartbeats.beat(valkey, _beat(worker, timezone.now()))
    silent = WorkerFactory(hostname="mac-2")
    before = worker.started_at - timedelta(minutes=9)  # killed, and replaced by the one that lives
    WorkerFactory(model=worker.model, hostname="mac-1", started_at=before, last_seen_at=before)
    running = GenerationFactory(state="running", tenant=TenantFactory(name="Rail"))
    GenerationFactory(lane=Lane.objects.get(name="low"))
    _failed()
    _settled(running, prompt_tokens=1200, completion_tokens=34)
    page = as_operator.get(reverse("admin:index"))
    shown = page.context["now"]
    assert [(lane.name, lane.queued, lane.running) for lane in shown.lanes] == [
        ("high", 0, 0),
        ("normal", 0, 1),
        ("low", 1, 0),
    ]
    assert [(one.taken, one.free, one.generated_tokens) for one in shown.workers] == [(4, 4, 42)]
    assert shown.missing == [silent]
    text = page.content.decode()
    for word in ("mac-1", "mac-2", "Rail", "It broke.", "1,234", "4 of 8 slots taken"):
        assert word in text


def test_the_landing_page_is_light_and_its_cost_does_not_grow(
    as_operator: Client, valkey: redis.Redis, django_assert_num_queries: Any
) -> None:
    as_operator.get(reverse("admin:index"))
    for _ in range(2):
        # The user; counts; models; lanes; running; failures; the hour; silent workers.
        with django_assert_num_queries(9):
            as_operator.get(reverse("admin:index"), headers={"HX-Request": "true"})
        for _ in range(10):
            GenerationFactory(state="running")
            _failed()
            heartbeats.beat(valkey, _beat(WorkerFactory(), timezone.now()))


def test_the_page_asks_for_its_changing_part_alone(as_operator: Client) -> None:
    page = as_operator.get(reverse("admin:index"), headers={"HX-Request": "true"}).content.decode()
    assert "Failed in the last 24 hours" in page
    assert "<html" not in page


def test_the_landing_page_says_when_valkey_cannot_be_reached(
    as_operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "shared_client", lambda: NOWHERE)
    page = as_operator.get(reverse("admin:index"))
    assert page.context["now"].workers is None
    assert "Valkey cannot be reached" in page.content.decode()


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, WorkerState.SERVING),
        ({"decoding": 0, "prefilling": 0}, WorkerState.IDLE),
        ({"ready": False}, WorkerState.STARTING),
        ({"draining": True}, WorkerState.DRAINING),
        ({"progressed_at": NOON.timestamp() - 60}, WorkerState.STUCK),
    ],
)
def test_a_worker_s_state_follows_from_its_heartbeat(changes: dict[str, Any], state: WorkerState) -> None:
    worker = Worker(hostname="h", pid=1, model=LanguageModel(name="m"))
    assert state_of(_beat(worker, NOON, **changes), NOON.timestamp()) is state


@pytest.mark.django_db
def test_only_failures_of_the_last_day_are_shown(valkey: redis.Redis) -> None:
    with time_machine.travel(NOON - timedelta(hours=25), tick=False):
        _failed()
    with time_machine.travel(NOON, tick=False), every_tenant("test"):
        recent = _failed()
        assert now().failures == [recent]


def test_workers_are_listed_with_what_they_do_now(as_operator: Client, valkey: redis.Redis) -> None:
    heartbeats.beat(valkey, _beat(WorkerFactory(), timezone.now()))
    WorkerFactory(stopped_at=timezone.now())
    WorkerFactory()
    WorkerFactory(last_seen_at=timezone.now() - timedelta(hours=2))
    page = as_operator.get(_url("worker_changelist")).content.decode()
    for word in ("serving", "4 of 8", "stopped", "silent", "ended"):
        assert word in page


def test_a_worker_that_nobody_could_listen_to_is_not_called_silent(
    as_operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = WorkerFactory()
    WorkerFactory(last_seen_at=timezone.now() - timedelta(hours=2))
    monkeypatch.setattr(store, "shared_client", lambda: NOWHERE)
    listed = as_operator.get(_url("worker_changelist")).content.decode()
    for word in ("Valkey cannot be reached, so nobody knows what the workers do.", "unknown", "ended"):
        assert word in listed
    assert "silent" not in listed
    shown = as_operator.get(_url("worker_change", worker.pk)).content.decode()
    assert "Not known: Valkey cannot be reached." in shown


def test_a_generation_s_page_tells_its_lane_and_why(as_operator: Client) -> None:
    tenant = TenantFactory()
    EntitlementFactory(tenant=tenant, lane=Lane.objects.get(name="low"))
    generation = GenerationFactory(tenant=tenant, lane=Lane.objects.get(name="low"))
    principal = Principal(tenant.id, tenant.name, frozenset(), "key", api_key_id=uuid.uuid4())
    planned = plan(principal, Wish(requested="priority", tokens=10, prompt_tokens=5), timezone.now())
    admit(principal, planned, planned.choose(), generation.id)
    page = as_operator.get(_url("generation_change", generation.pk)).content.decode()
    assert "priority" in page
    assert "the tenant is not entitled to the lane asked for" in page
    assert "not entitled to more" in as_operator.get(_url("generation_changelist")).content.decode()


@pytest.mark.parametrize("prefix", ["gen_", "chatcmpl-", "cmpl-", ""])
def test_a_generation_is_found_by_its_id_as_clients_know_it(as_operator: Client, prefix: str) -> None:
    wanted = GenerationFactory()
    GenerationFactory()
    page = as_operator.get(_url("generation_changelist"), {"q": prefix + wanted.id.hex})
    assert page.context["cl"].result_list == [wanted]


def test_a_generation_is_found_by_its_request_id(as_operator: Client) -> None:
    request_id = f"req_{uuid.uuid4().hex}"
    wanted = GenerationFactory(request_id=request_id)
    GenerationFactory()
    page = as_operator.get(_url("generation_changelist"), {"q": request_id})
    assert page.context["cl"].result_list == [wanted]


def test_a_live_generation_is_cancelled_after_a_question_and_the_audit_says_by_whom(
    as_operator: Client,
) -> None:
    generation = GenerationFactory()
    as_operator.get(_url("generation_cancel", generation.pk))
    with every_tenant("test"):
        assert Generation.objects.get().cancel_requested_at is None
    as_operator.post(_url("generation_cancel", generation.pk))
    with every_tenant("test"):
        generation.refresh_from_db()
    assert (generation.state, generation.cancel_reason) == ("cancelled", "operator_requested")
    event = AuditEvent.objects.get()
    assert (event.action, disclose(event).actor_name) == ("generation.cancel", "operator")
    page = as_operator.get(_url("generation_change", generation.pk)).content.decode()
    assert _url("generation_cancel", generation.pk) not in page


def test_generations_cost_as_much_for_many_as_for_few(
    as_operator: Client, django_assert_max_num_queries: Any
) -> None:
    for _ in range(3):
        GenerationFactory()
    with django_assert_max_num_queries(10) as few:
        as_operator.get(_url("generation_changelist"))
    for _ in range(20):
        GenerationFactory()
    with django_assert_max_num_queries(len(few)):
        as_operator.get(_url("generation_changelist"))


def test_a_model_is_retired_after_a_question(as_operator: Client) -> None:
    model = LanguageModelFactory()
    as_operator.get(_url("languagemodel_retire", model.pk))
    as_operator.post(_url("languagemodel_retire", model.pk))
    model.refresh_from_db()
    assert model.retired_at is not None
    assert AuditEvent.objects.get().action == "language_model.retire"


def test_an_answer_that_is_being_written_is_not_counted_as_nothing(as_operator: Client) -> None:
    running = GenerationFactory(state="running", prompt_tokens=35)
    assert "35 + –" in as_operator.get(_url("generation_changelist")).content.decode()
    page = as_operator.get(_url("generation_change", running.pk)).content.decode()
    assert "Stop generation" in page


def test_a_generation_and_its_ledger_entry_tell_what_was_drafted(as_operator: Client) -> None:
    drafted = GenerationFactory(accepted_prediction_tokens=30, rejected_prediction_tokens=10)
    page = as_operator.get(_url("generation_change", drafted.pk)).content.decode()
    assert "40, of which 30 (75%) were kept and are part of the answer" in page
    entry = _settled(drafted, accepted_prediction_tokens=1730, rejected_prediction_tokens=1210)
    page = as_operator.get(reverse("admin:accounts_ledgerentry_change", args=(entry.pk,))).content.decode()
    assert "1,730" in page
    assert "1,210" in page


def test_a_generation_that_was_claimed_again_says_which_claim_its_wait_ended_with(
    as_operator: Client,
) -> None:
    def shown(epoch: int) -> str:
        made = GenerationFactory(state="running", epoch=epoch)
        with every_tenant("test"):
            Generation.objects.filter(id=made.id).update(claimed_at=made.created_at + timedelta(seconds=7))
        return as_operator.get(_url("generation_change", made.pk)).content.decode()

    assert "7.0 s, until its last claim" in shown(2)
    first = shown(1)
    assert "7.0 s" in first
    assert "until its last claim" not in first


def test_a_generation_says_in_words_where_it_came_in(as_operator: Client) -> None:
    wanted = GenerationFactory(route="ws.chat")
    GenerationFactory(route="completions")
    page = as_operator.get(_url("generation_changelist"), {"route": "ws.chat"})
    assert page.context["cl"].result_list == [wanted]
    assert "the chat page" in page.content.decode()
    assert "the chat page" in as_operator.get(_url("generation_change", wanted.pk)).content.decode()


def test_the_models_page_says_how_one_is_added_and_sizes_as_files_are_told(as_operator: Client) -> None:
    LanguageModelFactory(size_bytes=541_600_000)
    page = as_operator.get(_url("languagemodel_changelist")).content.decode()
    assert "<title> Models | Signalbox</title>" in page
    assert "manage.py model add" in page
    assert "541.6\xa0MB" in page


def test_the_landing_page_says_in_plain_words_what_a_worker_has_room_for(
    as_operator: Client, valkey: redis.Redis
) -> None:
    heartbeats.beat(valkey, _beat(WorkerFactory(), timezone.now()))
    busy = as_operator.get(reverse("admin:index")).content.decode()
    assert "3 writing, 1 reading their prompt, room for 4 more" in busy
    heartbeats.beat(valkey, _beat(WorkerFactory(), timezone.now(), decoding=0, prefilling=0))
    assert "Nothing in its slots, room for 8" in as_operator.get(reverse("admin:index")).content.decode()
