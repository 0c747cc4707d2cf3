"""Tenants inside a lane: start-time fair queueing on token cost, in integers.

Each tenant has one first-in-first-out queue in the lane; only its head contends. A lane has a virtual time ``V``,
each tenant a finish tag ``F``, both in units of ``1 / SCALE`` token per unit of weight.

A head's start tag is ``max(V, F)`` when its tenant comes to wait, and ``F`` while it goes on waiting. As long as
nothing is given back, a tenant that goes on waiting has ``F >= V`` and the two are one rule. Giving back is where
they differ: it may take ``F`` below a ``V`` that other tenants' services have raised since, and to lift it again
would forfeit what was just given back, at every service of another. A tenant of many short answers would fall behind
one of long answers without bound (``test_a_tenant_keeps_what_is_given_back`` shows it).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

#: Tag units per token at weight 1: fine enough that rounding (below one unit a request) never adds up to a token.
SCALE = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The generation that waits first of one tenant's in the lane.

    ``arrival``: its number in the order of arrival. ``tokens``: what it may come to hold in a cache (prompt + max
    tokens), 0 for one that only has to be ended. ``cost``: tokens to charge, 0 for one that was charged before
    and queued again. ``weight``: the tenant's share, at least 1. ``finish``: the tenant's F. ``joined``: the tenant
    has come to wait since the lane's last decision.
    """

    tenant: str
    generation: str
    arrival: int
    tokens: int
    cost: int
    weight: int
    finish: int
    joined: bool


@dataclass(frozen=True, slots=True)
class Service:
    """Whose head is served, and the lane's tags once it was.

    ``finishes`` holds the tags that change: the served tenant's, and those of the tenants that have joined.
    """

    tenant: str
    virtual_time: int
    finishes: dict[str, int]


def start_tag(head: Head, virtual_time: int) -> int:
    """Where the head stands in the lane's virtual time: the smallest is served."""
    return max(virtual_time, head.finish) if head.joined else head.finish


def in_order(heads: Collection[Head], virtual_time: int) -> list[Head]:
    """The heads in the order in which they are to be served: by start tag, the earlier arrival of equals first."""
    return sorted(heads, key=lambda head: (start_tag(head, virtual_time), head.arrival))


def serve(heads: Collection[Head], virtual_time: int) -> Service:
    """Serve the head with the smallest start tag, the earlier arrival of equals.

    ``heads`` holds one head of each tenant that waits in the lane. Raises ``ValueError`` if there is none.
    """
    if not heads:
        raise ValueError("no tenant waits in this lane: choose the lane among those in which one does")
    return service_of(in_order(heads, virtual_time)[0], heads, virtual_time)


def service_of(chosen: Head, heads: Collection[Head], virtual_time: int) -> Service:
    """The lane's tags once ``chosen``, one of its ``heads``, was served, whichever start tag it has.

    The others keep theirs, also those who would have come before it and have no room: none falls back in its turn.
    """
    start = start_tag(chosen, virtual_time)
    finishes = {head.tenant: start_tag(head, virtual_time) for head in heads if head.joined}
    finishes[chosen.tenant] = start + charge(chosen.cost, chosen.weight)
    return Service(chosen.tenant, max(virtual_time, start), finishes)


def charge(cost: int, weight: int) -> int:
    """What ``cost`` tokens add to the finish tag of a tenant of this weight, rounded up."""
    return -(-cost * SCALE // weight)


def refund(unused: int, weight: int) -> int:
    """What ``unused`` tokens of a charge, given back at the end, take off the finish tag, rounded down.

    What was used beyond the charge (there is no such thing, but a count may err) takes nothing.
    """
    return max(0, unused) * SCALE // weight
