"""A chain of so many lane assignments, and a walk along it: what ``benchmarks.audit_verify`` measures.

Runs with an installation's environment, and answers one JSON line. ``build N``: makes them in bulk, as the door to the
queue writes them, and has them sealed by the product's own function. ``verify``: walks the chain from scratch, then
incrementally; seconds of each, and MiB of memory before and at most.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
import uuid
from datetime import timedelta
from typing import Any

#: Assignments that are written at once: a batch.
_CHUNK = 4096
_MIB = 1024


def build(count: int) -> dict[str, Any]:
    from django.utils import timezone

    from accounts.audit import sealing
    from accounts.models import LaneAssignment
    from accounts.tenancy import every_tenant

    tenant, key, entitlement = uuid.uuid4(), uuid.uuid4(), uuid.uuid4()

    def assignment() -> LaneAssignment:
        return LaneAssignment(
            generation_id=uuid.uuid4(),
            tenant_id=tenant,
            tenant_name="Benchmark",
            api_key_id=key,
            api_key_prefix="sk-sb-benchmark",
            requested_lane="high",
            given_lane="normal",
            reason="stepped_down",
            entitlement_id=entitlement,
            step_downs=[{"lane": "high", "entitlement_id": str(entitlement), "limit": "tokens_per_day"}],
            budget_position=[
                {"name": name, "limit": 10**9, "used": 64}
                for name in ("tokens_per_day", "tokens_per_month", "concurrent_generations")
            ],
            policy_version=1,
        )

    started = time.perf_counter()
    sealed = 0
    while sealed < count:
        chunk = [assignment() for _ in range(min(_CHUNK, count - sealed))]
        with every_tenant("a benchmark writes for a tenant of its own"):
            LaneAssignment.objects.bulk_create(chunk)
        sealed += sealing.seal(timezone.now(), late=timedelta(seconds=1))
    return {"seconds": time.perf_counter() - started, "assignments": sealed}


def verify() -> dict[str, Any]:
    from accounts.audit import verification

    # What is loaded for it anyway is not what it needs.
    verification.last_good()
    before = _memory_mib()
    started = time.perf_counter()
    stored = verification.verify_and_store(from_scratch=True, checkpoints=[])
    from_scratch = time.perf_counter() - started
    most = _memory_mib()
    started = time.perf_counter()
    verification.verify_and_store(from_scratch=False, checkpoints=[])
    return {
        "fault": stored.fault,
        "events": stored.events,
        "assignments": stored.assignments,
        "seconds": from_scratch,
        "incremental_seconds": time.perf_counter() - started,
        "memory_before_mib": before,
        "memory_mib": most,
    }


def _memory_mib() -> float:
    """The most that this process had so far."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / _MIB / (_MIB if sys.platform == "darwin" else 1)


def main(verb: str, *arguments: str) -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "signalbox.settings")
    import django

    django.setup()
    print(json.dumps(build(int(arguments[0])) if verb == "build" else verify()), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
