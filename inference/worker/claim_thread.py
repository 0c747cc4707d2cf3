"""Claims work while there is room, ahead of the ticks, so that no stream waits for the database."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final
from uuid import UUID

import redis
import structlog
from django import db

from accounts.tenancy import every_tenant
from inference.dispatch import claims
from inference.dispatch.claims import Claim, ClaimOutcome
from inference.dispatch.wake import WakeListener
from inference.messages import End
from inference.models import Generation, RunOutcome
from inference.models.generation import TERMINAL_STATES
from inference.scheduler_settings import SchedulerSettings
from inference.scheduling.claiming import Candidate
from inference.scheduling.memory import Capacity, Deferrals, Verdict
from inference.settlement import start
from inference.worker.backoff import Backoff
from inference.worker.holdings import NOBODY, Holdings
from inference.worker.kv_memory import KvMemory
from inference.worker.metrics import ClaimKind, WorkerMetrics
from inference.worker.progress import Progress
from inference.worker.requests import Admit, PlanRoom, RoomPlan
from inference.worker.settlement_thread import Ended, SettlementThread
from inference.worker.threads import AWAY, WorkerThread
from inference.worker.timeline import RunTimeline

_log = structlog.get_logger(__name__)

#: How often an idle worker asks for work although nothing woke it: a lapsed lease wakes nobody.
_IDLE_S: Final = 1.0
#: How often a worker without room looks whether it was woken. Room that is made ends its wait at once.
_LOOK_S: Final = 0.05
#: Longest wait for the tick thread to say whom it would preempt: longer than any tick that still counts as progress.
_ANSWER_S: Final = 30.0
#: However short the lease: ticks that finished so lately do not stand still. An idle tick thread rests for half of it.
_SHORTEST_STANDSTILL_S: Final = 1.0
_FIRST_RETRY_S: Final = 0.05
_LONGEST_RETRY_S: Final = 2.0


class ClaimThread(WorkerThread):
    """Claims one generation after another while there is room, and passes each to the tick thread.

    Where there is none for what comes first, and it is of a higher lane than something that runs, the tick thread is
    asked who could give way. Whom that is for is claimed against their room, and they leave when it is admitted. Only
    this thread claims for the worker, so nobody else takes that room; if the claim comes to nothing, nobody leaves.

    Nothing is claimed while no tick has finished for half a lease: others may take what a worker that hangs has lost,
    and what is new.
    """

    def __init__(
        self,
        client: redis.Redis,
        worker: str,
        model: str,
        lease_s: float,
        holdings: Holdings,
        memory: KvMemory,
        settings: Callable[[], SchedulerSettings],
        settlements: SettlementThread,
        metrics: WorkerMetrics,
        ask: Callable[[Admit | PlanRoom], object],
        progress: Progress,
        look_around: Callable[[], object],
    ) -> None:
        """``look_around`` tells the ``memory`` what other workers can hold by now."""
        super().__init__("claims")
        self._client = client
        self._worker = worker
        self._model = model
        self._lease_s = lease_s
        self._holdings = holdings
        self._memory = memory
        self._settings = settings
        self._settlements = settlements
        self._metrics = metrics
        self._ask = ask
        self._progress = progress
        self._look_around = look_around
        self._standstill_s = max(lease_s / 2, _SHORTEST_STANDSTILL_S)
        self._standing_still = False
        self._failing = False
        self._deferrals: Deferrals = ()

    def stop(self) -> None:
        super().stop()
        self._holdings.interrupt()

    def work(self) -> None:
        backoff = Backoff(_FIRST_RETRY_S, _LONGEST_RETRY_S)
        while not self._stopped.is_set():
            try:
                with WakeListener(self._client, self._model) as wake:
                    self._claim_until_stopped(wake, backoff)
            except AWAY as error:
                db.connections.close_all()
                if not self._failing:
                    _log.warning("claiming_failing", error=str(error))
                self._failing = True
                self._stopped.wait(backoff.delay())
            except Exception:  # noqa: BLE001 (a bug in one claim must not end all claiming)
                _log.exception("claiming_failed")
                self._stopped.wait(backoff.delay())

    def _claim_until_stopped(self, wake: WakeListener, backoff: Backoff) -> None:
        while not self._stopped.is_set():
            if self._ticks_stand_still():
                self._stopped.wait(_LOOK_S)
                continue
            changes = self._holdings.changes
            outcome = self._claim()
            plan = self._plan_room(outcome.deferred)
            if plan is not None:
                self._claim(plan)
            # Not before: a claim that finds no room needs no database, the one that is planned for it does.
            if self._failing:
                self._failing = False
                _log.info("claiming_recovered")
            backoff.reset()
            if plan is None and outcome.claim is None:
                self._wait(wake, changes if outcome.deferred else None)

    def _ticks_stand_still(self) -> bool:
        age_s = self._progress.age_s
        stands_still = age_s > self._standstill_s
        if stands_still and not self._standing_still:
            _log.warning("claiming_paused", reason="no tick finishes", seconds=round(age_s, 1))
        elif self._standing_still and not stands_still:
            _log.info("claiming_goes_on")
        self._standing_still = stands_still
        return stands_still

    def _claim(self, plan: RoomPlan | None = None) -> ClaimOutcome:
        """Claim what is next; by a plan only whom it is for, into the room of those who are to leave."""
        victims = NOBODY if plan is None else plan.victims
        asked_at = time.monotonic()
        outcome = claims.claim(
            self._client,
            self._worker,
            self._model,
            self._lease_s,
            capacity=self._memory.capacity(leaving=victims),
            deferrals=self._deferrals,
            promised=None if plan is None else plan.generation,
            cap=self._settings().lane_floor,
            look_again=lambda: self._capacity_by_now(victims),
        )
        claimed, candidate = outcome.claim, outcome.candidate
        if claimed is None or candidate is None or self._take(claimed, candidate, asked_at, victims):
            self._note(outcome)
        return outcome

    def _capacity_by_now(self, leaving: Mapping[str, int]) -> Capacity:
        self._look_around()
        return self._memory.capacity(leaving=leaving)

    def _note(self, outcome: ClaimOutcome) -> None:
        """Go by its ledger from now on. Not by that of a claim which came to nothing: it passed nobody."""
        known = {deferral.generation for deferral in self._deferrals}
        for deferral in outcome.deferrals:
            if deferral.generation not in known:
                self._metrics.deferrals(deferral.lane_rank).add()
        self._deferrals = outcome.deferrals

    def _plan_room(self, deferred: Sequence[Candidate]) -> RoomPlan | None:
        """Ask for room by preemption: whom it can be made for, and who would leave."""
        lowest = self._holdings.lowest_lane()
        if not self._settings().preemption or lowest is None:
            return None
        higher = tuple(candidate for candidate in deferred if candidate.lane_rank < lowest)
        if not higher:
            return None
        request = PlanRoom(higher)
        self._ask(request)
        try:
            return request.answer.result(_ANSWER_S)
        except TimeoutError:  # the tick thread does not come on: that is told elsewhere
            return None

    def _wait(self, wake: WakeListener, changes: int | None) -> None:
        """Until something comes to wait; or, ``changes`` given, until there may be room for what waits."""
        if changes is None:
            wake.wait(_IDLE_S)
            return
        until = time.monotonic() + _IDLE_S
        while time.monotonic() < until and not self._holdings.wait_for_change(changes, _LOOK_S):
            if wake.wait(0):
                return

    def _take(
        self, claim: Claim, candidate: Candidate, asked_at: float, instead_of: Mapping[str, int]
    ) -> bool:
        """Pass it on, to run or to be settled. False: it came to nothing, for it was a ghost or was given back."""
        key, lane = claim.task.generation, claim.task.lane
        last = claim.log[-1] if claim.log else None
        fits = candidate.verdict is not Verdict.NEVER_FITS
        if not fits or not candidate.head.tokens:  # it has only to be ended
            instead_of = NOBODY
        self._holdings.add(
            key,
            claim.epoch,
            asked_at,
            lane_rank=claim.task.lane_rank,
            occupies_slot=fits and not isinstance(last, End),
            bytes_=candidate.bytes,
            tenant=claim.task.tenant,
            awaits_room=bool(instead_of),
        )
        try:
            if isinstance(last, End):
                self._settlements.add(Ended(key, claim.epoch, last, claim.task.cost))
                kind = ClaimKind.ENDED
            elif not start(UUID(key), claim.epoch):
                self._lay_ghost(claim)
                kind = ClaimKind.GHOST
            elif self._stopped.is_set():
                self._give_back(claim)
                return False
            else:
                kind = _kind_of(claim)
                self._ask(Admit(claim, fits=fits, instead_of=instead_of))
        except BaseException:
            self._give_back(claim)
            raise
        self._metrics.claims(kind, lane).add()
        return kind is not ClaimKind.GHOST

    def _lay_ghost(self, claim: Claim) -> None:
        """The database would not have it run: it has ended there, or Valkey has lost data and counts epochs anew."""
        key = claim.task.generation
        with every_tenant("a worker runs every tenant's generations"):
            known = Generation.objects.filter(id=UUID(key)).values_list("state", "epoch").first()
        if known is None or known[0] in TERMINAL_STATES:
            claims.acknowledge(self._client, key, claim.epoch, claim.task.cost)
        else:
            claims.requeue(self._client, key, claim.epoch, epoch_floor=known[1])
        self._holdings.release(key, claim.epoch)
        _log.info("ghost_laid", generation=key, epoch=claim.epoch, known=known)

    def _give_back(self, claim: Claim) -> None:
        """Let another worker have it. If Valkey cannot be told, the lease lapses."""
        key = claim.task.generation
        self._settlements.report(RunTimeline(claim).left(RunOutcome.REQUEUED))
        self._holdings.release(key, claim.epoch)
        self._metrics.requeues.add()
        try:
            claims.requeue(self._client, key, claim.epoch, begun=False)
        except redis.RedisError as error:
            _log.warning("requeue_left_to_lease", generation=key, error=str(error))


def _kind_of(claim: Claim) -> ClaimKind:
    if claim.log_lost:
        return ClaimKind.LOG_LOST
    return ClaimKind.RESUMED if claim.log else ClaimKind.FRESH
