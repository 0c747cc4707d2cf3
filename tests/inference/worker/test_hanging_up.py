"""S1: whenever a client hangs up, its generation ends within one tick of the worker, once, and nothing is an error.

The site and the worker are real; the test runs the worker's ticks, and so knows how many there were.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from enum import StrEnum
from typing import Any
from uuid import UUID

import pytest
from asgiref.sync import sync_to_async

from accounts.models import LedgerEntry, Reservation
from accounts.tenancy import every_tenant
from inference.dispatch.delivery import delivery
from inference.dispatch.queue import dispatch_queue
from inference.messages import CancelReason, Delta, End, EndState, FinishReason
from inference.models import Generation, LanguageModel
from inference.settlement import start
from tests.factories import ApiKeyFactory, EntitlementFactory, TenantFactory
from tests.inference.api.asgi_client import AsgiClient
from tests.inference.worker.conftest import PROMPT, HandDrivenWorker, tokens_of

#: Four chunks of the worker's.
LONG_PROMPT = PROMPT * 3
CHUNK = 16
MAX_TOKENS = 12


class Moment(StrEnum):
    """When the client hangs up."""

    IN_PREFILL = "before the first token"
    IN_THE_MIDDLE = "in the middle"
    AT_THE_END = "just before the end"


@pytest.fixture
async def api(model: LanguageModel) -> AsyncIterator[AsgiClient]:
    @sync_to_async
    def key() -> str:
        tenant = TenantFactory()
        EntitlementFactory(tenant=tenant)
        return str(ApiKeyFactory(tenant=tenant).raw)

    yield AsgiClient(await key())
    await delivery().aclose()


def run_up_to(moment: Moment, worker: HandDrivenWorker, generation: str) -> None:
    match moment:
        case Moment.IN_PREFILL:
            worker.turns(2)
        case Moment.IN_THE_MIDDLE:
            worker.turn_until(lambda: len(tokens_of(worker.log(generation))) == MAX_TOKENS // 2)
        case Moment.AT_THE_END:
            worker.turn_until(lambda: len(tokens_of(worker.log(generation))) == MAX_TOKENS - 1)


@sync_to_async
def settled(worker: HandDrivenWorker) -> tuple[Generation, LedgerEntry]:
    """The one generation, and its one entry in the ledger, once the worker's thread has settled what ended."""
    worker.settlements.start()
    assert worker.settlements.flush(20)
    worker.settlements.stop()
    worker.settlements.join(20)
    with every_tenant("the test looks at what was settled"):
        assert not Reservation.objects.filter(settled_at=None).exists()
        return Generation.objects.get(), LedgerEntry.objects.get()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("moment", list(Moment))
async def test_s1_a_client_that_hangs_up_ends_its_generation_within_one_tick(
    api: AsgiClient, worker: HandDrivenWorker, caplog: pytest.LogCaptureFixture, moment: Moment, stream: bool
) -> None:
    body: dict[str, Any] = {
        "model": "tiny",
        "prompt": LONG_PROMPT,
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
        "stream": stream,
    }
    async with api.open("POST", "/v1/completions", body) as exchange:
        async with asyncio.timeout(20):
            while not dispatch_queue().depths("tiny"):
                await asyncio.sleep(0.01)
        claim = worker.claim()
        generation = claim.task.generation
        assert await sync_to_async(start)(UUID(generation), claim.epoch)
        run_up_to(moment, worker, generation)
        exchange.hang_up()
        await exchange.end()
    before = len(tokens_of(worker.log(generation)))
    worker.turn()  # what it publishes is answered with the cancel
    worker.turn()  # and that comes before anything else
    log = worker.log(generation)
    end = log[-1]
    assert isinstance(end, End)
    assert [entry.seq for entry in log if isinstance(entry, End)] == [end.seq]
    assert len(tokens_of(log)) - before == (moment is not Moment.IN_PREFILL), (
        "it ran for one tick more, and no longer"
    )
    assert worker.engine.keys == ()
    if moment is Moment.AT_THE_END:
        assert (end.state, end.finish_reason) == (EndState.COMPLETED, FinishReason.LENGTH)
    else:
        assert (end.state, end.cancel_reason) == (EndState.CANCELLED, CancelReason.CLIENT_DISCONNECTED)
    worker.run_dry()
    assert worker.log(generation) == log, "nothing follows the end"

    row, entry = await settled(worker)
    produced = sum(len(delta.tokens) for delta in log if isinstance(delta, Delta))
    run = 3 * CHUNK if moment is Moment.IN_PREFILL else len(LONG_PROMPT)
    assert row.state == end.state
    assert (entry.prompt_tokens, entry.completion_tokens) == (run, produced)
    assert delivery().following == 0
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []
