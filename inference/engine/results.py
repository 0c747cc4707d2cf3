"""What the engine's actions return."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class StepResult:
    """What one action produced.

    ``tokens``: ``(key, token)``, at most one a sequence. ``faults``: what ended a sequence, by key; nothing
    of the other sequences is lost or repeated. A faulted sequence has to be dropped. ``rerun``: whether anything was
    run again, beside what was asked for or in place of it.
    """

    tokens: list[tuple[str, int]] = field(default_factory=list)
    faults: dict[str, Exception] = field(default_factory=dict)
    rerun: bool = False


@dataclass(frozen=True)
class RoundResult:
    """What one round produced.

    ``tokens``: what plain decoding would have produced, one or more; none where ``fault`` says what ended the
    sequence, which has to be dropped then. Of ``proposed`` drafted tokens the first ``accepted`` are the first of
    ``tokens``. ``draft_ms``: the drafter's share of the time, ``verify_ms``: the model's. ``rerun``: whether the
    round failed, and was run again without guesses. ``drafter_fault``: what the drafter failed of, which costs the
    sequence nothing but drafts.
    """

    tokens: list[int]
    proposed: int = 0
    accepted: int = 0
    draft_ms: float = 0.0
    verify_ms: float = 0.0
    rerun: bool = False
    fault: Exception | None = None
    drafter_fault: Exception | None = field(default=None, repr=False)
