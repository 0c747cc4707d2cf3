"""What a model's scheduler does just now, worker by worker: the data of the admin's scheduler page.

A few queries, and one look into Valkey for each model, whatever the load. All that is drawn is said in words, too.
"""

from __future__ import annotations

import math
import statistics
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import redis
import structlog
from django.utils import timezone

from accounts.formatting import counted, lasted, memory_size, number
from accounts.models import Lane, Tenant
from inference.admin.now import WorkerState, living, state_of
from inference.admin.scheduler_form import slow_down
from inference.admin.scheduler_slot import SlotNow, pending_slice, slot_now, tenants_of
from inference.dispatch.queue import DispatchQueue, WaitingLane
from inference.messages import DecodingRow, Heartbeat, ParkedRow, SchedulerSnapshot
from inference.models import Generation, LanguageModel
from inference.scheduling.tick import is_producing
from signalbox import store

_log = structlog.get_logger(__name__)

#: The strip of ticks, in the units of its drawing: each tick's place, the bar in it, and how high bars get.
_PLACE, _BAR, STRIP_HEIGHT = 6, 5, 44
_LEAST_BAR: Final = 3.0
STRIP_TICKS: Final = 120
_ACTIONS: Final = {"p": "prefill", "d": "decode", "s": "speculate", "i": "idle"}


@dataclass(frozen=True, slots=True)
class LaneNow:
    """One lane of a model's queue. ``waited``: how long the first of those who wait has waited."""

    name: str
    depth: int
    waited: str
    skips: int
    floor: int

    @property
    def goes_first(self) -> bool:
        return self.depth > 0 and self.skips >= self.floor


@dataclass(frozen=True, slots=True)
class RowNow:
    """One sequence: ``done`` of ``total`` tokens, and for how long."""

    generation: uuid.UUID
    tenant: str
    lane: str
    done: int
    total: int
    lasted: str


@dataclass(frozen=True, slots=True)
class Bar:
    """One tick of the strip."""

    action: str
    x: int
    y: float
    width: int
    height: float
    title: str


@dataclass(frozen=True, slots=True)
class Strip:
    """What the last ticks did: the longer the tick, the higher its bar."""

    bars: list[Bar]
    words: str
    width: int = STRIP_TICKS * _PLACE
    height: int = STRIP_HEIGHT


@dataclass(frozen=True, slots=True)
class Share:
    """A part of the KV budget, as a segment of its bar: percent, and what it is."""

    kind: str
    x: float
    width: float
    words: str


@dataclass(frozen=True, slots=True)
class Debt:
    """What prompts owe to streams, of what a full chunk would make them owe; and what that means."""

    tokens: int
    most: int
    headline: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Terms:
    """What the tick is decided by, with what was measured, ready to be read."""

    chunk: str
    chunk_took: str
    interval: str
    slow_down: str
    decode_took: str
    decode_rate: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerNow:
    """One worker; what comes from its snapshot is None or empty where it sends none."""

    heartbeat: Heartbeat
    state: WorkerState
    heard: str
    rows: list[RowNow]
    parked: list[RowNow]
    strip: Strip | None = None
    debt: Debt | None = None
    terms: Terms | None = None
    slot: SlotNow | None = None
    memory: list[Share]
    memory_words: str
    more_rows: int
    more_parked: int
    deferrals: int
    preemptions: int
    #: What is said where no rows are.
    no_rows: str = "Nothing streams."

    @property
    def taken(self) -> int:
        """Slots that are taken: rows, prompts, and who is at the speculative slot."""
        return self.heartbeat.decoding + self.heartbeat.prefilling


@dataclass(frozen=True, slots=True)
class ModelNow:
    """One model's queue and workers. ``lanes`` is None when Valkey cannot be asked."""

    model: LanguageModel
    lanes: list[LaneNow] | None
    workers: list[WorkerNow]


@dataclass(frozen=True, slots=True)
class SchedulerNow:
    """The whole page."""

    at: datetime
    reachable: bool
    models: list[ModelNow]


def scheduler_now(models: Sequence[LanguageModel]) -> SchedulerNow:
    """Look at everything once."""
    beats, at = living(), timezone.now()
    names = {model.name for model in models}
    shown = [beat for beat in beats or () if beat.model in names]
    queues = {model.name: _waiting(model.name) for model in models} if beats is not None else {}
    lanes = dict(Lane.objects.order_by("rank").values_list("rank", "name"))
    tenants = _tenant_names(shown)
    accepted = _accepted_at(queue for queue in queues.values() if queue)
    return SchedulerNow(
        at=at,
        reachable=beats is not None,
        models=[
            ModelNow(
                model,
                _lanes_now(model, queues.get(model.name), lanes, accepted, at),
                [
                    _worker_now(beat, tenants, lanes, at.timestamp())
                    for beat in shown
                    if beat.model == model.name
                ],
            )
            for model in models
        ],
    )


def _waiting(model: str) -> dict[int, WaitingLane] | None:
    try:
        return DispatchQueue(store.shared_client()).lanes(model)
    except redis.RedisError:
        _log.warning("queue_unavailable", model=model, exc_info=True)
        return None


def _tenant_names(beats: Iterable[Heartbeat]) -> dict[str, str]:
    snapshots = [beat.scheduler for beat in beats if beat.scheduler is not None]
    ids = {row.tenant for snapshot in snapshots for row in snapshot.rows}
    ids |= {row.tenant for snapshot in snapshots for row in snapshot.parked}
    ids |= {id_ for snapshot in snapshots if snapshot.slot is not None for id_ in tenants_of(snapshot.slot)}
    if not ids:
        return {}
    known = Tenant.objects.filter(id__in=[uuid.UUID(hex=one) for one in ids])
    return {id_.hex: name for id_, name in known.values_list("id", "name")}


def _accepted_at(queues: Iterable[Mapping[int, WaitingLane]]) -> dict[str, datetime]:
    """When what waits first in each lane was accepted."""
    first = [lane.first for queue in queues for lane in queue.values() if lane.first is not None]
    if not first:
        return {}
    rows = Generation.objects.filter(id__in=[uuid.UUID(hex=one) for one in first])
    return {id_.hex: created_at for id_, created_at in rows.values_list("id", "created_at")}


def _lanes_now(
    model: LanguageModel,
    queue: Mapping[int, WaitingLane] | None,
    lanes: Mapping[int, str],
    accepted: Mapping[str, datetime],
    at: datetime,
) -> list[LaneNow] | None:
    if queue is None:
        return None
    shown = []
    for rank, name in lanes.items():
        lane = queue.get(rank, WaitingLane(0, 0, None))
        since = accepted.get(lane.first) if lane.first is not None else None
        waited = lasted(max(0.0, (at - since).total_seconds())) if since is not None else ""
        shown.append(LaneNow(name, lane.depth, waited, lane.skips, model.lane_floor))
    return shown


def _worker_now(
    beat: Heartbeat, tenants: Mapping[str, str], lanes: Mapping[int, str], at: float
) -> WorkerNow:
    snapshot = beat.scheduler
    memory, memory_words = _memory(snapshot) if snapshot is not None else ([], "")
    return WorkerNow(
        heartbeat=beat,
        state=state_of(beat, at),
        heard=lasted(max(0.0, at - (snapshot.at if snapshot is not None else beat.sent_at))),
        rows=[_row(row, tenants, at) for row in snapshot.rows] if snapshot else [],
        parked=[_row(row, tenants, at) for row in snapshot.parked] if snapshot else [],
        strip=_strip(snapshot) if snapshot else None,
        debt=_debt(snapshot) if snapshot else None,
        terms=_terms(snapshot) if snapshot else None,
        slot=slot_now(snapshot.slot, tenants, lanes) if snapshot and snapshot.slot else None,
        memory=memory,
        memory_words=memory_words,
        more_rows=snapshot.decoding - len(snapshot.rows) if snapshot else 0,
        more_parked=snapshot.prefills - len(snapshot.parked) if snapshot else 0,
        deferrals=_counted(beat, "deferrals_total"),
        preemptions=_counted(beat, "preemptions_total"),
        no_rows="Only the speculative slot streams."
        if snapshot and _producing(snapshot)
        else "Nothing streams.",
    )


def _row(row: DecodingRow | ParkedRow, tenants: Mapping[str, str], at: float) -> RowNow:
    done, total = (row.tokens, row.max_tokens) if isinstance(row, DecodingRow) else (row.done, row.total)
    return RowNow(
        uuid.UUID(hex=row.generation),
        tenants.get(row.tenant, row.tenant[:8]),
        row.lane,
        done,
        total,
        lasted(max(0.0, at - row.since)),
    )


def _counted(beat: Heartbeat, series: str) -> int:
    return int(sum(value for name, value in beat.counters.items() if name.partition("{")[0] == series))


def _terms(snapshot: SchedulerSnapshot) -> Terms:
    factor = slow_down(snapshot)
    return Terms(
        chunk=f"{number(snapshot.chunk)} tokens",
        chunk_took=_took(snapshot.chunk_ms),
        interval=counted(snapshot.interval, "decode tick"),
        slow_down="" if factor is None else f"{factor:.1f}",
        decode_took=_took(snapshot.decode_ms),
        decode_rate=f"{1000 / snapshot.decode_ms:.0f}" if snapshot.decode_ms else "",
    )


def _producing(snapshot: SchedulerSnapshot) -> bool:
    """Whether somebody streams, by the tick's own rule: in the batch, or at the slot."""
    pending, prompt_next = pending_slice(snapshot.slot)
    return is_producing(snapshot.decoding, pending, int(prompt_next))


def _debt(snapshot: SchedulerSnapshot) -> Debt:
    """When prompts may be run next, by the rules of ``scheduling.tick``."""
    most = snapshot.chunk * max(1, snapshot.interval)
    pending, prompt_next = pending_slice(snapshot.slot)
    if not _producing(snapshot):
        headline = "at once"
        meaning = "Nothing streams, so prompts are run chunk after chunk and owe nothing."
    elif not snapshot.interval:
        headline = "when no stream is left"
        meaning = "The interval is 0: streams starve prompts."
    elif not snapshot.debt:
        headline = "at once"
        meaning = "No debt is open: the next chunk is run as soon as a prompt waits."
    else:
        waiting = snapshot.prefills + prompt_next
        ticks = math.ceil(snapshot.debt / (snapshot.chunk * max(1, waiting)))
        pays = "decode tick" if snapshot.decoding else "round of the speculative slot"
        # Rounds take turns with decode ticks, and neither their time nor their number is known beforehand.
        timed = snapshot.decode_ms if not pending or prompt_next else None
        soon = f", about {lasted(ticks * timed / 1000)}" if timed else ""
        headline = f"after {counted(ticks, pays.partition(' of ')[0])}{soon}"
        each = f"{number(snapshot.chunk)} for each of {waiting} waiting prompts"
        paid = each if waiting > 1 else number(snapshot.chunk)
        meaning = f"Prompts owe the streams {number(snapshot.debt)} tokens × interval; a {pays} pays {paid}."
    return Debt(snapshot.debt, max(most, snapshot.debt), headline, meaning)


def _memory(snapshot: SchedulerSnapshot) -> tuple[list[Share], str]:
    """The KV budget's parts from left to right, and all of them in a sentence."""
    budget = snapshot.kv_budget
    if not budget:
        return [], ""
    used = snapshot.kv_reserved + snapshot.kv_cached
    watermark = min(snapshot.kv_watermark, max(0, budget - used))
    free = max(0, budget - used - watermark)
    parts = (
        ("reserved", snapshot.kv_reserved, "reserved for what runs"),
        ("cached", snapshot.kv_cached, "prefix cache"),
        ("free", free, "free"),
        ("watermark", watermark, "kept free beside streams"),
    )
    shares, x = [], 0.0
    for kind, bytes_, words in parts:
        width = min(100.0 - x, 100 * bytes_ / budget)
        shares.append(Share(kind, round(x, 2), round(width, 2), f"{memory_size(bytes_)} {words}"))
        x += width
    return shares, f"{memory_size(budget)}: " + ", ".join(share.words for share in shares)


def _strip(snapshot: SchedulerSnapshot) -> Strip | None:
    ticks = list(zip(snapshot.recent, snapshot.recent_ms))[-STRIP_TICKS:]
    if not ticks:
        return None
    longest = max(ms for _, ms in ticks)
    first = STRIP_TICKS - len(ticks)
    bars = []
    for place, (letter, ms) in enumerate(ticks, first):
        height = _LEAST_BAR + (STRIP_HEIGHT - _LEAST_BAR) * (ms / longest if ms else 0)
        action = _ACTIONS.get(letter, "idle")
        title = action if action == "idle" else f"{action}, {_took(ms)}"
        bars.append(
            Bar(action, place * _PLACE, round(STRIP_HEIGHT - height, 1), _BAR, round(height, 1), title)
        )
    return Strip(bars, _strip_words(ticks))


def _strip_words(ticks: Sequence[tuple[str, float]]) -> str:
    parts = []
    for letter, action in _ACTIONS.items():
        took = [ms for one, ms in ticks if one == letter]
        if took and action == "idle":
            parts.append("idle in between" if len(ticks) > len(took) else "idle")
        elif took:
            parts.append(
                f"{len(took)} × {action}, median {_took(statistics.median(took))}, longest {_took(max(took))}"
            )
    return "; ".join(parts)


def _took(ms: float | None) -> str:
    if ms is None:
        return ""
    return f"{ms:.1f} ms" if ms < 10 else lasted(ms / 1000)
