"""Whose fault it is that a step of the model failed: a generation's own, or the backend's.

The engine runs the sequences of a step that failed again, each alone, and tells in one step which of them fail alone
too. If others got on beside them, these have failed by themselves, and end. If nobody got on (a step of one sequence
knows no others), the *backend is suspected*: it may be broken, or one of them fails wherever it is run. Then all of
them go back to the queue, where another worker finds them, and it is written down twice: against each of them, in its
dispatch record, as *suspicion* that grows until it is taken for the cause and ends; and against the backend, in its
worker.

A token clears the backend of all that failed before it, a prompt's first one only of prompts. So whatever prompts come,
a worker is not given up as long as it produces; that ends by itself once no prompt succeeds any more. A worker that
produces nothing behind first tokens is given up: there is always another prompt. What works and gives no token clears
nothing: other chunks of prompts, and what is run again of a stream, may work where no token does.

Bounds, in steps that failed as a whole:

- A generation that fails whenever it is run alone ends with the third of them, here or elsewhere: it costs two
  retries, and by itself no worker, for that takes five without a token between them.
- Whatever it fails beside, it ends with the twelfth, so that two backends at most are given up for it.
- A backend with which everything fails, or all that gives a token, is given up with the fifth. Of generations with
  which none had failed before, it ends at most one: one that it ran alone three times. Any number that it ran together
  go back unharmed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

#: What a failed step adds to the suspicion against the only sequence in it, and against each of several.
ALONE: Final = 4
TOGETHER: Final = 1
#: The suspicion from which on a generation is taken for the cause.
CAUSE: Final = 12
#: Failed steps with which a backend is given up if no token clears it between them.
GIVEN_UP: Final = 5


class Work(StrEnum):
    """What a step is to do for its sequences."""

    #: Run some of their prompts, perhaps up to the first token.
    PROMPTS = "prompts"
    #: Produce what follows.
    TOKENS = "tokens"


def backend_suspected(ran: int, faulted: int) -> bool:
    """Whether nothing tells whose fault it is that ``faulted`` of the ``ran`` sequences of a step failed."""
    return 0 < ran == faulted


def suspicion_after(suspicion: int, ran: int) -> int:
    """The suspicion against a generation after a step that failed for all of its ``ran`` sequences."""
    return suspicion + (ALONE if ran == 1 else TOGETHER)


def is_cause(suspicion: int) -> bool:
    """Whether so much speaks against a generation that it is not tried again."""
    return suspicion >= CAUSE


@dataclass(frozen=True, slots=True)
class BackendHealth:
    """Failed steps for which nothing has cleared the backend yet, by what they were to do."""

    prompts: int = 0
    tokens: int = 0

    @property
    def given_up(self) -> bool:
        """Whether the worker is not to go on with this backend."""
        return self.prompts + self.tokens >= GIVEN_UP

    def failed(self, work: Work) -> BackendHealth:
        """After a step that failed for all of its sequences."""
        if work is Work.PROMPTS:
            return replace(self, prompts=self.prompts + 1)
        return replace(self, tokens=self.tokens + 1)

    def worked(self, work: Work, tokens: int) -> BackendHealth:
        """After a step in which at least one sequence got on, and that gave so many tokens."""
        if not tokens:
            return self
        return replace(self, prompts=0) if work is Work.PROMPTS else BackendHealth()
