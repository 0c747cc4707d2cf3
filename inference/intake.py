"""The one door to the queue, whatever the route or socket.

What happens, in this order: a place in the bounded queue is taken in Valkey; one database transaction
resolves the lane, writes its assignment, the generation and its request; after commit the
generation is enqueued. A refusal gives the place back; a crash lets it lapse; what was committed but not enqueued
is swept in (``inference.recovery``).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from uuid import UUID, uuid4

import redis
import structlog
from django.db import transaction
from django.utils import timezone

from accounts import admission
from accounts.principal import Principal
from accounts.tenancy import tenant_scope
from inference import messages
from inference.dispatch.queue import dispatch_queue
from inference.messages import GenerationTask, Sampling
from inference.models import Generation, GenerationRequest, LanguageModel
from signalbox.configuration import configuration
from signalbox.request_ids import current_request_id

_log = structlog.get_logger(__name__)

#: Share of Valkey's memory from which nothing new is admitted (the token logs of what runs need the rest).
MEMORY_PRESSURE_LIMIT = 0.8
#: What a client that was refused for room is told to wait, in seconds.
RETRY_AFTER_S = 2.0


class RefusalCode(StrEnum):
    """Why a generation was not accepted: the same code in the API, the log and the metrics."""

    QUEUE_FULL = "queue_full"
    OVERLOADED = "overloaded"
    QUEUE_UNAVAILABLE = "queue_unavailable"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    NO_ENTITLEMENT = "no_entitlement"
    UNKNOWN_LANE = "unknown_lane"


class Refused(Exception):
    """The generation was not accepted; nothing of it is left anywhere."""

    def __init__(
        self,
        code: RefusalCode,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A validated request: what any route or socket hands in.

    ``max_tokens`` of ``None`` means the model's default, at most what the context leaves.
    ``unattended`` generations run on without a reader; the output of ``keep_output`` ones is stored at settlement.
    """

    model: LanguageModel
    prompt: list[int]
    sampling: Sampling
    route: str
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    requested_lane: str | None = None
    unattended: bool = False
    keep_output: bool = False


@dataclass(frozen=True, slots=True)
class Accepted:
    """An accepted generation: it will reach a terminal state whatever happens to this process."""

    generation_id: UUID
    task: GenerationTask
    admission: admission.Admission
    created_at: datetime


def draw_seed() -> int:
    """A seed for a generation whose client gave none."""
    return secrets.randbits(63)


def accept(
    principal: Principal,
    submission: Submission,
    *,
    within: Callable[[Generation], None] | None = None,
) -> Accepted:
    """Accept ``submission`` for ``principal``, or raise ``Refused``.

    ``within`` runs in the accept transaction, for rows that must exist if and only if the generation does.
    """
    max_tokens = _room_for_answer(submission)
    generation_id = uuid4()
    _take_place(submission.model.name, generation_id)
    try:
        with tenant_scope(principal.tenant_id), transaction.atomic():
            granted = admission.admit(principal, submission.requested_lane, generation_id)
            created_at = timezone.now()
            task = GenerationTask(
                generation=generation_id.hex,
                tenant=principal.tenant_id.hex,
                model=submission.model.name,
                lane=granted.lane,
                lane_rank=granted.lane_rank,
                weight=granted.weight,
                prompt=submission.prompt,
                max_tokens=max_tokens,
                sampling=submission.sampling,
                stop=list(submission.stop),
                speculation=granted.speculation,
                suffix_pool=granted.suffix_pool,
                unattended=submission.unattended,
                accepted_at=created_at.timestamp(),
            )
            generation = Generation.objects.create(
                id=generation_id,
                tenant_id=principal.tenant_id,
                api_key_id=principal.api_key_id,
                user_id=principal.user_id,
                model=submission.model,
                lane_id=granted.lane,
                route=submission.route,
                request_id=current_request_id(),
                unattended=submission.unattended,
                keep_output=submission.keep_output,
                prompt_tokens=len(submission.prompt),
                max_tokens=max_tokens,
                created_at=created_at,
            )
            GenerationRequest.objects.create(generation=generation, task=messages.encode(task))
            if within is not None:
                within(generation)
    except admission.Refused as refusal:
        _give_back_place(submission.model.name, generation_id)
        raise Refused(RefusalCode(refusal.code), refusal.message, param="service_tier") from refusal
    except BaseException:
        _give_back_place(submission.model.name, generation_id)
        raise
    _enqueue(task)
    return Accepted(generation_id, task, granted, created_at)


def _room_for_answer(submission: Submission) -> int:
    """The answer's length limit in tokens. Raises ``Refused`` when prompt and answer cannot fit together."""
    longest = submission.model.longest_sequence
    prompt_tokens = len(submission.prompt)
    room = longest - prompt_tokens
    if submission.max_tokens is None and room >= 1:
        return min(submission.model.default_max_tokens, room)
    if submission.max_tokens is not None and submission.max_tokens <= room:
        return submission.max_tokens
    wanted = f" plus {submission.max_tokens} for the answer" if submission.max_tokens is not None else ""
    limit = (
        f"This model's context is {longest} tokens"
        if longest == submission.model.context_length
        else f"The worker of this model has memory for {longest} tokens of prompt and answer"
    )
    raise Refused(
        RefusalCode.CONTEXT_LENGTH_EXCEEDED,
        f"{limit}; the prompt takes {prompt_tokens}{wanted}. Shorten the prompt or ask for a shorter answer.",
        param="messages" if submission.route != "completions" else "prompt",
    )


def _take_place(model: str, generation_id: UUID) -> None:
    queue = dispatch_queue()
    try:
        if queue.memory_pressure() >= MEMORY_PRESSURE_LIMIT:
            raise Refused(
                RefusalCode.OVERLOADED,
                "The server's queue store is nearly full. Try again shortly.",
                retry_after_s=RETRY_AFTER_S,
            )
        if not queue.take_place(model, generation_id.hex, configuration().queue_limit):
            raise Refused(
                RefusalCode.QUEUE_FULL,
                f"{configuration().queue_limit} generations already wait for {model}. Try again shortly.",
                retry_after_s=RETRY_AFTER_S,
            )
    except redis.RedisError as error:
        _log.exception("queue_unavailable", generation=generation_id.hex)
        raise Refused(
            RefusalCode.QUEUE_UNAVAILABLE,
            "The server's queue cannot be reached. Nothing was accepted; try again shortly.",
            retry_after_s=RETRY_AFTER_S,
        ) from error


def _give_back_place(model: str, generation_id: UUID) -> None:
    try:
        dispatch_queue().give_back_place(model, generation_id.hex)
    except redis.RedisError:
        _log.warning("place_lapses", generation=generation_id.hex, exc_info=True)


def _enqueue(task: GenerationTask) -> None:
    try:
        dispatch_queue().enqueue(task)
    except redis.RedisError:
        # Accepted is accepted: the sweep brings it in when Valkey is back.
        _log.warning("enqueue_left_to_sweep", generation=task.generation, exc_info=True)
