"""`/metrics`, for Prometheus: this web process's own numbers, the workers' and the queue's.

It names tenants' load, so it always needs its own token: `Authorization: Bearer` with what is in
``secrets/metrics_token``.
"""

from __future__ import annotations

import hmac
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import redis
import structlog
from asgiref.sync import sync_to_async
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from accounts.models import Lane
from inference import language_models, ledger_check
from inference.dispatch.heartbeats import heartbeats
from inference.dispatch.queue import DispatchQueue
from inference.messages import Heartbeat
from signalbox import secret_files, store
from signalbox.audit_metrics import AuditCollector
from signalbox.notification_metrics import NotificationCollector
from signalbox.web_metrics import registry

_log = structlog.get_logger(__name__)
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_HISTOGRAM_SUFFIX: Final = re.compile(r"_(bucket|sum|count)$")


#: What a heartbeat itself says, apart from its counters.
_GAUGES: Final[tuple[tuple[str, str, Callable[[Heartbeat, float], float]], ...]] = (
    ("ready", "Whether the worker takes generations.", lambda beat, now: beat.ready and not beat.draining),
    (
        "decoding",
        "Generations that are producing tokens, in the batch or at the speculative slot.",
        lambda beat, now: beat.decoding,
    ),
    ("prefilling", "Generations whose prompt is being run.", lambda beat, now: beat.prefilling),
    ("slots", "Generations that the worker runs at once.", lambda beat, now: beat.slots),
    (
        "idle_seconds",
        "Since its last tick or decision.",
        lambda beat, now: max(0.0, now - beat.progressed_at),
    ),
)


class WorkerCollector(Collector):
    """The workers' numbers, as they came in their last heartbeats. ``lanes``: their names by rank."""

    def __init__(self, beats: list[Heartbeat], now: float, lanes: Mapping[int, str]) -> None:
        self._beats = beats
        self._now = now
        self._lanes = lanes

    def collect(self) -> Iterator[Metric]:
        info = GaugeMetricFamily(
            "signalbox_worker_info",
            "One for each living worker.",
            labels=["worker", "model", "host", "device", "blas"],
        )
        for beat in self._beats:
            info.add_metric([beat.worker, beat.model, beat.hostname, beat.device, beat.blas], 1)
        yield info
        for name, description, value in _GAUGES:
            gauge = GaugeMetricFamily(f"signalbox_worker_{name}", description, labels=["worker", "model"])
            for beat in self._beats:
                gauge.add_metric([beat.worker, beat.model], value(beat, self._now))
            yield gauge
        yield from self._counters()

    def _counters(self) -> Iterator[Metric]:
        names = {series.partition("{")[0] for beat in self._beats for series in beat.counters}
        histograms = {_HISTOGRAM_SUFFIX.sub("", name) for name in names if name.endswith("_bucket")}
        families: dict[str, Metric] = {}
        for beat in self._beats:
            for series, number in beat.counters.items():
                name, _, labels = series.partition("{")
                family = _HISTOGRAM_SUFFIX.sub("", name)
                family = family if family in histograms else name
                if family not in families:
                    families[family] = _family(family, histogram=family in histograms)
                families[family].add_sample(
                    f"signalbox_worker_{name}",
                    {**self._named(_labels(labels)), "worker": beat.worker, "model": beat.model},
                    number,
                )
        yield from families.values()

    def _named(self, labels: dict[str, str]) -> dict[str, str]:
        """With the lane's name, where a worker knows the lane by its rank only."""
        rank = labels.pop("lane_rank", None)
        return labels if rank is None else {**labels, "lane": self._lanes.get(int(rank), rank)}


def _family(name: str, *, histogram: bool) -> Metric:
    kind = "histogram" if histogram else "counter" if name.endswith("_total") else "gauge"
    return Metric(f"signalbox_worker_{name.removesuffix('_total')}", "Reported by the workers.", kind)


def _labels(text: str) -> dict[str, str]:
    unescape = {r"\\": "\\", r"\"": '"', r"\n": "\n"}
    return {
        name: re.sub(r"\\.", lambda match: unescape.get(match[0], match[0]), value)
        for name, value in _LABEL.findall(text)
    }


class QueueCollector(Collector):
    """How many wait in each lane of each model, and what has happened to the queues."""

    def __init__(self, queue: DispatchQueue, models: list[str], lanes: dict[int, str]) -> None:
        self._queue = queue
        self._models = models
        self._lanes = lanes

    def collect(self) -> Iterator[Metric]:
        depth = GaugeMetricFamily("signalbox_queue_depth", "Generations that wait.", labels=["model", "lane"])
        events: dict[str, CounterMetricFamily] = {}
        withdrawals = CounterMetricFamily(
            "signalbox_queue_withdrawals",
            "Generations that were ended while no worker had them, since the store was empty.",
            labels=["model", "lane", "reason"],
        )
        for model in self._models:
            depths = self._queue.depths(model)
            for rank, lane in self._lanes.items():
                depth.add_metric([model, lane], depths.get(rank, 0))
            for event, count in self._queue.counters(model).items():
                family = events.setdefault(
                    event,
                    CounterMetricFamily(
                        f"signalbox_queue_{event}",
                        "Since the store was empty; see docs/dispatch.md.",
                        labels=["model"],
                    ),
                )
                family.add_metric([model], count)
            for (rank, reason), count in self._queue.withdrawals(model).items():
                withdrawals.add_metric([model, self._lanes.get(rank, str(rank)), reason], count)
        yield depth
        yield from events.values()
        yield withdrawals
        pressure = GaugeMetricFamily(
            "signalbox_store_memory_used_ratio", "Of the store's memory limit; 0 without one."
        )
        pressure.add_metric([], self._queue.memory_pressure())
        yield pressure


class StoreCollector(Collector):
    """What lies in the store. When that is gone, the process's own numbers are still worth having."""

    def collect(self) -> Iterator[Metric]:
        lanes: dict[int, str] = dict(Lane.objects.values_list("rank", "name"))
        client = store.shared_client()
        families: list[Metric] = []
        try:
            beats = heartbeats(client)
            models = [model.name for model in language_models.in_service(beats)]
            families += WorkerCollector(beats, time.time(), lanes).collect()
            families += QueueCollector(DispatchQueue(client), models, lanes).collect()
            families += _last_ledger_check()
        except redis.RedisError as error:
            _log.warning("metrics_without_store", error=str(error))
            families.clear()
        yield GaugeMetricFamily("signalbox_store_up", "Whether the store answered.", float(bool(families)))
        yield from families


def _last_ledger_check() -> Iterator[Metric]:
    """What the last check of the books left; nothing, where there was none for days."""
    last = ledger_check.last_check()
    if last is None:
        return
    findings = GaugeMetricFamily(
        "signalbox_ledger_findings",
        "What the last check of the books found and did not repair; see docs/ledger.md.",
        labels=["code"],
    )
    for code, count in last.findings.items():
        findings.add_metric([code], count)
    yield findings
    yield GaugeMetricFamily(
        "signalbox_ledger_last_check_timestamp_seconds",
        "When the books were last checked, in Unix time.",
        last.at,
    )


def _render() -> bytes:
    shared = CollectorRegistry()
    shared.register(StoreCollector())
    shared.register(NotificationCollector())
    shared.register(AuditCollector())
    return generate_latest(registry) + generate_latest(shared)


@require_safe
async def metrics(request: HttpRequest) -> HttpResponse:
    """Every series in Prometheus's text format; 401 without the token."""
    expected = f"Bearer {secret_files.read_or_create('metrics_token')}"
    given = request.headers.get("Authorization", "")
    if not hmac.compare_digest(given.encode(), expected.encode()):
        answer = HttpResponse("The metrics need their own token.\n", status=401, content_type="text/plain")
        answer["WWW-Authenticate"] = "Bearer"
        return answer
    return HttpResponse(await sync_to_async(_render)(), content_type=CONTENT_TYPE_LATEST)
