"""What a worker reports of one claim of a generation, and how that becomes a row.

A report is for people to look at. Nothing is decided by it, and nothing waits for it: where it is lost, the next
run's epoch shows that there was one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from accounts.tenancy import every_tenant
from inference.models import GenerationRun, RunOutcome, Worker

#: Seconds since the generation was accepted, an ``EventKind``, details.
Event = tuple[float, str, dict[str, Any]]


class EventKind(StrEnum):
    """What happens in a run. Details in brackets; ``s`` is always how long it took, in seconds."""

    #: A worker owns it.
    CLAIMED = "claimed"
    #: Tokens of earlier runs are run again like prompt, and not produced again. (``tokens``)
    RESUMED = "resumed"
    #: The prompt's beginning was in the prefix cache. (``tokens``)
    CACHE_HIT = "cache_hit"
    #: Prompt tokens were run. (``s``, ``tokens``; ``done`` of ``total`` after it; ``beside``: other prompts in the same
    #: tick; of several merged into one: ``merged``, and ``busy``: the seconds of ``s`` in which they ran)
    CHUNK = "chunk"
    #: The generation's first token.
    FIRST_TOKEN = "first_token"  # noqa: S105 (no secret)
    #: Tokens came. (``s``, ``tokens``, ``gap``: the longest pause before one of them)
    TOKENS = "tokens"
    #: It waited for the speculative slot. (``s``; ``parked``: between two grants, else with nothing produced)
    SLOT_WAIT = "slot_wait"
    #: It had the slot. (``s``, ``rounds``; ``accepted`` of ``proposed`` drafted tokens; of several grants merged into
    #: one: ``merged``, and ``busy``: the seconds of ``s`` in which it had it)
    SLOT_GRANT = "slot_grant"
    #: From here on it decodes without the slot. (``reason``)
    CLASSIC = "classic"
    #: Its cancel was carried out. (``reason``)
    CANCELLED = "cancelled"
    #: The run is over. (``reason``, where there is more to say than the outcome)
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One claim, over. Times are Unix seconds."""

    generation: UUID
    epoch: int
    claimed_at: float
    ended_at: float
    outcome: RunOutcome
    events: list[Event] = field(default_factory=list)
    worker: Worker | None = None


def write(run: RunRecord) -> None:
    """Insert the run's row. Does nothing where it exists: who repeats a settlement repeats this."""
    row = GenerationRun(
        generation_id=run.generation,
        epoch=run.epoch,
        worker=run.worker,
        worker_name=str(run.worker or ""),
        claimed_at=datetime.fromtimestamp(run.claimed_at, UTC),
        ended_at=datetime.fromtimestamp(run.ended_at, UTC),
        outcome=run.outcome,
        events=run.events,
    )
    with every_tenant("a worker reports every tenant's generations"):
        GenerationRun.objects.bulk_create([row], ignore_conflicts=True)
