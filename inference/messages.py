"""The whole wire between web and worker.

Web and worker share no objects, only these structs, encoded as msgpack. Everything in
dispatch (``inference.dispatch``) carries one of them, so this page is what has to stay
compatible when the two run at different versions.

Identifiers are UUIDs as 32 hexadecimal digits. Times are Unix seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

import msgspec
from msgspec import Struct


class FinishReason(StrEnum):
    """Why a choice ended, in the words of OpenAI's API."""

    STOP = "stop"
    LENGTH = "length"


class CancelReason(StrEnum):
    """Who or what ended a generation before its own end."""

    CLIENT_DISCONNECTED = "client_disconnected"
    CLIENT_REQUESTED = "client_requested"
    ACCESS_REVOKED = "access_revoked"
    DETACHED = "detached"
    OPERATOR_REQUESTED = "operator_requested"
    TIMED_OUT = "timed_out"
    QUEUE_WAIT_EXCEEDED = "queue_wait_exceeded"

    @property
    def end_state(self) -> EndState:
        """The terminal state that a generation ended for this reason is in."""
        expired = (CancelReason.TIMED_OUT, CancelReason.QUEUE_WAIT_EXCEEDED)
        return EndState.EXPIRED if self in expired else EndState.CANCELLED


class EndState(StrEnum):
    """The terminal states of a generation."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"
    EXPIRED = "expired"


class Sampling(Struct, frozen=True, kw_only=True):
    """How the next token is drawn. Every field has a value: defaults are filled in by the web.

    ``seed`` is always set (drawn at admission when the client gave none): the key of the token
    at position ``p`` is derived from ``seed`` and ``p`` alone, so a sequence is the same alone, in a
    batch, and resumed.
    """

    seed: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}


class GenerationTask(Struct, frozen=True, kw_only=True):
    """One accepted generation, complete: a worker needs nothing else to run it."""

    generation: str
    tenant: str
    model: str
    lane: str
    lane_rank: int
    weight: int
    prompt: list[int]
    max_tokens: int
    sampling: Sampling
    stop: list[str] = []
    speculation: bool = False
    #: Whether what it produces may teach its tenant's own pool of drafts.
    suffix_pool: bool = False
    #: May run without an attached reader (stored conversation or background work).
    unattended: bool = False
    accepted_at: float

    @property
    def cost(self) -> int:
        """Worst-case tokens: what fair share charges at the claim."""
        return len(self.prompt) + self.max_tokens


class Usage(Struct, frozen=True, kw_only=True):
    """Exact token counts of one generation.

    Of the drafted tokens, ``accepted_prediction_tokens`` became part of the answer: they are part of
    ``completion_tokens``. The rejected ones were run in vain and are part of no other count.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class Failure(Struct, frozen=True, kw_only=True):
    """Why a generation failed: a stable code, and a message that may be shown to its client."""

    code: str
    message: str


class Delta(Struct, frozen=True, kw_only=True, tag="delta", omit_defaults=True):
    """Tokens committed in one tick for one choice, and the text they release.

    ``text`` may be shorter than the tokens' (held back: part of a character, or of a stop string)
    or empty; ``tokens`` are always logged, so that a resuming worker knows them all. Of a speculative round's
    ``proposed`` drafted tokens, ``accepted`` are among them. A log's first entry says when it came, in ``at``, and how
    many of the prompt's tokens the prefix cache had, in ``cached``: who goes on with it, even after its worker died,
    knows so when the answer began, and what of it was not run.
    """

    seq: int
    epoch: int
    tokens: list[int]
    text: str
    index: int = 0
    proposed: int = 0
    accepted: int = 0
    at: float = 0.0
    cached: int = 0


class End(Struct, frozen=True, kw_only=True, tag="end"):
    """The last entry of a token log. Text still held back comes in a ``Delta`` before it."""

    seq: int
    epoch: int
    state: EndState
    usage: Usage
    finish_reason: FinishReason | None = None
    cancel_reason: CancelReason | None = None
    failure: Failure | None = None


#: What a token log holds, numbered by ``seq`` from 1 without gaps.
LogEntry = Delta | End


def produced_usage(prompt_tokens: int, log: Iterable[LogEntry]) -> Usage:
    """What a generation has used that ends where ``log`` does, without a worker.

    Its prompt counts if anything was produced: then all of it was run.
    """
    deltas = [entry for entry in log if isinstance(entry, Delta)]
    produced = sum(len(delta.tokens) for delta in deltas)
    accepted = sum(delta.accepted for delta in deltas)
    return Usage(
        prompt_tokens=prompt_tokens if produced else 0,
        completion_tokens=produced,
        cached_tokens=deltas[0].cached if produced else 0,
        accepted_prediction_tokens=accepted,
        rejected_prediction_tokens=sum(delta.proposed for delta in deltas) - accepted,
    )


class PrefillProgress(Struct, frozen=True, kw_only=True, tag="prefill"):
    """Prompt tokens run so far. Transient: published, never logged."""

    done: int
    total: int


#: What one generation publishes in a tick.
Publication = Delta | End | PrefillProgress


class TickEntry(Struct, frozen=True, kw_only=True):
    """One stream entry: everything that one worker published in one tick, per generation."""

    worker: str
    publications: list[tuple[str, Publication]]


class DecodingRow(Struct, frozen=True, kw_only=True):
    """One row of the decode batch. ``since``: when this worker had its first token."""

    generation: str
    tenant: str
    lane: str
    tokens: int
    max_tokens: int
    since: float


class ParkedRow(Struct, frozen=True, kw_only=True):
    """One admitted prompt that is not finished: ``done`` of ``total`` tokens. ``since``: when it was accepted."""

    generation: str
    tenant: str
    lane: str
    done: int
    total: int
    since: float


class SlotHolder(Struct, frozen=True, kw_only=True):
    """Who decodes with the drafter: ``slices`` of its grant's ``budget`` are run (0: nobody is waited for).

    ``tokens`` of at most ``max_tokens`` are produced.
    """

    generation: str
    tenant: str
    lane: str
    slices: int = 0
    budget: int = 0
    tokens: int = 0
    max_tokens: int = 0


class SlotWaiter(Struct, frozen=True, kw_only=True):
    """Who waits for the slot: parked in the middle of its answer if it ``started``, else with nothing produced.

    ``skips``: how many grant decisions it was passed over in.
    """

    generation: str
    tenant: str
    lane: str
    skips: int = 0
    started: bool = False
    tokens: int = 0
    max_tokens: int = 0


class SlotSnapshot(Struct, frozen=True, kw_only=True):
    """The speculative slot: who holds it, who waits in which order, and what the worker has measured of it.

    ``rotations``, ``grants`` (by tenant; the most granted ones), ``proposed`` and ``accepted`` tokens count from the
    worker's start. ``draft_length`` is what a round proposes at most now. ``state`` is ``forced_on``, ``forced_off``,
    ``profiling`` (with so many ``samples``) or ``settled``; ``verdict`` is ``enabled``, ``declined`` or ``undecided``,
    and ``speedup`` what it rests on. Plain text: who does not know a word yet still reads the rest.

    ``drafter`` is the one that there is, by its ``speculation_verdicts.drafter_key``: empty where nothing is to be
    drafted, or where it cannot be had for ``drafter_fault``. ``prompt_next``: the next slice runs a prompt's tokens and
    is no round. ``speculate_undecided`` is the setting that holds; None: it is not told.
    """

    holder: SlotHolder | None = None
    waiting: list[SlotWaiter] = []
    rotations: int = 0
    grants: dict[str, int] = {}
    proposed: int = 0
    accepted: int = 0
    drafter: str = ""
    draft_length: int = 0
    state: str = ""
    verdict: str = ""
    speedup: float | None = None
    samples: int = 0
    drafter_fault: str = ""
    prompt_next: bool = False
    speculate_undecided: bool | None = None


class SchedulerFigures(Struct, frozen=True, kw_only=True):
    """What a worker has measured, and what it schedules within.

    ``decode_ms`` and ``chunk_ms`` are running medians of one decode tick and one full chunk, None while not measured.
    KV memory is in bytes; a ``kv_budget`` of 0: it is not accounted for. ``kv_watermark`` and ``kv_cache_budget`` lie
    within the budget; finished prompts hold ``kv_cached`` of it, apart from ``kv_reserved``, which is what all that
    runs can take together: as many times the longest as there are.
    """

    decode_ms: float | None = None
    chunk_ms: float | None = None
    kv_reserved: int = 0
    kv_budget: int = 0
    kv_watermark: int = 0
    kv_cached: int = 0
    kv_cache_budget: int = 0
    lane_floor: int | None = None
    preemption: bool | None = None


class SchedulerSnapshot(SchedulerFigures, frozen=True, kw_only=True):
    """What a worker's scheduler has before it, as it was ``at`` a moment less than a second ago.

    ``rows`` and ``parked`` are the first of ``decoding`` rows and ``prefills`` unfinished prompts: a snapshot stays
    small. ``debt`` is in tokens × interval, see ``scheduling.tick``. ``recent``: the last ticks, oldest first, by the
    first letter of their action; ``recent_ms``: how long each took.
    """

    at: float
    decoding: int
    prefills: int
    rows: list[DecodingRow]
    parked: list[ParkedRow]
    debt: int
    chunk: int
    interval: int
    recent: str = ""
    recent_ms: list[float] = []
    #: None: the model has no drafter, or its worker does not tell.
    slot: SlotSnapshot | None = None


class Heartbeat(Struct, frozen=True, kw_only=True):
    """What a worker says of itself about once a second; counters grow for the worker's lifetime."""

    worker: str
    model: str
    hostname: str
    pid: int
    started_at: float
    sent_at: float
    #: When a tick, or the decision that nothing is to be done, last finished.
    progressed_at: float
    ready: bool
    draining: bool
    blas: str
    device: str
    decoding: int
    prefilling: int
    slots: int
    counters: dict[str, float]
    #: None: a worker that does not tell, or has not ticked yet.
    scheduler: SchedulerSnapshot | None = None
    #: Tokens of the longest sequence that its KV memory holds when nothing else runs; None: it does not tell.
    longest_sequence: int | None = None
    #: Bytes of KV memory that it sets aside for each slot, however short its sequence is.
    slot_bytes: int = 0


_encoder: Final = msgspec.msgpack.Encoder()
log_entry_decoder: Final[msgspec.msgpack.Decoder[LogEntry]] = msgspec.msgpack.Decoder(LogEntry)
tick_entry_decoder: Final[msgspec.msgpack.Decoder[TickEntry]] = msgspec.msgpack.Decoder(TickEntry)
task_decoder: Final[msgspec.msgpack.Decoder[GenerationTask]] = msgspec.msgpack.Decoder(GenerationTask)
heartbeat_decoder: Final[msgspec.msgpack.Decoder[Heartbeat]] = msgspec.msgpack.Decoder(Heartbeat)


def encode(message: GenerationTask | Delta | End | TickEntry | Heartbeat | SchedulerSnapshot) -> bytes:
    """The msgpack bytes of a message."""
    return _encoder.encode(message)
