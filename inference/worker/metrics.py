"""What a worker makes visible: one place that lists every series."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from inference.messages import CancelReason, EndState
from inference.scheduling.speculation import DeclineReason
from inference.scheduling.tick import Action
from inference.worker.counters import Counter, Counters, Histogram

#: Upper bounds of the histograms' buckets, in seconds.
FIRST_TOKEN_BOUNDS_S: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
INTER_TOKEN_BOUNDS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Stage(StrEnum):
    """How far a generation has come in its worker."""

    CLAIMED = "claimed"
    PREFILLING = "prefilling"
    #: For the slot, with nothing produced.
    WAITING = "waiting"
    DECODING = "decoding"
    #: It holds the slot.
    SPECULATING = "speculating"
    #: For its next grant of the slot.
    PARKED = "parked"


class ClaimKind(StrEnum):
    """What a claim found."""

    FRESH = "fresh"
    #: An earlier owner's tokens are in the log: they are run again, not produced again.
    RESUMED = "resumed"
    #: An earlier owner's log is lost with Valkey's data: it begins anew.
    LOG_LOST = "log_lost"
    #: Its log has its end: only settlement was left to do.
    ENDED = "ended"
    #: The database knows it as ended, or as claimed with a higher epoch.
    GHOST = "ghost"


class Fault(StrEnum):
    """Where an unexpected error came from."""

    #: While the generation was put into the engine.
    ADMISSION = "admission"
    #: The engine's, in one sequence.
    SEQUENCE = "sequence"
    #: Ours, in one generation's text.
    TEXT = "text"
    #: The engine's, in the whole step.
    BACKEND = "backend"


@dataclass(frozen=True, slots=True)
class LaneMetrics:
    """Tokens and their latencies in one lane."""

    queue_wait: Histogram
    prompt_tokens: Counter
    cached_tokens: Counter
    generated_tokens: Counter
    time_to_first_token: Histogram
    inter_token: Histogram


@dataclass(frozen=True, slots=True)
class PrefillMetrics:
    """What one lane's prompts were given, and what they came to owe to streams."""

    #: Prefill ticks.
    grants: Counter
    #: One a prompt and tick.
    chunks: Counter
    #: Padded.
    tokens: Counter
    #: Prompts that could have ended in a tick and waited for others, counted in each such tick.
    held: Counter
    #: Tokens × interval, those of slices 0 too.
    debt: Counter


@dataclass(frozen=True, slots=True)
class SlotMetrics:
    """What one lane had of the speculative slot. Drafted tokens behind the end of a text count as rejected."""

    grants: Counter
    parks: Counter
    #: Grants that passed the slot on: the generation that held it before waits for it again.
    rotations: Counter
    rounds: Counter
    proposed: Counter
    accepted: Counter
    rejected: Counter


class WorkerMetrics:
    """The series of one worker, in ``counters``."""

    def __init__(self) -> None:
        self.counters = Counters()
        of = self.counters.counter
        self.ticks: Final = {action: of("ticks_total", action=action.value) for action in Action}
        self.tick_seconds: Final = {
            action: of("tick_seconds_total", action=action.value) for action in Action
        }
        self.publish_seconds: Final = of("publish_seconds_total")
        self.prefill_debt: Final = of("prefill_debt_tokens")
        self.publish_refusals: Final = of("publish_refusals_total")
        self.publish_retries: Final = of("publish_retries_total")
        self.leases_lost: Final = of("leases_lost_total")
        self.requeues: Final = of("requeues_total")
        self.settlements: Final = of("settlements_total")
        self.settlement_retries: Final = of("settlement_retries_total")
        self.chunk_tokens: Final = of("prefill_chunk_limit_tokens")
        self.quiet_tokens: Final = of("prefill_quiet_limit_tokens")
        self.interval: Final = of("prefill_interval_ticks")
        self.kv_reserved: Final = of("kv_reserved_bytes")
        self.kv_budget: Final = of("kv_budget_bytes")
        self.prefix_cache: Final = of("prefix_cache_bytes")
        self.prefix_lookups: Final = of("prefix_lookups_total")
        self.prefix_hits: Final = of("prefix_hits_total")
        self.prefix_hit_tokens: Final = of("prefix_hit_tokens_total")
        self.prefix_evictions: Final = of("prefix_evictions_total")
        self.slot_waiting: Final = of("slot_waiting")
        self.draft_seconds: Final = of("draft_seconds_total")
        self.verify_seconds: Final = of("verify_seconds_total")
        self.drafter_reloads: Final = of("drafter_reloads_total")
        self.draft_length: Final = of("draft_length_tokens")
        #: How many times as fast as plain decoding, as measured; 0 while it is not.
        self.speculation_gain: Final = of("speculation_gain_ratio")
        #: By the settings: whether anybody may speculate, and rounds of a grant.
        self.speculation_on: Final = of("speculation_on")
        self.slot_grant_rounds: Final = of("slot_grant_rounds")
        self._lanes: dict[str, LaneMetrics] = {}
        self._prefill: dict[str, PrefillMetrics] = {}
        self._slot: dict[str, SlotMetrics] = {}

    def deferrals(self, lane_rank: int) -> Counter:
        """Requests that came first and found no room. A claim knows lanes by rank; ``/metrics`` names them."""
        return self.counters.counter("deferrals_total", lane_rank=str(lane_rank))

    def preemptions(self, lane: str) -> Counter:
        """Sequences of ``lane`` that had to make room."""
        return self.counters.counter("preemptions_total", lane=lane)

    def declines(self, reason: DeclineReason, lane: str) -> Counter:
        """Sequences of ``lane`` that decode without the slot, by why."""
        return self.counters.counter("slot_declines_total", reason=reason.value, lane=lane)

    def claims(self, kind: ClaimKind, lane: str) -> Counter:
        return self.counters.counter("claims_total", kind=kind.value, lane=lane)

    def faults(self, fault: Fault) -> Counter:
        return self.counters.counter("faults_total", kind=fault.value)

    def cancellations(self, stage: Stage, reason: CancelReason, lane: str) -> Counter:
        return self.counters.counter("cancellations_total", stage=stage.value, reason=reason.value, lane=lane)

    def generations(self, state: EndState, lane: str) -> Counter:
        return self.counters.counter("generations_total", state=state.value, lane=lane)

    def lane(self, lane: str) -> LaneMetrics:
        """The series of one lane that every token touches, looked up once."""
        if lane not in self._lanes:
            self._lanes[lane] = LaneMetrics(
                queue_wait=self.counters.histogram("queue_wait_seconds", FIRST_TOKEN_BOUNDS_S, lane=lane),
                prompt_tokens=self.counters.counter("prompt_tokens_total", lane=lane),
                cached_tokens=self.counters.counter("cached_tokens_total", lane=lane),
                generated_tokens=self.counters.counter("generated_tokens_total", lane=lane),
                time_to_first_token=self.counters.histogram(
                    "time_to_first_token_seconds", FIRST_TOKEN_BOUNDS_S, lane=lane
                ),
                inter_token=self.counters.histogram("inter_token_seconds", INTER_TOKEN_BOUNDS_S, lane=lane),
            )
        return self._lanes[lane]

    def prefill(self, lane: str) -> PrefillMetrics:
        """The series that every prompt tick of a lane touches, looked up once."""
        if lane not in self._prefill:
            of = self.counters.counter
            self._prefill[lane] = PrefillMetrics(
                grants=of("prefill_grants_total", lane=lane),
                chunks=of("prefill_chunks_total", lane=lane),
                tokens=of("prefill_padded_tokens_total", lane=lane),
                held=of("prefill_held_total", lane=lane),
                debt=of("prefill_debt_made_tokens_total", lane=lane),
            )
        return self._prefill[lane]

    def slot(self, lane: str) -> SlotMetrics:
        """The series of the slot that every round of a lane touches, looked up once."""
        if lane not in self._slot:
            of = self.counters.counter
            self._slot[lane] = SlotMetrics(
                grants=of("slot_grants_total", lane=lane),
                parks=of("slot_parks_total", lane=lane),
                rotations=of("slot_rotations_total", lane=lane),
                rounds=of("speculative_rounds_total", lane=lane),
                proposed=of("draft_tokens_proposed_total", lane=lane),
                accepted=of("draft_tokens_accepted_total", lane=lane),
                rejected=of("draft_tokens_rejected_total", lane=lane),
            )
        return self._slot[lane]
