"""When a process that ended is started again: at once after a long life, ever later after short ones."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_DELAY_S = 0.5
LONGEST_DELAY_S = 30.0
#: A process that lived this long is taken to have worked: its next end is a first one again.
WORKED_S = 60.0
#: Ends in a row from which on the process is said to be unable to run.
REPEATED = 4


@dataclass(slots=True)
class Restarts:
    """One process's ends in a row."""

    ends: int = 0

    def ended(self, lived_s: float) -> float:
        """Count an end after ``lived_s`` seconds of life; the seconds to wait before the next start."""
        self.ends = 1 if lived_s >= WORKED_S else self.ends + 1
        return min(LONGEST_DELAY_S, FIRST_DELAY_S * 2.0 ** (self.ends - 1))

    @property
    def repeated(self) -> bool:
        """Whether it ends again and again: something is wrong that restarting does not mend."""
        return self.ends >= REPEATED
