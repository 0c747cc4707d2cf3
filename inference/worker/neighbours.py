"""The other workers of this one's model: how long a sequence they have memory for, and may have again.

Two questions, and two answers. What is *sent* may be as long as somebody who takes work on has memory for now. What was
*accepted* waits for whoever could hold it, as long as they may come back: that a worker is started anew, or was not
heard while Valkey was away, ends nothing.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import redis

from inference.dispatch.heartbeats import heartbeats
from inference.messages import Heartbeat
from inference.worker.kv_memory import KvMemory

#: Longest that a worker which has ended, however it did, is away: the supervisor waits up to 30 s before it starts one
#: again that does not live long, and then the model is loaded.
RESTART_S: Final = 60.0
#: How long a worker that has fallen silent without a word is still taken to take work on, beyond the few seconds that
#: its heartbeat lives. When Valkey is back after an outage, each worker finds out in its own time: a dead connection
#: is waited for twice as long as an answer may take, at most.
SILENCE_S: Final = 10.0
#: The most that one look adds to the time for which others have not been seen. It is about that between two looks:
#: in a longer pause Valkey was away, or this worker stood still, and nobody was looked for.
_MOST_PER_LOOK_S: Final = 1.0


def remembered_s(lease_s: float) -> float:
    """Seconds for which a worker that was seen last is waited for. What a killed one ran comes back a lease later."""
    return lease_s + RESTART_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """``longest``: tokens of the longest sequence that it has memory for; None: it does not tell. ``takes_work``: by
    its last word. ``unseen_s``: for how long it was looked for and not seen to get on."""

    longest: int | None
    takes_work: bool
    unseen_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbourhood:
    """What looking at the heartbeats of the others has told.

    ``looked_s``: for how long that was done; infinite where there is nobody who could have been missed. A worker whose
    ticks have stood still for ``lease_s`` takes on nothing that could be waited for.
    """

    lease_s: float
    looked_s: float = 0.0
    neighbours: Mapping[str, Neighbour] = field(default_factory=dict)

    def after(self, beats: Iterable[Heartbeat], elapsed_s: float) -> Neighbourhood:
        """What is known after another look, ``elapsed_s`` seconds after the last, that found these ``beats``."""
        counted_s = min(elapsed_s, _MOST_PER_LOOK_S)
        known = {
            worker: replace(one, unseen_s=one.unseen_s + counted_s)
            for worker, one in self.neighbours.items()
            if one.unseen_s + counted_s < remembered_s(self.lease_s)
        }
        for beat in beats:
            if beat.sent_at - beat.progressed_at <= self.lease_s:
                takes_work = beat.ready and not beat.draining
                known[beat.worker] = Neighbour(longest=beat.longest_sequence, takes_work=takes_work)
            elif beat.worker in known:
                known[beat.worker] = replace(known[beat.worker], takes_work=False)
        return replace(self, looked_s=self.looked_s + counted_s, neighbours=known)

    def longest_now(self) -> int | None:
        """Tokens of the longest sequence that one who takes work on tells to have memory for; None if there is none."""
        return max(
            (
                one.longest
                for one in self.neighbours.values()
                if one.takes_work and one.unseen_s < SILENCE_S and one.longest is not None
            ),
            default=None,
        )

    def longest_to_come(self) -> int | None:
        """Tokens of the longest sequence that anybody has memory for who was seen lately enough to be waited for.

        None: that cannot be said. Not all of them tell, or others may have been there before the first look.
        """
        longest = [one.longest for one in self.neighbours.values()]
        told = [tokens for tokens in longest if tokens is not None]
        if len(told) < len(longest) or self.looked_s < remembered_s(self.lease_s):
            return None
        return max(told, default=0)


class Neighbours:
    """Looks at the heartbeats, and tells the ``memory`` of this ``worker`` what the others of its ``model`` can hold.

    For any thread. Raises ``redis.RedisError`` where Valkey cannot be asked; what was told before then holds.
    """

    def __init__(
        self,
        client: redis.Redis,
        worker: str,
        model: str,
        lease_s: float,
        memory: KvMemory,
        *,
        served_before: bool,
    ) -> None:
        """``served_before``: a worker of the model has run at some time, and may be on its way back."""
        self._client = client
        self._worker = worker
        self._model = model
        self._memory = memory
        self._lock = threading.Lock()
        self._looked_at = time.monotonic()
        self._known = Neighbourhood(lease_s=lease_s, looked_s=0.0 if served_before else math.inf)

    def __call__(self) -> None:
        """Look now."""
        with self._lock:
            others = [
                beat
                for beat in heartbeats(self._client)
                if beat.model == self._model and beat.worker != self._worker
            ]
            now = time.monotonic()
            self._known = self._known.after(others, now - self._looked_at)
            self._looked_at = now
            self._memory.longest_elsewhere = self._known.longest_to_come()

    def longest_now(self) -> int | None:
        """As ``Neighbourhood``'s, by the last look."""
        return self._known.longest_now()
