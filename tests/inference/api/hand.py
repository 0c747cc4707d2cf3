"""A worker's hand: runs generations word by word, as the test says, through the real dispatch."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID

import redis
from django.db import connections

from inference import settlement
from inference.dispatch import publishing
from inference.dispatch.claims import Claim, acknowledge, claim
from inference.messages import (
    CancelReason,
    Delta,
    End,
    EndState,
    Failure,
    FinishReason,
    PrefillProgress,
    Publication,
    Usage,
)
from inference.tokenization.tokenizer import Tokenizer
from inference.worker.sequences import RunningSequence

WORKER = "worker-of-the-test"
LEASE_S = 60.0
#: Longest wait for something to be queued or cancelled.
PATIENCE_S = 60.0


class Run:
    """One claimed generation."""

    def __init__(self, client: redis.Redis, claimed: Claim) -> None:
        self._client = client
        self.claim = claimed
        self.generation = claimed.task.generation
        self._seq = len(claimed.log)
        self._tokens = 0

    async def say(self, *texts: str) -> None:
        """Publish one token a text; an empty one is held back."""
        for text in texts:
            self._seq += 1
            self._tokens += 1
            await self._publish(
                Delta(seq=self._seq, epoch=self.claim.epoch, tokens=[self._tokens], text=text)
            )

    async def produce(self, tokenizer: Tokenizer, tokens: Sequence[int]) -> None:
        """Publish these tokens, one a tick, with the text and the end that a worker makes of them."""
        sequence = RunningSequence(self.claim, 0, tokenizer)
        for token in tokens:
            for entry in sequence.commit([token]):
                await self._publish(entry)
                if isinstance(entry, End):
                    await asyncio.to_thread(self._settle, entry)
                    return

    async def prefill(self, done: int) -> None:
        await self._publish(PrefillProgress(done=done, total=len(self.claim.task.prompt)))

    async def finish(self, reason: FinishReason = FinishReason.STOP) -> None:
        await self._end(EndState.COMPLETED, finish_reason=reason)

    async def fail(self, code: str, message: str) -> None:
        await self._end(EndState.FAILED, failure=Failure(code=code, message=message))

    async def end_cancelled(self, reason: CancelReason) -> None:
        await self._end(reason.end_state, cancel_reason=reason)

    async def cancelled(self) -> CancelReason:
        """What the worker is told to end it for, once it is told."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                outcome = await asyncio.to_thread(publishing.publish, self._client, WORKER, [])
                if self.generation in outcome.cancelled:
                    return outcome.cancelled[self.generation]
                await asyncio.sleep(0.01)

    async def is_cancelled(self) -> bool:
        outcome = await asyncio.to_thread(publishing.publish, self._client, WORKER, [])
        return self.generation in outcome.cancelled

    async def _publish(self, publication: Publication) -> None:
        outcome = await asyncio.to_thread(
            publishing.publish, self._client, WORKER, [(self.generation, self.claim.epoch, publication)]
        )
        assert not outcome.refused

    async def _end(self, state: EndState, **fields: object) -> None:
        self._seq += 1
        usage = Usage(
            prompt_tokens=len(self.claim.task.prompt),
            completion_tokens=self._tokens,
            accepted_prediction_tokens=self._tokens // 2,
            rejected_prediction_tokens=3,
        )
        end = End(seq=self._seq, epoch=self.claim.epoch, state=state, usage=usage, **fields)  # type: ignore[arg-type]
        await self._publish(end)
        await asyncio.to_thread(self._settle, end)

    def _settle(self, end: End) -> None:
        try:
            assert settlement.settle(UUID(hex=self.generation), self.claim.epoch, end)
            acknowledge(self._client, self.generation, self.claim.epoch, 0)
        finally:
            connections.close_all()


class Hand:
    def __init__(self, client: redis.Redis, model: str) -> None:
        self._client = client
        self._model = model

    async def take(self) -> Run:
        """Claim the next generation, when there is one."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                claimed = await asyncio.to_thread(self._claim)
                if claimed is not None:
                    return Run(self._client, claimed)
                await asyncio.sleep(0.01)

    async def take_if_any(self) -> Run | None:
        """Claim the next generation, if one waits."""
        claimed = await asyncio.to_thread(self._claim)
        return None if claimed is None else Run(self._client, claimed)

    async def answer(self, texts: Sequence[str], reason: FinishReason = FinishReason.STOP) -> Run:
        """Take the next generation and run it to its end."""
        run = await self.take()
        await run.say(*texts)
        await run.finish(reason)
        return run

    async def finds_nothing(self) -> bool:
        """Whether nothing waits to be claimed."""
        return await asyncio.to_thread(self._claim) is None

    def _claim(self) -> Claim | None:
        try:
            claimed = claim(self._client, WORKER, self._model, LEASE_S).claim
            if claimed is not None:
                assert settlement.start(UUID(hex=claimed.task.generation), claimed.epoch)
            return claimed
        finally:
            connections.close_all()
