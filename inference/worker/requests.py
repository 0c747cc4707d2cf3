"""What other threads ask of the tick thread. It carries them out between two ticks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from inference.dispatch.claims import Claim
from inference.messages import CancelReason
from inference.scheduler_settings import SchedulerSettings
from inference.scheduling.claiming import Candidate
from inference.scheduling.speculation import Verdict
from inference.worker.holdings import NOBODY

if TYPE_CHECKING:
    from inference.engine.drafting.drafter import Drafter


@dataclass(frozen=True, slots=True)
class Admit:
    """Run a generation that was claimed at ``claimed_at`` (monotonic seconds).

    Not ``fits``: it needs more KV memory than there is, and is to be ended. ``instead_of``: those whose room it was
    given, epochs by generation. They are preempted when it is put into the engine, as far as that is still needed.
    """

    claim: Claim
    fits: bool = True
    claimed_at: float = field(default_factory=time.monotonic)
    instead_of: Mapping[str, int] = field(default_factory=lambda: NOBODY)


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget generations, by epoch, that are no longer this worker's."""

    epochs: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Cancel:
    """End generations."""

    reasons: Mapping[str, CancelReason]


@dataclass(frozen=True, slots=True)
class Reconfigure:
    """Schedule by these settings from now on."""

    settings: SchedulerSettings


@dataclass(frozen=True, slots=True)
class UseDrafter:
    """Draft with what this makes from now on; with None, nothing is drafted."""

    factory: Callable[[], Drafter] | None


@dataclass(frozen=True, slots=True)
class Rule:
    """This was found about speculation for the worker's pairing; with None it is to be measured, from the beginning."""

    verdict: Verdict | None


@dataclass(frozen=True, slots=True)
class Publish:
    """Share these prefixes, in tokens, between all tenants, and no others any more."""

    prefixes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Drain:
    """Return when everything has ended, or ``grace_s`` seconds are over."""

    grace_s: float


@dataclass(frozen=True, slots=True)
class RoomPlan:
    """Room can be made for ``generation`` if these ``victims``, epochs by generation, leave. They have not."""

    generation: str
    victims: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class PlanRoom:
    """Say for the first of ``candidates`` for which preemption can make room who would have to leave. Nobody does.

    ``answer``: None if there is no such candidate.
    """

    candidates: tuple[Candidate, ...]
    answer: Future[RoomPlan | None] = field(default_factory=Future)


Request = Admit | Drop | Cancel | Reconfigure | UseDrafter | Rule | Publish | Drain | PlanRoom
