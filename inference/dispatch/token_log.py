"""The token log: every event of one generation, numbered by ``seq`` from 1, kept until a while after its end.

Entry ``seq`` is the list's element ``seq - 1``: the list's length is the last ``seq``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import redis
import redis.asyncio

from inference.dispatch import keys
from inference.messages import Delta, LogEntry, log_entry_decoder
from signalbox.configuration import configuration


@dataclass(frozen=True, slots=True)
class LogExcerpt:
    """Part of a log, read in one step.

    ``known``: dispatch has (still, or already) a trace of the generation. ``over``: nothing will be appended any more.
    ``last_seq``: 0 for an empty log. ``entries``: those asked for, in order.
    """

    known: bool
    over: bool
    last_seq: int
    entries: list[LogEntry]


def read(client: redis.Redis, generation: str, after: int = 0) -> list[LogEntry]:
    """The entries after ``seq`` ``after``, in order; empty for an unknown or expired log."""
    return decode(cast(list[bytes], client.lrange(keys.log(generation), after, -1)))


def first_token_at(client: redis.Redis, generation: str) -> float | None:
    """When the generation's first token came, in Unix seconds; None for a log that has none."""
    for entry in decode(cast(list[bytes], client.lrange(keys.log(generation), 0, 0))):
        if isinstance(entry, Delta):
            return entry.at or None
    return None


async def aread(client: redis.asyncio.Redis, generation: str, after: int = 0) -> list[LogEntry]:
    """``read`` for event loops."""
    return decode(cast(list[bytes], await client.lrange(keys.log(generation), after, -1)))


async def aread_excerpt(client: redis.asyncio.Redis, generation: str, after: int, count: int) -> LogExcerpt:
    """At most ``count`` entries after ``seq`` ``after``, with what tells a log that is empty from one that is gone."""
    async with client.pipeline(transaction=True) as pipeline:
        pipeline.hget(keys.generation(generation), "state")
        pipeline.llen(keys.log(generation))
        pipeline.lrange(keys.log(generation), after, after + count - 1)
        state, last_seq, entries = await pipeline.execute()
    return LogExcerpt(state is not None, state == b"ended", int(last_seq), decode(entries))


def decode(entries: Sequence[bytes]) -> list[LogEntry]:
    """Entries as they lie in the list."""
    return [log_entry_decoder.decode(entry) for entry in entries]


def keep_ms() -> int:
    """How long the log and the trace of an ended generation are kept, in milliseconds."""
    return round(configuration().token_log_seconds * 1000)
