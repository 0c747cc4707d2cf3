"""Whether speculation pays: measured once for each pairing of model, drafter, machine and draft length, and weighed
against the load.

Two questions, because a round serves one generation only. Is it faster than plain decoding for that generation alone
(``judge``)? And does it, in the time that it takes from all others, produce at least what one more row of the batch
would (``worth_speculating``)? All numbers are passed in.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

#: Single-token rounds that open a profiled generation: what plain decoding costs.
PROBE_ROUNDS = 2
#: Profiled generations that settle a verdict.
SAMPLES = 4
#: Rounds of one generation that are looked at. Little of an answer's beginning can be guessed, and more the longer it
#: is, so the first few rounds alone would decline what pays; and an endless answer must not keep a verdict waiting.
MOST_ROUNDS = 128
#: A speedup up to the first declines, one from the second on enables; between them the model's setting decides.
DECLINES_AT, ENABLES_AT = 1.0, 1.15
#: What one more row is taken to cost while it is not measured: nothing, the least favourable to speculation.
UNMEASURED_BATCH_COST = 0.0


class SpeculationMode(StrEnum):
    """What an operator has decided for a model."""

    #: Profile, then do what the verdict says.
    MEASURED = "measured"
    #: Speculate, whatever a verdict or the load says.
    ON = "on"
    OFF = "off"


class DeclineReason(StrEnum):
    """Why a generation decodes classically."""

    NO_DRAFTER = "no_drafter"
    FORBIDDEN_BY_ENTITLEMENT = "forbidden_by_entitlement"
    FORCED_OFF = "forced_off"
    DOES_NOT_PAY = "does_not_pay"
    BATCH_IS_BETTER = "batch_is_better"
    BACKLOG_FULL = "backlog_full"
    CACHES_CANNOT_BE_CUT = "caches_cannot_be_cut"
    DRAFTER_UNAVAILABLE = "drafter_unavailable"
    #: A step failed with it, in this worker or another: it is tried again in the plainest way.
    SUSPECTED = "suspected"


class Outcome(StrEnum):
    """What a settled profile says."""

    ENABLED = "enabled"
    DECLINED = "declined"
    #: Neither clearly: the model's setting decides.
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What one profiled generation has shown so far. The default has shown nothing.

    ``probe_ms``: its probes. ``rounds``, ``round_ms``, ``accepted``: how many rounds came after them, what they took in
    all (draft, verification and bookkeeping), and how many drafted tokens were accepted in them. ``plain_rounds`` of
    them, which took ``plain_ms``, had nothing drafted.
    """

    probe_ms: tuple[float, ...] = ()
    rounds: int = 0
    round_ms: float = 0.0
    accepted: int = 0
    plain_rounds: int = 0
    plain_ms: float = 0.0

    @property
    def probing(self) -> bool:
        """Whether its next round is to be a probe."""
        return len(self.probe_ms) < PROBE_ROUNDS

    @property
    def complete(self) -> bool:
        """Whether it counts: it has both probes, and at least one round."""
        return not self.probing and self.rounds > 0

    @property
    def full(self) -> bool:
        """Whether it was looked at for long enough."""
        return self.rounds >= MOST_ROUNDS

    @property
    def classic_ms(self) -> float:
        """A single-token step, by the probes and by the rounds that had nothing drafted, which are such steps too.

        There are many of these where little can be guessed, which is where it is close; and they are spread over the
        answer, so that a machine that was slower or faster at its beginning does not decide.
        """
        steps = len(self.probe_ms) + self.plain_rounds
        return (math.fsum(self.probe_ms) + self.plain_ms) / steps

    def probed(self, ms: float) -> Sample:
        """The sample after one more probe. Raises ``ValueError`` unless ``ms`` is positive and finite."""
        _require_duration("a probe", ms)
        return replace(self, probe_ms=(*self.probe_ms, ms))

    def ran(self, ms: float, accepted: int, proposed: int) -> Sample:
        """The sample after one more round, in which ``accepted`` of ``proposed`` drafted tokens were.

        Raises ``ValueError`` unless ``ms`` is positive and finite, and ``accepted`` from 0 to ``proposed``.
        """
        _require_duration("a round", ms)
        if not 0 <= accepted <= proposed:
            raise ValueError(f"a round accepts 0 to all of its {proposed} drafted tokens, not {accepted}")
        return replace(
            self,
            rounds=self.rounds + 1,
            round_ms=self.round_ms + ms,
            accepted=self.accepted + accepted,
            plain_rounds=self.plain_rounds + (not proposed),
            plain_ms=self.plain_ms + (0.0 if proposed else ms),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A settled profile.

    ``speedup``: tokens of a speculating generation for one of the same decoding alone. ``classic_ms``: a single-token
    step. ``round_ms``: a round. ``samples``: the generations it rests on.
    """

    outcome: Outcome
    speedup: float
    classic_ms: float
    round_ms: float
    accepted_per_round: float
    samples: int

    @property
    def round_cost(self) -> float:
        """A round, in single-token steps."""
        return self.round_ms / self.classic_ms


def judge(samples: Collection[Sample]) -> Verdict | None:
    """What the profile says, or None while fewer than ``SAMPLES`` of the samples are complete.

    ``classic_ms`` is the median of the samples' own. Rounds are weighed alike, whichever sample they are of:
    tokens of all rounds by the time of all rounds is what speculation yields in the long run.
    """
    complete = [sample for sample in samples if sample.complete]
    if len(complete) < SAMPLES:
        return None
    classic_ms = statistics.median(sample.classic_ms for sample in complete)
    rounds = sum(sample.rounds for sample in complete)
    round_ms = math.fsum(sample.round_ms for sample in complete) / rounds
    accepted_per_round = sum(sample.accepted for sample in complete) / rounds
    speedup = (accepted_per_round + 1) * classic_ms / round_ms
    return Verdict(
        outcome=outcome_of(speedup),
        speedup=speedup,
        classic_ms=classic_ms,
        round_ms=round_ms,
        accepted_per_round=accepted_per_round,
        samples=len(complete),
    )


def outcome_of(speedup: float) -> Outcome:
    """What a measured ``speedup`` means."""
    if speedup <= DECLINES_AT:
        return Outcome.DECLINED
    return Outcome.ENABLED if speedup >= ENABLES_AT else Outcome.UNDECIDED


def declined(
    mode: SpeculationMode,
    verdict: Verdict | None,
    *,
    speculate_undecided: bool,
    decoding_rows: int,
    sharing: int,
    batch_cost: float,
) -> DeclineReason | None:
    """Why the next eligible generation should not speculate; None if it should.

    ``verdict``: None while it is being profiled, for which every eligible generation speculates.
    ``speculate_undecided``: the model's setting for an undecided one. The rest is as in ``worth_speculating``.
    """
    if mode is SpeculationMode.OFF:
        return DeclineReason.FORCED_OFF
    if mode is SpeculationMode.ON or verdict is None:
        return None
    undecided = verdict.outcome is Outcome.UNDECIDED
    if verdict.outcome is Outcome.DECLINED or (undecided and not speculate_undecided):
        return DeclineReason.DOES_NOT_PAY
    worth = worth_speculating(
        verdict.speedup, decoding_rows, batch_cost, round_cost=verdict.round_cost, sharing=sharing
    )
    return None if worth else DeclineReason.BATCH_IS_BETTER


def worth_speculating(
    speedup: float, decoding_rows: int, batch_cost: float, *, round_cost: float = 1.0, sharing: int = 1
) -> bool:
    """Whether all streams together get at least as many tokens a second as if the speculating ones joined the batch.

    ``speedup``: s, as in ``Verdict``. ``decoding_rows``: n rows of the batch. ``batch_cost``: b, what one more row adds
    to a decode tick, as a share of a one-row tick. ``round_cost``: r, a round in one-row ticks; by default
    the least that it can be, which is the strictest. ``sharing``: m, the generations that hold the slot or wait for
    it, this one included; they take turns, so that together they get one round at a time.

    A decode tick of n rows takes D(n) = 1 + b (n - 1), in one-row ticks. A round yields g = s r tokens. Beside n rows
    rounds and decode ticks alternate: n + g tokens in r + D(n). In the batch instead: n + m tokens in D(n + m). The
    first is not below the second if and only if

        s × (1 + b (n + m - 1)) ≥ n + m + m (1 - b) / r

    Alone (n = 0) there is no decode tick between rounds: s r tokens in r, against m in D(m), which is
    s × (1 + b (m - 1)) ≥ m. And whatever the load, s > 1. So where batching gains nothing (b = 1) any
    speedup is worth it beside any number of rows, and where rows are nearly free hardly one is.

    Raises ``ValueError`` for numbers that cannot have been measured.
    """
    for name, value in (("speedup", speedup), ("round_cost", round_cost)):
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} must be positive and finite, not {value}: measure it first")
    if not (math.isfinite(batch_cost) and batch_cost >= 0):
        raise ValueError(f"batch_cost must be finite and not negative, but is {batch_cost}")
    if decoding_rows < 0 or sharing < 1:
        raise ValueError(
            f"decoding_rows must not be negative and sharing at least 1, not {decoding_rows} and {sharing}"
        )
    rows = decoding_rows + sharing
    batch_tokens = rows + (sharing * (1 - batch_cost) / round_cost if decoding_rows else 0.0)
    return speedup > 1 and speedup * (1 + batch_cost * (rows - 1)) >= batch_tokens


def added_cost(ms_by_units: Mapping[int, float], base: int) -> float | None:
    """What each further unit adds, as a share of what ``base`` units take: the slope of the least-squares line.

    For a decode tick by its rows (``base`` 1) this is ``batch_cost``; for a round by its drafted tokens (``base`` 0) it
    is the ``token_cost`` of ``draft_length``. 0 where more units were measured to take less. None while there are fewer
    than two numbers of units, or if no line with a positive value at ``base`` fits them. Raises ``ValueError`` for
    durations that are not positive and finite.
    """
    for units, ms in ms_by_units.items():
        _require_duration(f"the duration of {units} units", ms)
    if len(ms_by_units) < 2:
        return None
    slope, intercept = statistics.linear_regression(list(ms_by_units), list(ms_by_units.values()))
    at_base = intercept + slope * base
    return max(0.0, slope / at_base) if at_base > 0 else None


def _require_duration(what: str, ms: float) -> None:
    if not (math.isfinite(ms) and ms > 0):
        raise ValueError(f"{what} took {ms} ms, which no clock can have measured: give a positive duration")
