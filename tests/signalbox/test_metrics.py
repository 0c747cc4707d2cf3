from __future__ import annotations

import re
from pathlib import Path

import pytest
import redis
from django.db import transaction
from django.test import AsyncClient, Client
from django.utils import timezone
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.parser import text_string_to_metric_families

from accounts import audit, tasks
from accounts.tenancy import every_tenant
from inference import ledger_check
from inference.dispatch.heartbeats import beat
from inference.dispatch.queue import DispatchQueue
from inference.messages import CancelReason
from inference.models import Generation
from signalbox import secret_files, store, web_metrics
from signalbox.audit_metrics import AuditCollector
from signalbox.configuration import ROOT
from signalbox.metrics import StoreCollector, WorkerCollector
from signalbox.notification_metrics import NotificationCollector
from signalbox.web_metrics import count_request, registry
from tests.accounts.audit.own_state import settle
from tests.factories import ACTOR, GenerationFactory, LanguageModelFactory
from tests.heartbeats import make_heartbeat
from tests.inference.dispatch.conftest import make_task
from tests.inference.doors import accepted
from tests.inference.worker.test_metrics import explained

__all__ = ["explained"]

HEARTBEAT = make_heartbeat(
    1_000.0,
    worker="w1",
    model="org/model",
    progressed_at=998.0,
    decoding=3,
    prefilling=1,
    counters={
        'claims_total{kind="fresh",lane="high"}': 5,
        'deferrals_total{lane_rank="2"}': 3,
        'deferrals_total{lane_rank="7"}': 1,
        'odd_total{name="a \\"quoted\\" \\\\ thing\\n"}': 1,
        "prefill_debt_tokens": 12,
        'inter_token_seconds_bucket{lane="high",le="0.1"}': 2,
        'inter_token_seconds_bucket{lane="high",le="+Inf"}': 4,
        'inter_token_seconds_sum{lane="high"}': 1.5,
        'inter_token_seconds_count{lane="high"}': 4,
    },
)


def series(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_workers_numbers_come_out_with_its_name_and_their_kinds() -> None:
    collected = CollectorRegistry()
    collected.register(WorkerCollector([HEARTBEAT], now=1_000.0, lanes={2: "low"}))
    text = generate_latest(collected).decode()
    found = series(text)
    who = {("worker", "w1"), ("model", "org/model")}
    assert found["signalbox_worker_claims_total", frozenset({*who, ("kind", "fresh"), ("lane", "high")})] == 5
    assert found["signalbox_worker_odd_total", frozenset({*who, ("name", 'a "quoted" \\ thing\n')})] == 1
    assert found["signalbox_worker_deferrals_total", frozenset({*who, ("lane", "low")})] == 3
    assert found["signalbox_worker_deferrals_total", frozenset({*who, ("lane", "7")})] == 1, (
        "a lane that is gone"
    )
    assert found["signalbox_worker_prefill_debt_tokens", frozenset(who)] == 12
    assert found["signalbox_worker_idle_seconds", frozenset(who)] == 2
    assert found["signalbox_worker_decoding", frozenset(who)] == 3
    bucket = frozenset({*who, ("lane", "high"), ("le", "0.1")})
    assert found["signalbox_worker_inter_token_seconds_bucket", bucket] == 2
    assert "# TYPE signalbox_worker_inter_token_seconds histogram" in text
    assert "# TYPE signalbox_worker_claims_total counter" in text
    assert "# TYPE signalbox_worker_prefill_debt_tokens gauge" in text


def test_an_invented_method_makes_no_series_of_its_own() -> None:
    count_request("BREW", 418, 0.1)
    assert 'method="BREW"' not in generate_latest(registry).decode()


@pytest.mark.parametrize("header", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic x"}])
def test_metrics_need_their_own_token(header: dict[str, str]) -> None:
    answer = Client(headers=header).get("/metrics")
    assert answer.status_code == 401
    assert b"signalbox_" not in answer.content


@pytest.mark.django_db
def test_metrics_show_web_workers_and_queues(valkey: redis.Redis) -> None:
    LanguageModelFactory(name="org/model")
    beat(valkey, HEARTBEAT)
    token = secret_files.read_or_create("metrics_token")
    answer = Client(headers={"Authorization": f"Bearer {token}"}).get("/metrics")
    found = series(answer.content.decode())
    assert found["signalbox_store_up", frozenset()] == 1
    assert found["signalbox_queue_depth", frozenset({("model", "org/model"), ("lane", "normal")})] == 0
    assert found["signalbox_worker_slots", frozenset({("worker", "w1"), ("model", "org/model")})] == 8
    deferred = frozenset({("worker", "w1"), ("model", "org/model"), ("lane", "low")})
    assert found["signalbox_worker_deferrals_total", deferred] == 3


def site_series() -> dict[str, set[str]]:
    """The labels of all that a web process tells, but for what workers count; as the tables have the workers' own."""
    own = [one for one in vars(web_metrics).values() if isinstance(one, MetricWrapperBase)]
    families = [
        *((family.name, family.type, one._labelnames) for one in own for family in one.describe()),
        *(
            (family.name, family.type, getattr(family, "_labelnames", ()))
            for collector in (StoreCollector(), NotificationCollector(), AuditCollector())
            for family in collector.collect()
        ),
    ]
    return {
        name.removeprefix("signalbox_worker_") + "_total" * (kind == "counter"): set(labels)
        - ({"worker", "model"} if name.startswith("signalbox_worker_") else set())
        for name, kind, labels in families
    }


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("valkey")
def test_every_series_of_the_site_is_in_an_operators_table_with_its_labels(
    explained: dict[str, set[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle(monkeypatch, tmp_path)
    accepted(LanguageModelFactory())  # an assignment that is not sealed yet
    with transaction.atomic():
        audit.record(ACTOR, "thing.change", audit.ObjectRef("thing", "1"), None, None)
    assert tasks.checkpoint_audit()
    assert tasks.verify_audit()
    ledger_check.keep(ledger_check.verify(lambda finding: None))
    told = site_series()
    code = "\n".join(path.read_text() for path in (ROOT / "platform" / "signalbox").glob("*metrics.py"))
    named = {name.removesuffix("_total") for name in re.findall(r'"(signalbox_(?!worker_)\w+)"', code)}
    assert named <= {name.removesuffix("_total") for name in told}, "one that this test does not make"
    assert {name: explained.get(name) for name in told} == told


@pytest.mark.django_db
def test_a_retired_model_s_queue_is_told_until_it_is_empty_and_its_workers_are_gone(
    valkey: redis.Redis,
) -> None:
    retired = LanguageModelFactory(name="org/model", retired_at=timezone.now())
    depth = ("signalbox_queue_depth", frozenset({("model", "org/model"), ("lane", "normal")}))

    def found() -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        token = secret_files.read_or_create("metrics_token")
        answer = Client(headers={"Authorization": f"Bearer {token}"}).get("/metrics")
        return series(answer.content.decode())

    assert depth not in found()
    waits = GenerationFactory(model=retired)
    DispatchQueue(valkey).enqueue(make_task(model="org/model"))
    assert found()[depth] == 1
    with every_tenant("the test plays its end"):
        Generation.objects.filter(id=waits.id).update(state="completed", ended_at=timezone.now())
    assert depth not in found()
    beat(valkey, HEARTBEAT)
    assert found()[depth] == 1


@pytest.mark.django_db
def test_metrics_tell_who_was_ended_while_it_waited(valkey: redis.Redis) -> None:
    LanguageModelFactory(name="org/model")
    queue, task = DispatchQueue(valkey), make_task(model="org/model", rank=2)
    queue.enqueue(task)
    queue.withdraw(task.generation, CancelReason.CLIENT_DISCONNECTED)
    token = secret_files.read_or_create("metrics_token")
    found = series(Client(headers={"Authorization": f"Bearer {token}"}).get("/metrics").content.decode())
    whose = {("model", "org/model"), ("lane", "low"), ("reason", "client_disconnected")}
    assert found["signalbox_queue_withdrawals_total", frozenset(whose)] == 1


@pytest.mark.django_db
def test_metrics_of_the_process_come_although_the_store_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = redis.Redis(unix_socket_path="/nonexistent/valkey.sock")
    monkeypatch.setattr(store, "shared_client", lambda: gone)
    token = secret_files.read_or_create("metrics_token")
    answer = Client(headers={"Authorization": f"Bearer {token}"}).get("/metrics")
    found = series(answer.content.decode())
    assert answer.status_code == 200
    assert found["signalbox_store_up", frozenset()] == 0
    assert any(name.startswith("process_") for name, _ in found)


@pytest.mark.django_db(transaction=True)
async def test_readiness_says_what_is_wrong(valkey: redis.Redis) -> None:
    answer = await AsyncClient().get("/health/ready")
    assert answer.status_code == 503
    assert answer.json() == {"status": "not_ready", "reason": "nothing_served", "models": {}}
