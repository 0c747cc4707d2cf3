"""What other threads ask of the tick thread. It carries them out between two ticks."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from inference.dispatch.claims import Claim
from inference.messages import CancelReason
from inference.scheduling.tick import PrefillLimits


@dataclass(frozen=True, slots=True)
class Admit:
    """Run a generation that was claimed at ``claimed_at`` (monotonic seconds)."""

    claim: Claim
    claimed_at: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget generations, by epoch, that are no longer this worker's."""

    epochs: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Cancel:
    """End generations."""

    reasons: Mapping[str, CancelReason]


@dataclass(frozen=True, slots=True)
class Reconfigure:
    """Schedule by these limits from now on."""

    limits: PrefillLimits


@dataclass(frozen=True, slots=True)
class Drain:
    """Return when everything has ended, or ``grace_s`` seconds are over."""

    grace_s: float


Request = Admit | Drop | Cancel | Reconfigure | Drain
