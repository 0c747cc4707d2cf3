"""Workers that fell silent without having been stopped: an alarm, until others have taken their places."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable
from datetime import datetime, timedelta

from inference.models import Worker

#: A worker that was seen this lately and says nothing now is missed; what fell silent before is history.
_MISSED_FOR = timedelta(hours=1)


def missing(heard: Container[str], at: datetime) -> list[Worker]:
    """The workers that are missed now. ``heard``: the ids, in hex, of those whose heartbeats live."""
    lately = Worker.objects.filter(last_seen_at__gte=at - _MISSED_FOR).select_related("model")
    return unreplaced(lately, heard)


def unreplaced(workers: Iterable[Worker], heard: Container[str]) -> list[Worker]:
    """Those of ``workers`` that fell silent and whose place is empty, in the order in which they were last seen.

    Whoever starts to serve the same model on the same host after a worker was last seen takes its place, one each: of
    two that fell silent and one that was started, one is missed. Who took a place may have been stopped since, or have
    fallen silent: then it is missed itself. ``workers`` are all that were there, the living and the stopped as well.
    """
    at_place: defaultdict[tuple[object, str], list[Worker]] = defaultdict(list)
    for worker in workers:
        at_place[worker.model_id, worker.hostname].append(worker)
    missed: list[Worker] = []
    for there in at_place.values():
        # Each start is looked at once: what is too early for one is too early for all that were seen later.
        starts = iter(sorted(worker.started_at for worker in there))
        silent = [worker for worker in there if worker.stopped_at is None and worker.id.hex not in heard]
        missed += [
            worker
            for worker in sorted(silent, key=_last_seen)
            if not any(started > worker.last_seen_at for started in starts)
        ]
    return sorted(missed, key=_last_seen)


def _last_seen(worker: Worker) -> datetime:
    return worker.last_seen_at
