"""What becomes of accepted generations in the ledger's machine: run, ended, cancelled, forgotten, healed."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from inference import recovery
from inference.cancellation import cancel
from inference.dispatch import claims, publishing
from inference.dispatch.queue import dispatch_queue
from inference.messages import (
    CancelReason,
    Delta,
    End,
    EndState,
    Failure,
    FinishReason,
    Usage,
    produced_usage,
)
from inference.settlement import settle, settle_from_log, start
from tests.inference.admission.bookkeeping import LEASE_S, Bookkeeping, Run, picks
from tests.inference.admission.mortal import mortal
from tests.inference.doors import WORKER

_MUCH = Usage(prompt_tokens=1000, completion_tokens=1000)


def _end(run: Run, usage: Usage, how: str) -> End:
    failed = how == "failed"
    return End(
        seq=len(run.log) + 1,
        epoch=run.epoch,
        state=EndState.FAILED if failed else EndState.COMPLETED,
        usage=usage,
        finish_reason=None if failed else FinishReason(how),
        failure=Failure(code="engine_fault", message="It failed.") if failed else None,
    )


class Working(Bookkeeping):
    """The rules of workers, cancels and sweeps."""

    @rule()
    def claim(self) -> None:
        claimed = claims.claim(self.client, WORKER, self.model.name, LEASE_S).claim
        if claimed is None:
            return
        generation = UUID(hex=claimed.task.generation)
        if generation in self.runs:
            self.ghosts.append(self.runs.pop(generation))
        if claimed.log and isinstance(claimed.log[-1], End):
            # Its last owner fell silent between the end and its settlement.
            assert settle_from_log(generation) == (generation in self.live)
            assert claims.acknowledge(self.client, claimed.task.generation, claimed.epoch, 0)
        else:
            assert start(generation, claimed.epoch)
            self.runs[generation] = Run(generation, claimed.epoch, list(claimed.log), claimed.cancel)

    @precondition(lambda self: self.running())
    @rule(pick=picks, tokens=st.integers(1, 4))
    def produce(self, pick: int, tokens: int) -> None:
        run = self.pick_of(self.running(), pick)
        produced = produced_usage(0, run.log).completion_tokens
        tokens = min(tokens, self.live[run.generation].answer - produced)
        if tokens > 0:
            delta = Delta(seq=len(run.log) + 1, epoch=run.epoch, tokens=[5] * tokens, text="a")
            assert not publishing.publish(self.client, WORKER, [(run.hex, run.epoch, delta)]).refused
            run.log.append(delta)

    @precondition(lambda self: self.running())
    @rule(
        pick=picks,
        how=st.sampled_from(["stop", "length", "failed"]),
        usage=st.tuples(st.booleans(), st.floats(0, 1)),
        gets=st.sampled_from(["to the end", "to the end", "to the settlement", "to the log"]),
    )
    def finish(self, pick: int, how: str, usage: tuple[bool, float], gets: str) -> None:
        """End it with any usage that it may have, by a worker that gets as far as that."""
        run = self.pick_of(self.running(), pick)
        live = self.live[run.generation]
        counts = Usage(
            prompt_tokens=live.prompt if usage[0] else 0, completion_tokens=round(live.answer * usage[1])
        )
        end = _end(run, counts, how)
        assert not publishing.publish(self.client, WORKER, [(run.hex, run.epoch, end)]).refused
        run.log.append(end)
        run.closed = True
        if gets == "to the log":
            return
        assert settle(run.generation, run.epoch, end)
        self.observe()
        assert self.ended[run.generation] == counts.prompt_tokens + counts.completion_tokens
        if gets == "to the end":
            assert claims.acknowledge(self.client, run.hex, run.epoch, 0)
            del self.runs[run.generation]

    @precondition(lambda self: self.runs)
    @rule(pick=picks)
    def fall_silent(self, pick: int) -> None:
        """Its lease runs out: another claim, a cancel or the sweep may have it."""
        self.let_lapse(self.pick_of(list(self.runs.values()), pick).generation)

    @precondition(lambda self: self.ended)
    @rule(pick=picks, epoch=st.sampled_from([0, 1, 99]))
    def settle_again(self, pick: int, epoch: int) -> None:
        generation = self.pick_of(sorted(self.ended), pick)
        assert not settle(generation, epoch, _end(Run(generation, epoch, [], None), _MUCH, "stop"))

    @precondition(lambda self: self.ghosts)
    @rule(pick=picks)
    def settle_as_a_ghost(self, pick: int) -> None:
        """A worker that was stopped past its lease goes on as if nothing had happened."""
        ghost = self.pick_of(self.ghosts, pick)
        end = _end(ghost, _MUCH, "stop")
        assert publishing.publish(self.client, WORKER, [(ghost.hex, ghost.epoch, end)]).refused
        assert not settle(ghost.generation, ghost.epoch, end)

    @precondition(lambda self: self.live)
    @rule(pick=picks, reason=st.sampled_from([CancelReason.CLIENT_REQUESTED, CancelReason.TIMED_OUT]))
    def cancel_one(self, pick: int, reason: CancelReason) -> None:
        generation = self.pick_of(sorted(self.live), pick)
        cancel(generation, reason)
        self.cancelled.add(generation)

    @precondition(lambda self: self.live)
    @rule(pick=picks)
    def cancel_and_die(self, pick: int) -> None:
        """The database knows, and Valkey was not told: the sweep is to do the rest."""
        generation = self.pick_of(sorted(self.live), pick)
        with mortal() as die:
            die()
            cancel(generation, CancelReason.CLIENT_DISCONNECTED)
        self.cancelled.add(generation)
        assert generation in self.live

    @precondition(lambda self: any(run.generation in self.cancelled for run in self.running()))
    @rule(pick=picks)
    def obey(self, pick: int) -> None:
        """A worker ends what it was told to, if it was."""
        run = self.pick_of([run for run in self.running() if run.generation in self.cancelled], pick)
        told = publishing.publish(self.client, WORKER, []).cancelled
        if run.hex not in told:
            return
        reason = told[run.hex]
        usage = produced_usage(self.live[run.generation].prompt, run.log)
        end = End(
            seq=len(run.log) + 1,
            epoch=run.epoch,
            state=reason.end_state,
            usage=usage,
            cancel_reason=reason,
        )
        assert not publishing.publish(self.client, WORKER, [(run.hex, run.epoch, end)]).refused
        assert settle(run.generation, run.epoch, end)
        assert claims.acknowledge(self.client, run.hex, run.epoch, 0)
        del self.runs[run.generation]
        self.observe()
        assert self.ended[run.generation] == usage.prompt_tokens + usage.completion_tokens

    @rule()
    def sweep(self) -> None:
        recovery.sweep()
        self.observe()
        waiting = dispatch_queue().contains([generation.hex for generation in self.live])
        assert waiting == {generation.hex for generation in self.live}, "all that is live waits or runs"

    @rule()
    def expire_overdue(self) -> None:
        recovery.expire_overdue()
        oldest = self.now() - timedelta(hours=1)
        self.cancelled |= {one.id for one in self.live.values() if one.reserved_at < oldest}

    @precondition(lambda self: self.live)
    @rule()
    def lose_valkey(self) -> None:
        """The queue, the leases and the logs are gone; rates begin anew."""
        self.client.flushall()
        self.runs.clear()
        self.ghosts.clear()
        for allowance in self.allowances:
            allowance.rates.clear()
