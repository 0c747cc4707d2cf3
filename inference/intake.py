"""The one door to the queue, whatever the route or socket.

What happens, in this order: the lane is chosen by what stands in the database; its rates and a place in the bounded
queue are taken in Valkey; one database transaction holds back budget and concurrency and writes the lane
assignment, the generation and its request; after commit the generation is enqueued. A refusal gives rates and place
back; a crash lets them lapse; what was committed but not enqueued is swept in (``inference.recovery``).

No transaction waits for Valkey. So what is lost in one (another request was faster) rolls all of it back, and the
lane is chosen again, at most once for each entitlement; where a right has ended meanwhile, by what there is now.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID, uuid4

import redis
import structlog
from django.utils import timezone

from accounts import admission, budget_events, lane_resolution, rates, reservations
from accounts.admission import Admission, Choice, Plan
from accounts.lane_resolution import Wish
from accounts.limits import LimitState
from accounts.principal import Principal
from accounts.tenancy import tenant_scope
from inference import messages
from inference.dispatch.queue import dispatch_queue
from inference.messages import GenerationTask, Sampling
from inference.models import Generation, GenerationRequest, LanguageModel
from inference.sequence_length import Bound, TooLong, answer_tokens
from signalbox.configuration import configuration
from signalbox.request_ids import current_request_id
from signalbox.write_transactions import write_transaction

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
    KV_MEMORY_EXCEEDED = "kv_memory_exceeded"
    NO_ENTITLEMENT = "no_entitlement"
    UNKNOWN_LANE = "unknown_lane"
    INSUFFICIENT_QUOTA = "insufficient_quota"
    RATE_LIMIT_EXCEEDED = "rate_limit_exceeded"
    CONCURRENCY_LIMIT_EXCEEDED = "concurrency_limit_exceeded"


class Refused(Exception):
    """The generation was not accepted; nothing of it is left anywhere."""

    def __init__(
        self,
        code: RefusalCode,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
        limit: LimitState | None = None,
        subject: str = "",
        tokens: int = 0,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
        #: The limit that was short, where one was; whose it is; and what the request would have taken, in tokens.
        self.limit = limit
        self.subject = subject
        self.tokens = tokens


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
    admission: Admission
    created_at: datetime
    #: Where all limits that are set stand, this generation counted: rates, budgets, concurrency.
    limits: tuple[LimitState, ...] = ()


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
    max_tokens = _answer_tokens(submission)
    prompt_tokens = len(submission.prompt)
    wish = Wish(
        requested=submission.requested_lane, tokens=prompt_tokens + max_tokens, prompt_tokens=prompt_tokens
    )
    generation_id = uuid4()
    plan = admission.plan(principal, wish, timezone.now())
    while True:
        choice = _choose(plan)
        try:
            rate_states = _take(choice, submission.model.name, generation_id, wish.tokens)
        except rates.RateExceeded as short:
            plan.is_short(short.allowance_id, short.state)
            continue
        try:
            accepted = _commit(principal, plan, choice, submission, max_tokens, generation_id, within)
        except reservations.Short as short:
            _give_back(choice, submission.model.name, generation_id)
            plan.is_short(short.allowance_id, short.state)
        except admission.RightLost:
            _give_back(choice, submission.model.name, generation_id)
            plan = admission.plan(principal, wish, timezone.now())
        except BaseException:
            _give_back(choice, submission.model.name, generation_id)
            raise
        else:
            _enqueue(accepted.task)
            return replace(accepted, limits=(*rate_states, *accepted.admission.limits))


def _choose(plan: Plan) -> Choice:
    try:
        return plan.choose()
    except lane_resolution.Refused as refusal:
        allowance = plan.allowance_of(refusal)
        if allowance is not None and refusal.limit is not None:
            budget_events.refused(allowance, refusal.limit, plan.wish.tokens, plan.now)
        raise Refused(
            RefusalCode(refusal.code),
            refusal.message,
            param=None if refusal.limit else "service_tier",
            retry_after_s=_retry_after_s(refusal.limit, plan),
            limit=refusal.limit,
            subject=refusal.subject,
            tokens=plan.wish.tokens,
        ) from refusal


def _retry_after_s(limit: LimitState | None, plan: Plan) -> float | None:
    """When to ask again; None: never, as it is."""
    if limit is None or limit.never_allows(plan.wish.tokens):
        return None
    until = limit.fits_at or limit.resets_at
    if until is None:
        return RETRY_AFTER_S
    return max(0.001, (until - timezone.now()).total_seconds())


def _commit(
    principal: Principal,
    plan: Plan,
    choice: Choice,
    submission: Submission,
    max_tokens: int,
    generation_id: UUID,
    within: Callable[[Generation], None] | None,
) -> Accepted:
    """The accept transaction. Raises ``reservations.Short`` and ``admission.RightLost``; nothing is left then."""
    with tenant_scope(principal.tenant_id), write_transaction():
        granted = admission.admit(principal, plan, choice, generation_id)
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
        wait_s = granted.longest_queue_wait_s
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
            queue_deadline=None if wait_s is None else created_at + timedelta(seconds=wait_s),
        )
        GenerationRequest.objects.create(generation=generation, task=messages.encode(task))
        if within is not None:
            within(generation)
    return Accepted(generation_id, task, granted, created_at)


def _answer_tokens(submission: Submission) -> int:
    """The answer's length limit in tokens. Raises ``Refused`` when prompt and answer can never be run together."""
    model, prompt_tokens, asked = submission.model, len(submission.prompt), submission.max_tokens
    try:
        return answer_tokens(
            prompt_tokens,
            asked,
            default=model.default_max_tokens,
            context=model.context_length,
            memory=model.kv_capacity_tokens,
        )
    except TooLong as error:
        wanted = "" if asked is None else f" plus {asked} for the answer"
        takes = f"the prompt takes {prompt_tokens}{wanted}"
        if error.bound is Bound.CONTEXT:
            code = RefusalCode.CONTEXT_LENGTH_EXCEEDED
            message = (
                f"This model's context is {error.most} tokens; {takes}. Shorten the prompt or ask for a shorter "
                "answer."
            )
        else:
            code = RefusalCode.KV_MEMORY_EXCEEDED
            message = (
                f"The worker of this model has memory for {error.most} tokens of prompt and answer, and "
                f"{error.need} are needed: {takes}. Shorten the prompt, ask for a shorter answer, or have the "
                "operator raise the model's KV budget."
            )
        param = "messages" if submission.route != "completions" else "prompt"
        raise Refused(code, message, param=param) from error


def _take(choice: Choice, model: str, generation_id: UUID, tokens: int) -> list[LimitState]:
    """Take the rates and a place in the queue, or neither. Raises ``rates.RateExceeded`` and ``Refused``."""
    queue = dispatch_queue()
    try:
        if queue.memory_pressure() >= MEMORY_PRESSURE_LIMIT:
            raise Refused(
                RefusalCode.OVERLOADED,
                "The server's queue store is nearly full. Try again shortly.",
                retry_after_s=RETRY_AFTER_S,
            )
        states = rates.take(generation_id, choice.rates, tokens)
        if not queue.take_place(model, generation_id.hex, configuration().queue_limit):
            rates.give_back(generation_id, choice.rates)
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
    return states


def _give_back(choice: Choice, model: str, generation_id: UUID) -> None:
    try:
        dispatch_queue().give_back_place(model, generation_id.hex)
        rates.give_back(generation_id, choice.rates)
    except redis.RedisError:
        _log.warning("place_lapses", generation=generation_id.hex, exc_info=True)


def _enqueue(task: GenerationTask) -> None:
    try:
        dispatch_queue().enqueue(task)
    except redis.RedisError:
        # Accepted is accepted: the sweep brings it in when Valkey is back.
        _log.warning("enqueue_left_to_sweep", generation=task.generation, exc_info=True)
