"""Publishing: one round trip a tick, for everything that a worker produced in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

import msgspec
import redis

from inference.dispatch import functions, keys
from inference.dispatch.token_log import keep_ms
from inference.messages import CancelReason, Delta, End, PrefillProgress, Publication, TickEntry, encode
from inference.scheduling import fair_share

#: Entries that the stream keeps (about): a reader that falls further behind takes the rest from the token logs.
STREAM_ENTRIES: Final = 4096
#: Who is named as the publisher of ends that no worker wrote.
NO_WORKER: Final = ""

_encoder: Final = msgspec.msgpack.Encoder()


@dataclass(frozen=True, slots=True)
class PublishOutcome:
    """What came back from a tick.

    ``refused``: generations that are no longer the worker's (or whose log does not fit): to be dropped silently.
    ``cancelled``: generations to be ended, and why. Told with every tick until the worker lets go of them.
    """

    refused: set[str]
    cancelled: dict[str, CancelReason]


def publish(
    client: redis.Redis, worker: str, publications: Sequence[tuple[str, int, Publication]]
) -> PublishOutcome:
    """Publish what a tick produced: (generation, epoch, publication), in order. Empty: only ask for cancels.

    In one step in Valkey, each is checked against its generation's owner, epoch and last ``seq``; what passes is
    appended to the token logs, and all of it to the stream as one entry. May be repeated when the answer was lost.
    """
    arguments: list[str | bytes | int] = []
    for generation, epoch, publication in publications:
        kind, seq = _kind_and_seq(publication)
        arguments += (generation, epoch, kind, seq, _encoder.encode(publication))
    refused, cancels = functions.publish(client, worker, STREAM_ENTRIES, _stream_head(worker), *arguments)
    return PublishOutcome(
        refused={generation.decode() for generation in refused},
        cancelled={
            generation.decode(): CancelReason(reason.decode())
            for generation, reason in zip(cancels[::2], cancels[1::2], strict=True)
        },
    )


def append_end(client: redis.Redis, generation: str, epoch: int, end: End) -> bool:
    """Write the end of a generation that was withdrawn, and give what it did not use back to its tenant's share.

    ``epoch`` and ``end.seq`` follow from the ``Withdrawal``. True: this is how it ended (now, or by an earlier call).
    False: it ended otherwise, which its log tells, or was not withdrawn.
    """
    refund = _refund_of_withdrawn(client, generation, end)
    return bool(
        functions.append_end(
            client,
            generation,
            epoch,
            end.seq,
            encode(end),
            refund,
            keep_ms(),
            STREAM_ENTRIES,
            _stream_head(NO_WORKER),
        )
    )


def _refund_of_withdrawn(client: redis.Redis, generation: str, end: End) -> int:
    cost, due, weight = client.hmget(keys.generation(generation), "cost", "due", "weight")
    if cost is None or due is None or weight is None or int(due) > 0:
        return 0  # never claimed, so never charged
    used = end.usage.prompt_tokens + end.usage.completion_tokens
    return fair_share.refund(int(cost) - used, int(weight))


def _kind_and_seq(publication: Publication) -> tuple[str, int]:
    match publication:
        case PrefillProgress():
            return "progress", 0
        case Delta():
            return "delta", publication.seq
        case End():
            return "end", publication.seq


@cache
def _stream_head(worker: str) -> bytes:
    """An encoded ``TickEntry`` up to its list of publications, which the server puts together from what it accepts."""
    return encode(TickEntry(worker=worker, publications=[]))[:-1]
