"""Which batch has sealed each generation of the archives that a walk has read: a generation has one proof.

The database sees to that for its own rows only. Whoever puts the assignment of an archived generation into the table
again, with whatever it says now, has it sealed a second time. There may be more generations in archives than fit in
memory, so that they are kept on the disk while the walk lasts.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self
from uuid import UUID

from accounts.audit.faults import Broken, FaultKind, FaultReason

#: Of a million generations all stay in memory; of more, what was not asked for lately is read again.
_MEMORY_KIB: Final = 64 * 1024


class ArchivedGenerations:
    """A context manager; what it knows is gone with its end."""

    def __init__(self) -> None:
        #: Whether any archive was read.
        self.known = False
        # Without a name it is a file that SQLite deletes by itself, once it is more than some pages.
        self._seen = sqlite3.connect("")
        self._seen.execute("PRAGMA journal_mode = OFF")
        self._seen.execute(f"PRAGMA cache_size = -{_MEMORY_KIB}")
        self._seen.execute("CREATE TABLE seen (generation BLOB PRIMARY KEY, batch INTEGER) WITHOUT ROWID")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._seen.close()

    def add(self, generations: Sequence[UUID], batch: int) -> None:
        """The archived event ``batch`` seals them. Raises ``Broken`` at one that another one seals too."""
        self.known = self.known or bool(generations)
        rows = ((one.bytes, batch) for one in generations)
        try:
            self._seen.executemany("INSERT INTO seen VALUES (?, ?)", rows)
        except sqlite3.IntegrityError as error:
            # Those before it were put in, of this batch.
            twice = [one for one in generations if self.batch_of(one) not in (0, batch)]
            one = twice[0] if twice else next(one for one in generations if generations.count(one) > 1)
            raise sealed_again(one, self.batch_of(one), batch) from error

    def batch_of(self, generation_id: UUID) -> int:
        """The archived event that seals it; 0: none of those that were read."""
        if not self.known:
            return 0
        found = self._seen.execute("SELECT batch FROM seen WHERE generation = ?", (generation_id.bytes,))
        return next((int(batch) for (batch,) in found), 0)


def sealed_again(generation_id: UUID, archived: int, batch: int | None) -> Broken:
    """The fault of a generation that the event ``archived`` seals, and ``batch`` too (None: it waits to be sealed)."""
    where = f"in batch {batch} too" if batch else "waits for a batch once more"
    return Broken(
        batch or 0,
        FaultKind.ASSIGNMENT,
        FaultReason.INSERTED,
        f"The assignment of generation {generation_id} is sealed in batch {archived}, which is archived, and {where}: "
        "it was put into the database again.",
        record_id=str(generation_id),
    )
