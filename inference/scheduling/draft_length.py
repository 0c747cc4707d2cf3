"""How many tokens are drafted in a round: as many as pay, by what was accepted before and what one more costs.

The chance *p* that a drafted token is accepted, once all before it were, is estimated for each sequence from its own
rounds, recent ones counting more. A round of *k* drafted tokens then yields ``1 + p + … + p^k`` tokens for
``1 + c k`` single-token steps, where *c* is the cost of one drafted token; the *k* with the best rate is next.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

#: Cost of one more drafted token, in single-token steps, while it is not measured.
DEFAULT_TOKEN_COST = 0.1
#: What a round still counts at each later round: about the last ten make the estimate.
KEPT = 0.9
#: What is known of a new sequence: as if one of two drafted tokens had been accepted.
PRIOR_ACCEPTED, PRIOR_DECIDED = 1.0, 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftLength:
    """The draft length of one sequence, and what it rests on.

    ``length``: tokens to draft in the next round, 1 … ``most``. ``accepted``: drafted tokens that were accepted.
    ``decided``: those, and the first refused one of each round: what came after it says nothing. Both fade by ``KEPT``
    at each round.
    """

    length: int
    most: int
    accepted: float = PRIOR_ACCEPTED
    decided: float = PRIOR_DECIDED

    @property
    def acceptance(self) -> float:
        """The estimated chance that a drafted token is accepted once all before it were."""
        return self.accepted / self.decided


def first_length(most: int, token_cost: float = DEFAULT_TOKEN_COST) -> DraftLength:
    """A new sequence's, never above ``most``. ``token_cost``: of one more drafted token, in single-token steps.

    Raises ``ValueError`` for a ``most`` below 1 or a cost that is negative or not finite.
    """
    return limited(DraftLength(length=1, most=most), most, token_cost)


def limited(state: DraftLength, most: int, token_cost: float = DEFAULT_TOKEN_COST) -> DraftLength:
    """The same sequence's once ``most`` has been changed. Raises as ``first_length`` does."""
    if most < 1:
        raise ValueError(
            f"most must be at least 1, not {most}: with no drafted token a round is plain decoding"
        )
    return replace(state, most=most, length=_best_length(state.acceptance, token_cost, most))


def next_length(
    state: DraftLength, *, proposed: int, accepted: int, token_cost: float = DEFAULT_TOKEN_COST
) -> DraftLength:
    """The sequence's after a round in which the drafter proposed so many tokens, of which the first ``accepted`` were.

    A drafter that had no guess says nothing about its guesses: the state stays as it is.
    Raises ``ValueError`` if more were accepted than proposed, and for what ``first_length`` refuses.
    """
    if not 0 <= accepted <= proposed:
        raise ValueError(f"{accepted} of {proposed} drafted tokens cannot have been accepted")
    if proposed == 0:
        return state
    after = replace(
        state,
        accepted=state.accepted * KEPT + accepted,
        decided=state.decided * KEPT + min(accepted + 1, proposed),
    )
    return limited(after, after.most, token_cost)


def _best_length(acceptance: float, token_cost: float, most: int) -> int:
    """The length of the best rate, the shortest of equals: what is not gained by it need not be drafted."""
    if not (math.isfinite(token_cost) and token_cost >= 0):
        raise ValueError(f"token_cost must be finite and not negative, but is {token_cost}")
    best, best_rate, tokens = 1, 0.0, 1.0
    for length in range(1, most + 1):
        tokens += acceptance**length
        rate = tokens / (1 + token_cost * length)
        if rate > best_rate:
            best, best_rate = length, rate
    return best
