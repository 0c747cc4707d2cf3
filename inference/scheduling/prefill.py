"""Which parked prompts share the next prefill tick: lanes with a floor, short and long in turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from inference.scheduling.lanes import pick_lane


@dataclass(frozen=True, slots=True)
class ParkedPrompt:
    """An admitted prompt that is not finished.

    ``order``: its admission's number, unique and growing. ``remaining``: prompt tokens still to run, at least 1.
    ``begun``: some of it was run since its admission. ``last_chunk_apart``: its last chunk is not to be run with what
    is before it, because the speculative slot is offered to it then.
    """

    order: int
    lane_rank: int
    remaining: int
    begun: bool = False
    last_chunk_apart: bool = False

    def is_short_newcomer(self, chunk_tokens: int) -> bool:
        """Whether it has not begun and fits one chunk: nobody else is worth waiting for."""
        return not self.begun and self.remaining <= chunk_tokens


@dataclass(frozen=True, slots=True)
class Hold:
    """Prompts of a lane that could end wait for others, in a quiet time (``scheduling.quiet``).

    ``tail``: what each may leave, as it was when that began. ``turns``: how many more the others may have.
    """

    tail: int
    turns: int


@dataclass(frozen=True, slots=True)
class PrefillLedger:
    """What earlier grants mean for the next.

    ``skips``: by lane, how often it was passed over. ``short_last``: lanes whose last grant went to short prompts, or
    to such as ended. ``rotation``: prompts by their admission's number, next in turn first. ``holds``: by lane.
    """

    skips: Mapping[int, int] = field(default_factory=dict)
    short_last: frozenset[int] = frozenset()
    rotation: tuple[int, ...] = ()
    holds: Mapping[int, Hold] = field(default_factory=dict)


def pick_prefill(
    parked: Sequence[ParkedPrompt], ledger: PrefillLedger, chunk_tokens: int, cap: int = 4
) -> tuple[tuple[int, ...], PrefillLedger]:
    """The prompts that share the next prefill tick, as indices into ``parked``, and the ledger once it ran.

    ``parked`` is in admission order. It may be asked every tick; the ledger is kept only if the tick ran.

    A lane is chosen by ``pick_lane``. Inside it, *short* prompts (the remainder fits one chunk) go in
    admission order, *long* ones round-robin, and the two kinds take turns while both wait. Further short prompts of
    the lane join, in order, while rows × longest remainder stays within ``chunk_tokens``; a long prompt
    runs alone. Nothing is held: this is how prompts are run beside streams.
    """
    rank, skips = pick_lane({prompt.lane_rank for prompt in parked}, ledger.skips, cap)
    if rank is None:
        return (), PrefillLedger(skips=skips, short_last=ledger.short_last)
    index_of_long = {
        prompt.order: index
        for index, prompt in enumerate(parked)
        if prompt.lane_rank == rank and prompt.remaining > chunk_tokens
    }
    shorts = [
        index
        for index, prompt in enumerate(parked)
        if prompt.lane_rank == rank and prompt.remaining <= chunk_tokens
    ]
    rotation = in_turn(parked, ledger)
    longs = [order for order in rotation if order in index_of_long]

    if shorts and not (longs and rank in ledger.short_last):
        chosen = packed(parked, shorts, chunk_tokens)
        return chosen, PrefillLedger(skips, ledger.short_last | {rank}, tuple(rotation))
    turn = longs[0]
    rotation.remove(turn)
    rotation.append(turn)
    return (index_of_long[turn],), PrefillLedger(skips, ledger.short_last - {rank}, tuple(rotation))


def in_turn(parked: Sequence[ParkedPrompt], ledger: PrefillLedger) -> list[int]:
    """The admission numbers of all that are parked, next in turn first: who has come since is last."""
    waiting = dict.fromkeys(prompt.order for prompt in parked)
    known = dict.fromkeys(order for order in ledger.rotation if order in waiting)
    return [*known, *(order for order in waiting if order not in known)]


def packed(parked: Sequence[ParkedPrompt], indices: Sequence[int], tokens: int) -> tuple[int, ...]:
    """The first of ``indices``, and those after it while rows × longest remainder stays within ``tokens``."""
    longest, rows = parked[indices[0]].remaining, 1
    for index in indices[1:]:
        longest = max(longest, parked[index].remaining)
        if (rows + 1) * longest > tokens:
            break
        rows += 1
    return tuple(indices[:rows])


def padded_tokens(parked: Sequence[ParkedPrompt], indices: Sequence[int], tokens: int) -> int:
    """What a tick with at most ``tokens`` of each of these prompts runs: shorter rows are padded to the longest."""
    return len(indices) * max((min(parked[index].remaining, tokens) for index in indices), default=0)
