"""Whatever way a generation leaves, it is settled once: nothing stays reserved, and what was used is counted exactly.

Each way is walked by the product's own functions, as the process that is named walks it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import pytest
import redis
from django.utils import timezone

from accounts.models import Allowance, ApiKey, BudgetWindow, LedgerEntry, Reservation
from accounts.principal import Principal
from accounts.tenancy import every_tenant
from inference import ledger_check, recovery
from inference.cancellation import cancel
from inference.dispatch import claims, publishing
from inference.dispatch.claims import Claim
from inference.intake import Accepted
from inference.messages import CancelReason, Delta, End, EndState, Failure, FinishReason, Usage
from inference.models import Generation, LanguageModel
from inference.settlement import settle, settle_from_log, start
from tests.factories import LanguageModelFactory
from tests.inference.dispatch.conftest import let_lease_lapse
from tests.inference.doors import WORKER, accepted, claimed, entitled_principal, publish_tokens, row

pytestmark = pytest.mark.django_db(transaction=True)

PROMPT, MOST = 3, 10


@dataclass(frozen=True)
class Way:
    """One generation, and the hands of the processes that it passes through."""

    client: redis.Redis
    model: LanguageModel
    who: Principal
    got: Accepted

    @property
    def id(self) -> uuid.UUID:
        return self.got.generation_id

    def claim(self) -> Claim:
        """A worker takes it."""
        return claimed(self.client, self.model)

    def end(self, claim: Claim, state: EndState, *, run: int = PROMPT, answered: int = 0) -> End:
        """Its last entry, after so many of its prompt's tokens were run and of its answer's were published."""
        return End(
            seq=answered + 1,
            epoch=claim.epoch,
            state=state,
            usage=Usage(prompt_tokens=run, completion_tokens=answered),
            finish_reason=FinishReason.STOP if state is EndState.COMPLETED else None,
            cancel_reason=CancelReason.CLIENT_DISCONNECTED if state is EndState.CANCELLED else None,
            failure=Failure(code="internal_error", message="It failed.")
            if state is EndState.FAILED
            else None,
        )

    def publish(self, claim: Claim, end: End) -> None:
        """The worker writes the end to the token log."""
        publications = [(claim.task.generation, claim.epoch, end)]
        assert publishing.publish(self.client, WORKER, publications).refused == set()

    def leave(self, claim: Claim, end: End) -> None:
        """The worker ends it in its three steps, each of them twice, as after a crash in between."""
        self.publish(claim, end)
        assert settle(self.id, claim.epoch, end)
        assert not settle(self.id, claim.epoch, end)
        unused = PROMPT + MOST - end.usage.prompt_tokens - end.usage.completion_tokens
        for _ in range(2):
            claims.acknowledge(self.client, claim.task.generation, claim.epoch, unused)

    def lose_worker(self, claim: Claim) -> None:
        """The worker is gone, and its lease lapses."""
        let_lease_lapse(self.client, claim.task.generation, self.model.name)


def completed(way: Way) -> None:
    claim = way.claim()
    publish_tokens(way.client, claim, "a", "b")
    way.leave(claim, way.end(claim, EndState.COMPLETED, answered=2))


def as_long_as_it_may(way: Way) -> None:
    claim = way.claim()
    publish_tokens(way.client, claim, *"abcdefghij")
    way.leave(claim, way.end(claim, EndState.COMPLETED, answered=MOST))


def cancelled_while_it_waits(way: Way) -> None:
    cancel(way.id, CancelReason.CLIENT_REQUESTED)
    cancel(way.id, CancelReason.OPERATOR_REQUESTED)


def cancelled_in_its_prompt(way: Way) -> None:
    claim = way.claim()
    cancel(way.id, CancelReason.CLIENT_DISCONNECTED)
    way.leave(claim, way.end(claim, EndState.CANCELLED, run=2))


def q14_the_client_leaves_after_k_tokens(way: Way) -> None:
    claim = way.claim()
    publish_tokens(way.client, claim, "a", "b", "c", "d")
    cancel(way.id, CancelReason.CLIENT_DISCONNECTED)
    way.leave(claim, way.end(claim, EndState.CANCELLED, answered=4))


def cancelled_while_nobody_has_it_any_more(way: Way) -> None:
    claim = way.claim()
    publish_tokens(way.client, claim, "a", "b", "c")
    assert claims.requeue(way.client, claim.task.generation, claim.epoch)
    cancel(way.id, CancelReason.CLIENT_REQUESTED)


def cancelled_after_its_end_was_written(way: Way) -> None:
    claim = way.claim()
    publish_tokens(way.client, claim, "a")
    way.publish(claim, way.end(claim, EndState.COMPLETED, answered=1))
    way.lose_worker(claim)
    cancel(way.id, CancelReason.CLIENT_REQUESTED)
    assert row(way.got.task.generation).state == "completed"


def failed(way: Way) -> None:
    claim = way.claim()
    publish_tokens(way.client, claim, "a")
    way.leave(claim, way.end(claim, EndState.FAILED, answered=1))


def failed_before_anything_ran(way: Way) -> None:
    claim = way.claim()
    way.leave(claim, way.end(claim, EndState.FAILED, run=0))


def overdue_while_it_waits(way: Way) -> None:
    with every_tenant("the test lets time pass"):
        Generation.objects.filter(id=way.id).update(created_at=timezone.now() - timedelta(days=1))
    assert recovery.expire_overdue() == 1
    assert recovery.expire_overdue() == 0
    assert row(way.got.task.generation).state == "expired"


def overdue_while_it_runs(way: Way) -> None:
    claim = way.claim()
    publish_tokens(way.client, claim, "a", "b")
    with every_tenant("the test lets time pass"):
        Generation.objects.filter(id=way.id).update(created_at=timezone.now() - timedelta(days=1))
    assert recovery.expire_overdue() == 1
    way.leave(claim, way.end(claim, EndState.EXPIRED, answered=2))


def access_revoked_while_it_waits(way: Way) -> None:
    with every_tenant("the test revokes"):
        ApiKey.objects.filter(id=way.who.api_key_id).update(revoked_at=timezone.now())
    assert recovery.cancel_revoked() == 1


def worker_lost_and_another_goes_on(way: Way) -> None:
    first = way.claim()
    publish_tokens(way.client, first, "a", "b")
    way.lose_worker(first)
    second = way.claim()
    assert (second.epoch, len(second.log)) == (2, 2)
    third = Delta(seq=3, epoch=2, tokens=[3], text="c")
    publishing.publish(way.client, WORKER, [(second.task.generation, second.epoch, third)])
    # The first one wakes up and knows of nothing.
    assert not start(way.id, first.epoch)
    assert not settle(way.id, first.epoch, way.end(first, EndState.COMPLETED, answered=2))
    way.leave(second, way.end(second, EndState.COMPLETED, answered=3))
    assert not settle(way.id, first.epoch, way.end(first, EndState.COMPLETED, answered=2))


def worker_lost_after_the_end_and_before_it_settled(way: Way) -> None:
    claim = way.claim()
    publish_tokens(way.client, claim, "a", "b")
    way.publish(claim, way.end(claim, EndState.COMPLETED, answered=2))
    way.lose_worker(claim)
    # Who claims what has its end already does the rest only.
    assert settle_from_log(way.id)
    assert not settle_from_log(way.id)


def worker_lost_and_nobody_wants_it_any_more(way: Way) -> None:
    claim = way.claim()
    publish_tokens(way.client, claim, "a", "b")
    way.lose_worker(claim)
    assert claims.claim(way.client, WORKER, "another-model", 60).claim is None
    second = way.claim()
    cancel(way.id, CancelReason.DETACHED)
    way.leave(second, way.end(second, EndState.CANCELLED, answered=2))


def web_lost_before_it_was_queued(way: Way) -> None:
    way.client.flushall()
    assert recovery.sweep() == 1
    assert recovery.sweep() == 0
    completed(way)


def web_lost_while_it_cancelled(way: Way) -> None:
    with every_tenant("as if the web had died between the database and Valkey"):
        Generation.objects.filter(id=way.id).update(
            cancel_requested_at=timezone.now(), cancel_reason="client_requested"
        )
    assert recovery.sweep() == 1
    assert recovery.sweep() == 0


def web_and_valkey_lost_while_it_cancelled(way: Way) -> None:
    way.client.flushall()
    web_lost_while_it_cancelled(way)


#: Each way, and what it costs: tokens of the prompt, and of the answer.
WAYS: list[tuple[Callable[[Way], None], int, int]] = [
    (completed, PROMPT, 2),
    (as_long_as_it_may, PROMPT, MOST),
    (cancelled_while_it_waits, 0, 0),
    (cancelled_in_its_prompt, 2, 0),
    (q14_the_client_leaves_after_k_tokens, PROMPT, 4),
    (cancelled_while_nobody_has_it_any_more, PROMPT, 3),
    (cancelled_after_its_end_was_written, PROMPT, 1),
    (failed, PROMPT, 1),
    (failed_before_anything_ran, 0, 0),
    (overdue_while_it_waits, 0, 0),
    (overdue_while_it_runs, PROMPT, 2),
    (access_revoked_while_it_waits, 0, 0),
    (worker_lost_and_another_goes_on, PROMPT, 3),
    (worker_lost_after_the_end_and_before_it_settled, PROMPT, 2),
    (worker_lost_and_nobody_wants_it_any_more, PROMPT, 2),
    (web_lost_before_it_was_queued, PROMPT, 2),
    (web_lost_while_it_cancelled, 0, 0),
    (web_and_valkey_lost_while_it_cancelled, 0, 0),
]


@pytest.mark.parametrize(("walk", "prompt", "answer"), WAYS, ids=[walk.__name__ for walk, *_ in WAYS])
def test_q5_every_way_out_settles_once_and_leaves_nothing_reserved(
    valkey: redis.Redis, walk: Callable[[Way], None], prompt: int, answer: int
) -> None:
    model, who = LanguageModelFactory(), entitled_principal()
    way = Way(valkey, model, who, accepted(model, who, max_tokens=MOST))
    assert _standing() == {(1, PROMPT + MOST, 0)}
    walk(way)
    assert row(way.got.task.generation).ended_at is not None
    assert _standing() == {(0, 0, prompt + answer)}
    with every_tenant("the test looks"):
        entry = LedgerEntry.objects.get()
        held = Reservation.objects.get()
    assert (entry.prompt_tokens, entry.completion_tokens) == (prompt, answer)
    assert (held.settled_tokens, held.settled_at) == (prompt + answer, entry.settled_at)
    assert ledger_check.verify(lambda finding: pytest.fail(str(finding))).holds


def _standing() -> set[tuple[int, int, int]]:
    """What each window of each allowance says, with its allowance: live generations, tokens reserved and used."""
    with every_tenant("the test looks"):
        assert Allowance.objects.count() == 2
        windows = BudgetWindow.objects.select_related("allowance")
        assert windows.count() == 6
        return {(window.allowance.live_generations, window.reserved, window.used) for window in windows}
