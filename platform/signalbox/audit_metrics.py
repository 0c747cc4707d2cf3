"""Whether the audit is sealed, verified, signed and kept outside, and since when: read where processes have left it."""

from __future__ import annotations

from collections.abc import Iterator

import redis
from django.db.models import Max
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from accounts.audit import anchors, sealing, triggers
from accounts.models import AuditCheckpoint, AuditHead, AuditVerification


class AuditCollector(Collector):
    """The chain's length, what waits to be sealed, the last walk, the last signature and where it was brought."""

    def collect(self) -> Iterator[Metric]:
        head = AuditHead.objects.filter(id=1).first()
        yield CounterMetricFamily(
            "signalbox_audit_events",
            "Events in the chain, since the installation's first one.",
            float(head.sequence if head else 0),
        )
        yield GaugeMetricFamily(
            "signalbox_audit_triggers_missing",
            "Triggers that protect the audit and are not in place.",
            float(len(triggers.missing())),
        )
        yield from _unsealed()
        yield from _last_verification()
        yield from _last_checkpoint()
        yield from _anchors()


def _unsealed() -> Iterator[Metric]:
    unsealed = sealing.unsealed()
    yield GaugeMetricFamily(
        "signalbox_audit_unsealed_assignments",
        "Lane assignments that wait for their batch.",
        float(unsealed.count),
    )
    if unsealed.oldest_at is not None:
        yield GaugeMetricFamily(
            "signalbox_audit_oldest_unsealed_timestamp_seconds",
            "When the oldest of them was made, in Unix time.",
            unsealed.oldest_at.timestamp(),
        )


def _last_verification() -> Iterator[Metric]:
    last = AuditVerification.objects.order_by("-started_at").first()
    if last is None:
        return
    yield GaugeMetricFamily(
        "signalbox_audit_holds",
        "Whether the chain held when it was last verified (1 or 0).",
        float(last.fault is None),
    )
    yield GaugeMetricFamily(
        "signalbox_audit_last_verification_timestamp_seconds",
        "When it was last verified, in Unix time.",
        last.finished_at.timestamp(),
    )


def _last_checkpoint() -> Iterator[Metric]:
    last = AuditCheckpoint.objects.aggregate(at=Max("at"), sequence=Max("sequence"))
    if last["at"] is None:
        return
    yield GaugeMetricFamily(
        "signalbox_audit_last_checkpoint_timestamp_seconds",
        "When the chain's head was last signed, in Unix time.",
        last["at"].timestamp(),
    )
    yield GaugeMetricFamily(
        "signalbox_audit_last_checkpoint_sequence",
        "The event that it was signed at.",
        float(last["sequence"]),
    )


def _anchors() -> Iterator[Metric]:
    waiting = GaugeMetricFamily(
        "signalbox_audit_anchor_waiting", "Checkpoints that are not there yet.", labels=["kind"]
    )
    succeeded = GaugeMetricFamily(
        "signalbox_audit_anchor_last_success_timestamp_seconds",
        "When checkpoints were last brought there, in Unix time.",
        labels=["kind"],
    )
    try:
        states = {kind: anchors.state_of(kind) for kind in anchors.kinds()}
    except redis.RedisError:
        # Said by `signalbox_store_up`.
        return
    for kind, state in states.items():
        waiting.add_metric([kind.value], float(anchors.waiting(state).count()))
        if state.succeeded_at is not None:
            succeeded.add_metric([kind.value], state.succeeded_at)
    yield waiting
    yield succeeded
