"""One running sequence: tokens in, log entries out."""

from __future__ import annotations

import time
from collections.abc import Sequence

from inference.dispatch.claims import Claim
from inference.messages import (
    CancelReason,
    Delta,
    End,
    EndState,
    Failure,
    FinishReason,
    LogEntry,
    Usage,
    produced_usage,
)
from inference.tokenization.detokenizer import Detokenizer
from inference.tokenization.stop_strings import StopMatcher
from inference.tokenization.tokenizer import Tokenizer
from inference.worker.timeline import RunTimeline

#: What a client is told of a fault: nothing of our insides.
INTERNAL_ERROR = Failure(
    code="internal_error",
    message="The server failed while it generated this answer. Send the request again; if it fails again, "
    "give the operator the generation's id.",
)


def too_large(need: int, most: int) -> Failure:
    """What a client is told whose prompt and answer ``need`` more tokens of memory than the ``most`` that there are."""
    return Failure(
        code="kv_memory_exceeded",
        message=f"Prompt and answer need memory for {need} tokens, and the model's worker has memory for {most}. "
        "Send a shorter prompt, ask for a shorter answer, or have the operator raise the model's KV budget.",
    )


class ReplayMismatchError(Exception):
    """The logged tokens do not give the logged text: continuing would contradict what was already sent."""


def failed_end(claim: Claim) -> End:
    """The end of a claim that could not be made to run at all."""
    return End(
        seq=claim.log[-1].seq + 1 if claim.log else 1,
        epoch=claim.epoch,
        state=EndState.FAILED,
        usage=produced_usage(len(claim.task.prompt), claim.log),
        failure=INTERNAL_ERROR,
    )


class RunningSequence:
    """A claimed generation while this worker runs it. Numbers its log entries and knows when its text ends.

    Text is the detokenizer's, cut before the first stop string. A token that ends the text (one of the model's end
    tokens, the one that completes a stop string, the last of ``max_tokens``) is logged and counted like any other.
    """

    def __init__(
        self, claim: Claim, order: int, tokenizer: Tokenizer, claimed_at: float | None = None
    ) -> None:
        """``claimed_at``: monotonic seconds; now, if not given."""
        self.key = claim.task.generation
        self.task = claim.task
        self.epoch = claim.epoch
        #: Its admission's number, growing.
        self.order = order
        #: Everything produced, by earlier owners too.
        self.emitted = [token for entry in claim.log if isinstance(entry, Delta) for token in entry.tokens]
        #: How much of that it began with.
        self.resumed_from = len(self.emitted)
        before = produced_usage(len(claim.task.prompt), claim.log)
        #: Drafted tokens that became part of the answer, and those that did not; under earlier owners too.
        self.accepted = before.accepted_prediction_tokens
        self.rejected = before.rejected_prediction_tokens
        #: How often it had to make room before this claim.
        self.preemptions = claim.preemptions
        #: What speaks for its being the cause of steps that failed before this claim.
        self.suspicion = claim.suspicion
        #: Whether a chunk of it was run in this claim.
        self.begun = False
        #: Whether it was decided if it speculates.
        self.slot_offered = False
        #: Tokens of the prompt that the prefix cache had when the generation first ran; None before anything of it has.
        self.cached_tokens = before.cached_tokens if claim.log else claim.cached
        #: Unix seconds, if this claim had it. Of an earlier one its log tells.
        self.first_token_at: float | None = None
        if claimed_at is None:
            claimed_at = time.monotonic()
        self.timeline = RunTimeline(claim, claimed_at)
        self._last_token_at = None if claim.silent_s is None else claimed_at - claim.silent_s
        self._logged = "".join(entry.text for entry in claim.log if isinstance(entry, Delta))
        self._last_seq = claim.log[-1].seq if claim.log else 0
        self._read = 0
        self._end_tokens = tokenizer.eos_ids
        self._detokenizer = Detokenizer(tokenizer)
        self._matcher = StopMatcher(claim.task.stop)

    @property
    def ends_with_next(self) -> bool:
        """Whether its next token is its last, whichever it is."""
        return len(self.emitted) + 1 >= self.task.max_tokens

    @property
    def produces(self) -> bool:
        """Whether it has produced a token in this claim: its prompt is done. For any thread."""
        return len(self.emitted) > self.resumed_from

    def replay(self) -> list[LogEntry]:
        """Bring the text's state to where the log ends; returns what an earlier owner had still to write.

        That is nothing, or the end of a text that was complete. Raises ``ReplayMismatchError``.
        """
        text, reason = self._text_of(self.emitted)
        if not text.startswith(self._logged):
            raise ReplayMismatchError(
                f"{len(self.emitted)} logged tokens of generation {self.key} do not give the logged text"
            )
        missing = text[len(self._logged) :]
        entries: list[LogEntry] = [self._delta([], missing)] if missing else []
        if reason is not None:
            entries.append(self.end(EndState.COMPLETED, len(self.task.prompt), finish_reason=reason))
        return entries

    def commit(self, tokens: Sequence[int], proposed: int = 0, accepted: int = 0) -> list[LogEntry]:
        """Take the tokens of one tick: their ``Delta``, and the ``End`` if they end the text.

        Of a speculative round's ``proposed`` drafted tokens, the first ``accepted`` of ``tokens`` are those that the
        model agreed to. Tokens behind the end of the text are not taken; drafted ones among them count as rejected.
        """
        text, reason = self._text_of(tokens)
        taken = list(tokens[: self._read - len(self.emitted)])
        self.emitted += taken
        accepted = min(accepted, len(taken))
        self.accepted += accepted
        self.rejected += proposed - accepted
        entries: list[LogEntry] = [self._delta(taken, text, proposed, accepted)]
        if reason is not None:
            entries.append(self.end(EndState.COMPLETED, len(self.task.prompt), finish_reason=reason))
        return entries

    def cancel(self, reason: CancelReason, prompt_tokens: int) -> list[LogEntry]:
        """End before its own end. ``prompt_tokens``: how many of the prompt's were run.

        Text that was held back in case it became a stop string is released; an unfinished character is not.
        """
        self.timeline.cancelled(reason)
        held = self._matcher.flush()
        entries: list[LogEntry] = [self._delta([], held)] if held else []
        return [*entries, self.end(reason.end_state, prompt_tokens, cancel_reason=reason)]

    def fail(self, prompt_tokens: int, failure: Failure = INTERNAL_ERROR) -> list[LogEntry]:
        """End because of a fault: ours, if nothing else is said."""
        return [self.end(EndState.FAILED, prompt_tokens, failure=failure)]

    def end(
        self,
        state: EndState,
        prompt_tokens: int,
        *,
        finish_reason: FinishReason | None = None,
        cancel_reason: CancelReason | None = None,
        failure: Failure | None = None,
    ) -> End:
        self._last_seq += 1
        return End(
            seq=self._last_seq,
            epoch=self.epoch,
            state=state,
            usage=Usage(
                prompt_tokens=prompt_tokens,
                completion_tokens=len(self.emitted),
                cached_tokens=min(self.cached_tokens or 0, prompt_tokens),
                accepted_prediction_tokens=self.accepted,
                rejected_prediction_tokens=self.rejected,
            ),
            finish_reason=finish_reason,
            cancel_reason=cancel_reason,
            failure=failure,
        )

    def timed(self, now: float, count: int = 1) -> float | None:
        """Note that ``count`` tokens came at ``now`` (monotonic seconds).

        Seconds since those before, also an earlier owner's; None if there were none.
        """
        self.timeline.tokens(now, count)
        before, self._last_token_at = self._last_token_at, now
        return None if before is None else now - before

    def _delta(self, tokens: list[int], text: str, proposed: int = 0, accepted: int = 0) -> Delta:
        self._last_seq += 1
        at, cached = 0.0, 0
        if self._last_seq == 1:
            self.first_token_at = at = time.time()
            cached = self.cached_tokens or 0
        return Delta(
            seq=self._last_seq,
            epoch=self.epoch,
            tokens=tokens,
            text=text,
            proposed=proposed,
            accepted=accepted,
            at=at,
            cached=cached,
        )

    def _text_of(self, tokens: Sequence[int]) -> tuple[str, FinishReason | None]:
        text = ""
        for token in tokens:
            self._read += 1
            if token in self._end_tokens:
                rest, _ = self._rest()
                return text + rest, FinishReason.STOP
            released, hit = self._matcher.push(self._detokenizer.push(token))
            text += released
            if hit:
                return text, FinishReason.STOP
            if self._read >= self.task.max_tokens:
                rest, hit = self._rest()
                return text + rest, FinishReason.STOP if hit else FinishReason.LENGTH
        return text, None

    def _rest(self) -> tuple[str, bool]:
        """What was held back, now that nothing follows; and whether a stop string was completed by it."""
        released, hit = self._matcher.push(self._detokenizer.flush())
        return (released, True) if hit else (released + self._matcher.flush(), False)
