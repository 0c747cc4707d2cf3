"""A database without room: what cannot be written is not accepted, and what has ended is settled once there is room."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import closing
from http import HTTPStatus
from typing import Any, Final

import pytest
import redis
from django.db import OperationalError, connection
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from accounts.models import LaneAssignment, LedgerEntry
from accounts.tenancy import every_tenant
from inference.api.errors import ErrorCode, as_api_error
from inference.dispatch import token_log
from inference.dispatch.publishing import publish
from inference.intake import accept
from inference.messages import End
from inference.models import Generation
from inference.models.generation import GenerationState
from inference.worker.holdings import Holdings
from inference.worker.metrics import WorkerMetrics
from inference.worker.settlement_thread import Ended, SettlementThread
from tests.factories import LanguageModelFactory
from tests.inference.dispatch.conftest import wait_until
from tests.inference.doors import (
    LEASE_S,
    WORKER,
    accepted,
    claimed,
    end_of,
    entitled_principal,
    publish_tokens,
    row,
    submission,
)

pytestmark = pytest.mark.django_db(transaction=True)

_NO_LIMIT: Final = 1_000_000
#: Bytes that do not fit into what is left of any page that is already there.
_LARGE: Final = 20_000


class Room:
    """How much room the database has, for every connection of this process."""

    def __init__(self) -> None:
        self._pages = _NO_LIMIT

    def apply(self, connection: BaseDatabaseWrapper, **_: Any) -> None:
        with closing(connection.connection.cursor()) as cursor:
            cursor.execute(f"PRAGMA max_page_count = {self._pages}")

    def fill(self) -> None:
        """From now on the database file does not grow, and has no free page."""
        with connection.cursor() as cursor:
            cursor.execute("CREATE TABLE filler (bytes BLOB)")
            [self._pages] = cursor.execute("PRAGMA page_count").fetchone()
            self.apply(connection)
            with pytest.raises(OperationalError, match="full"):
                _take_all(cursor)

    def make(self) -> None:
        self._pages = _NO_LIMIT
        self.apply(connection)


def _take_all(cursor: Any) -> None:
    while True:
        cursor.execute("INSERT INTO filler VALUES (zeroblob(4096))")


@pytest.fixture
def room() -> Iterator[Room]:
    if connection.vendor != "sqlite":
        pytest.skip("SQLite alone can be given a limit")
    connection.ensure_connection()
    room = Room()
    connection_created.connect(room.apply)
    yield room
    connection_created.disconnect(room.apply)
    room.make()
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS filler")


def test_what_a_full_database_cannot_hold_is_not_accepted_and_leaves_nothing(
    valkey: redis.Redis, room: Room
) -> None:
    model, principal = LanguageModelFactory(context_length=2 * _LARGE), entitled_principal()
    room.fill()
    with pytest.raises(OperationalError, match="full") as failure:
        accept(principal, submission(model, prompt=[300] * _LARGE))
    answer = as_api_error(failure.value)
    assert (answer.status, answer.code) == (HTTPStatus.SERVICE_UNAVAILABLE, ErrorCode.SERVICE_UNAVAILABLE)
    assert answer.response_headers()["Retry-After"] == "2"
    with every_tenant("the test looks for leftovers"):
        assert not Generation.objects.exists()
        assert not LaneAssignment.objects.exists()
    assert valkey.keys(f"*{model.name}*") == []

    room.make()
    result = accept(principal, submission(model, prompt=[300] * _LARGE))
    assert row(result.task.generation).state == GenerationState.QUEUED


def test_what_ended_while_the_database_was_full_is_settled_when_there_is_room(
    valkey: redis.Redis, room: Room
) -> None:
    model = LanguageModelFactory()
    accepted(model, keep_output=True)
    got = claimed(valkey, model)
    generation = got.task.generation
    publish_tokens(valkey, got, secrets.token_hex(_LARGE))
    end = end_of(got, 2, completion_tokens=1)
    publish_end(valkey, got.epoch, generation, end)
    holdings, metrics = Holdings(1, LEASE_S), WorkerMetrics()
    holdings.add(generation, got.epoch, 0.0, lane_rank=1, occupies_slot=False)
    settlements = SettlementThread(valkey, holdings, metrics)
    room.fill()
    settlements.start()
    try:
        settlements.add(Ended(generation, got.epoch, end, got.task.cost))
        wait_until(lambda: retries(metrics) >= 2)
        # Its reader has the end; the books do not, and do not lie.
        assert token_log.read(valkey, generation)[-1] == end
        assert row(generation).state == GenerationState.RUNNING
        assert holdings.holds(generation, got.epoch)

        room.make()
        assert settlements.flush(30)
    finally:
        settlements.stop()
        settlements.join(10)
    assert row(generation).state == GenerationState.COMPLETED
    with every_tenant("the test looks at the ledger"):
        [entry] = LedgerEntry.objects.all()
    assert (entry.prompt_tokens, entry.completion_tokens) == (3, 1)


def publish_end(client: redis.Redis, epoch: int, generation: str, end: End) -> None:
    assert publish(client, WORKER, [(generation, epoch, end)]).refused == set()


def retries(metrics: WorkerMetrics) -> float:
    return metrics.counters.snapshot()["settlement_retries_total"]
