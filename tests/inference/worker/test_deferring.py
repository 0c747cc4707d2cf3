"""A real claim thread on a real queue: what it passes on to the tick thread, which is the test, and in which order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from uuid import UUID

import pytest
import redis
from django import db
from django.utils import timezone

from accounts.tenancy import every_tenant
from inference.models import Generation, LanguageModel
from inference.models.generation import GenerationState
from inference.scheduling.memory import RESERVED_AFTER
from inference.worker import claim_thread
from inference.worker.claim_thread import ClaimThread
from inference.worker.holdings import Holdings
from inference.worker.kv_memory import KvBudget, KvMemory
from inference.worker.metrics import ClaimKind, WorkerMetrics
from inference.worker.requests import Admit, Request
from inference.worker.settlement_thread import SettlementThread
from tests.inference.doors import entitled_principal
from tests.inference.worker.conftest import LEASE_S, SETTINGS, GettingOn, no_others, submit, wait_until

#: Tokens that the worker has memory for, and rows enough for anybody.
MEMORY, ROWS = 100, 50
PROMPT = [5, 6, 7, 8]
NORMAL = 1


class Claiming:
    """The thread, and the generations that it asked to have admitted, as they came."""

    def __init__(self, client: redis.Redis, model: LanguageModel) -> None:
        self.metrics = WorkerMetrics()
        self.holdings = Holdings(ROWS, LEASE_S)
        self._admitted: list[Admit] = []
        self._changed = threading.Lock()
        memory = KvMemory(
            self.holdings,
            KvBudget(total=MEMORY, watermark=0, prefix_cache=0),
            bytes_per_token=1,
            step=1,
        )
        self.thread = ClaimThread(
            client,
            "worker",
            model.name,
            LEASE_S,
            self.holdings,
            memory,
            lambda: SETTINGS,
            SettlementThread(client, self.holdings, self.metrics),
            self.metrics,
            self._asked,
            GettingOn(),
            no_others,
        )

    def _asked(self, request: Request) -> None:
        assert isinstance(request, Admit), "nobody of a lower lane runs"
        with self._changed:
            self._admitted.append(request)

    @property
    def admitted(self) -> list[str]:
        with self._changed:
            return [admit.claim.task.generation for admit in self._admitted]

    def end(self, *generations: str) -> None:
        for generation in generations:
            self.holdings.release(generation, 1)

    def stop(self) -> None:
        """What it has passed on is counted by then."""
        self.thread.stop()
        self.thread.join(10)
        assert not self.thread.is_alive()


@pytest.fixture
def claiming(model: LanguageModel, valkey: redis.Redis) -> Iterator[Claiming]:
    made = Claiming(valkey, model)
    yield made
    made.stop()


@pytest.fixture
def ask(model: LanguageModel) -> Callable[[int], str]:
    """Accepts a generation that needs memory for so many tokens, of a tenant of its own: the oldest is first."""

    def accept(tokens: int) -> str:
        return submit(model, by=entitled_principal(), prompt=PROMPT, max_tokens=tokens - len(PROMPT))

    return accept


def test_a_large_request_that_was_passed_often_enough_is_next_whoever_else_fits(
    claiming: Claiming, ask: Callable[[int], str]
) -> None:
    first, large = ask(10), ask(95)
    small = [ask(10) for _ in range(2 * RESERVED_AFTER)]
    claiming.thread.start()
    passed_by = [first, *small[:RESERVED_AFTER]]
    wait_until(lambda: len(claiming.admitted) >= len(passed_by))
    claiming.end(*passed_by)
    wait_until(lambda: large in claiming.admitted)
    assert claiming.admitted == [*passed_by, large]
    claiming.end(large)
    wait_until(lambda: len(claiming.admitted) == 2 + len(small))
    assert claiming.admitted[-RESERVED_AFTER:] == small[RESERVED_AFTER:]


def test_every_request_that_found_no_room_is_counted_once_also_one_that_another_s_reserve_keeps_from_trying_again(
    claiming: Claiming, ask: Callable[[int], str]
) -> None:
    """The choice that defers the second large one admits one behind it, which reserves all room for the first."""
    first, large = ask(10), ask(95)
    small = [ask(10) for _ in range(RESERVED_AFTER - 1)]
    other = ask(94)
    small.append(ask(10))
    claiming.thread.start()
    wait_until(lambda: len(claiming.admitted) == 1 + len(small))
    assert claiming.admitted == [first, *small]
    wait_until(lambda: claiming.metrics.deferrals(NORMAL).value == 2)
    claiming.end(first, *small)
    wait_until(lambda: large in claiming.admitted)
    assert claiming.metrics.deferrals(NORMAL).value == 2
    claiming.end(large)
    wait_until(lambda: other in claiming.admitted)
    claiming.stop()
    assert claiming.metrics.deferrals(NORMAL).value == 2


def test_nobody_is_passed_by_a_request_that_is_given_back_again_and_again_while_the_database_is_away(
    claiming: Claiming, ask: Callable[[int], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else room would be kept for the large one in the end, and the small one would wait for that."""
    first, _, small = ask(10), ask(95), ask(10)
    start, away = claim_thread.start, list[int]()

    def away_at_first(generation_id: UUID, epoch: int) -> bool:
        if generation_id.hex == small and len(away) < RESERVED_AFTER:
            away.append(epoch)
            raise db.OperationalError("the database is away")
        return start(generation_id, epoch)

    monkeypatch.setattr(claim_thread, "start", away_at_first)
    claiming.thread.start()
    wait_until(lambda: claiming.admitted == [first, small])
    claiming.stop()
    assert len(away) == RESERVED_AFTER
    assert claiming.metrics.deferrals(NORMAL).value == 1


def test_nobody_is_passed_by_a_ghost(claiming: Claiming, ask: Callable[[int], str]) -> None:
    first, _ = ask(10), ask(95)
    ghosts = [ask(10) for _ in range(RESERVED_AFTER)]
    small = ask(10)
    with every_tenant("the test ends them behind the queue's back"):
        Generation.objects.filter(id__in=[UUID(ghost) for ghost in ghosts]).update(
            state=GenerationState.CANCELLED, ended_at=timezone.now()
        )
    claiming.thread.start()
    wait_until(lambda: claiming.admitted == [first, small])
    claiming.stop()
    assert claiming.metrics.claims(ClaimKind.GHOST, "normal").value == len(ghosts)
    assert claiming.metrics.deferrals(NORMAL).value == 1
