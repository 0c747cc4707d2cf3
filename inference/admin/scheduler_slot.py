"""What a worker's speculative slot does just now, ready to be read: a panel of the scheduler page."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from accounts.formatting import EMPTY, counted, number
from inference.admin.drafter_words import draft_length, drafter_name
from inference.messages import SlotHolder, SlotSnapshot, SlotWaiter
from inference.scheduling.rotation import SKIP_CAP, Contender, next_grant_index
from inference.scheduling.speculation import SAMPLES

#: Rounds that are drawn one by one; a longer grant is a bar.
_MOST_PIPS: Final = 16
#: Tenants that are told each.
_MOST_TENANTS: Final = 5


@dataclass(frozen=True, slots=True)
class HolderNow:
    """Who has the slot. ``pips``: one for each round of a short grant, true where it is run."""

    generation: uuid.UUID
    tenant: str
    lane: str
    done: int
    total: int
    rounds: int
    budget: int
    words: str
    pips: list[bool]


@dataclass(frozen=True, slots=True)
class WaiterNow:
    """Who waits for the slot, in order of arrival; ``goes_next``: the next grant is its."""

    generation: uuid.UUID
    tenant: str
    lane: str
    done: int
    total: int
    parked: bool
    skips: int
    cap: int
    goes_next: bool


@dataclass(frozen=True, slots=True)
class GrantsOf:
    """A tenant's grants, of all that were told."""

    tenant: str
    grants: int
    of: int


@dataclass(frozen=True, slots=True)
class Told:
    """A figure, and what it means."""

    headline: str
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotNow:
    """The panel."""

    drafter: str
    fault: str
    holder: HolderNow | None
    waiting: list[WaiterNow]
    verdict: Told
    kept: Told
    draft_length: str
    rotations: int
    grants: list[GrantsOf]


def slot_now(slot: SlotSnapshot, tenants: Mapping[str, str], lanes: Mapping[int, str]) -> SlotNow:
    """``tenants`` are names by id, ``lanes`` names by rank."""
    granted = sorted(slot.grants.items(), key=lambda item: (-item[1], item[0]))
    in_all = sum(slot.grants.values())
    return SlotNow(
        drafter=drafter_name(slot.drafter),
        fault=slot.drafter_fault,
        holder=_holder(slot.holder, tenants) if slot.holder is not None else None,
        waiting=_waiting(slot.waiting, tenants, {name: rank for rank, name in lanes.items()}),
        verdict=_verdict(slot),
        kept=_kept(slot),
        draft_length=draft_length(slot) or EMPTY,
        rotations=slot.rotations,
        grants=[
            GrantsOf(_tenant(tenant, tenants), count, in_all) for tenant, count in granted[:_MOST_TENANTS]
        ],
    )


def tenants_of(slot: SlotSnapshot) -> Iterator[str]:
    """Whose names the panel needs."""
    if slot.holder is not None:
        yield slot.holder.tenant
    yield from (waiter.tenant for waiter in slot.waiting)
    yield from slot.grants


def pending_slice(slot: SlotSnapshot | None) -> tuple[bool, bool]:
    """Whether the slot has a slice to run, and whether that is of a prompt: it is a round otherwise."""
    pending = slot is not None and (slot.holder is not None or bool(slot.waiting))
    return pending, pending and slot is not None and slot.prompt_next


def _holder(holder: SlotHolder, tenants: Mapping[str, str]) -> HolderNow:
    rounds, budget = holder.slices, holder.budget
    if not budget:
        words = f"{counted(rounds, 'round')}; keeps it to its end"
    elif rounds > budget:
        words = f"{counted(rounds, 'round')}, for nobody waits"
    else:
        words = f"{number(rounds)} of {counted(budget, 'round')}"
    drawn = budget if rounds <= budget <= _MOST_PIPS else 0
    return HolderNow(
        uuid.UUID(hex=holder.generation),
        _tenant(holder.tenant, tenants),
        holder.lane,
        holder.tokens,
        holder.max_tokens,
        rounds,
        budget,
        words,
        [place < rounds for place in range(drawn)],
    )


def _waiting(
    waiting: Sequence[SlotWaiter], tenants: Mapping[str, str], ranks: Mapping[str, int]
) -> list[WaiterNow]:
    # A lane that is not known here (it is of an operator's own, or gone) is behind all others.
    ring = [Contender(ranks.get(waiter.lane, len(ranks)), waiter.skips) for waiter in waiting]
    following = next_grant_index(ring)
    return [
        WaiterNow(
            uuid.UUID(hex=waiter.generation),
            _tenant(waiter.tenant, tenants),
            waiter.lane,
            waiter.tokens,
            waiter.max_tokens,
            waiter.started,
            waiter.skips,
            SKIP_CAP,
            place == following,
        )
        for place, waiter in enumerate(waiting)
    ]


def _verdict(slot: SlotSnapshot) -> Told:
    times = "" if slot.speedup is None else f"{slot.speedup:.2f} times as fast"
    match slot.state:
        case "forced_on":
            return Told("always on", "It is not asked whether it pays.")
        case "forced_off":
            return Told("off", "Nothing new is offered the slot.")
        case "profiling":
            return Told("being measured", f"{slot.samples} of {SAMPLES} generations are timed.")
    match slot.verdict:
        case "enabled":
            return Told(times, "Measured: it pays.")
        case "declined":
            return Told("does not pay", f"Measured: {times}.")
        case "undecided":
            return Told("too close to call", f"Measured: {times}.")
    return Told("not measured", "")


def _kept(slot: SlotSnapshot) -> Told:
    if not slot.proposed:
        return Told("none yet", "")
    share = slot.accepted / slot.proposed
    return Told(f"{share:.0%}", f"{number(slot.accepted)} of {counted(slot.proposed, 'drafted token')}")


def _tenant(id_: str, tenants: Mapping[str, str]) -> str:
    return tenants.get(id_, id_[:8])
