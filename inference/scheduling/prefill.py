"""Which parked prompts share the next prefill tick: lanes with a floor, short and long in turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from inference.scheduling.lanes import pick_lane


@dataclass(frozen=True, slots=True)
class ParkedPrompt:
    """An admitted prompt that is not finished.

    ``order``: its admission's number, unique and growing. ``remaining``: prompt tokens still to run, at least 1.
    """

    order: int
    lane_rank: int
    remaining: int


@dataclass(frozen=True, slots=True)
class PrefillLedger:
    """What earlier grants mean for the next.

    ``skips``: by lane, how often it was passed over. ``short_last``: lanes whose last grant went to short prompts.
    ``rotation``: long prompts by their admission's number, next in turn first.
    """

    skips: Mapping[int, int] = field(default_factory=dict)
    short_last: frozenset[int] = frozenset()
    rotation: tuple[int, ...] = ()


def pick_prefill(
    parked: Sequence[ParkedPrompt], ledger: PrefillLedger, chunk_tokens: int, cap: int = 4
) -> tuple[tuple[int, ...], PrefillLedger]:
    """The prompts that share the next prefill tick, as indices into ``parked``, and the ledger once it ran.

    ``parked`` is in admission order. It may be asked every tick; the ledger is kept only if the tick ran.

    A lane is chosen by ``pick_lane``. Inside it, *short* prompts (the remainder fits one chunk) go in
    admission order, *long* ones round-robin, and the two kinds take turns while both wait. Further short prompts of
    the lane join, in order, while rows × longest remainder stays within ``chunk_tokens``; a long prompt
    runs alone.
    """
    rank, skips = pick_lane({prompt.lane_rank for prompt in parked}, ledger.skips, cap)
    if rank is None:
        return (), PrefillLedger(skips=skips, short_last=ledger.short_last)
    index_of_long = {
        prompt.order: index for index, prompt in enumerate(parked) if prompt.remaining > chunk_tokens
    }
    known = [order for order in ledger.rotation if order in index_of_long]
    rotation = known + [order for order in index_of_long if order not in known]
    shorts = [
        index
        for index, prompt in enumerate(parked)
        if prompt.lane_rank == rank and prompt.remaining <= chunk_tokens
    ]
    longs = [order for order in rotation if parked[index_of_long[order]].lane_rank == rank]

    if shorts and not (longs and rank in ledger.short_last):
        chosen = _packed(parked, shorts, chunk_tokens)
        return chosen, PrefillLedger(skips, ledger.short_last | {rank}, tuple(rotation))
    turn = longs[0]
    rotation.remove(turn)
    rotation.append(turn)
    return (index_of_long[turn],), PrefillLedger(skips, ledger.short_last - {rank}, tuple(rotation))


def padded_tokens(parked: Sequence[ParkedPrompt], indices: Sequence[int], chunk_tokens: int) -> int:
    """Tokens that the tick runs for these prompts: shorter rows are padded to the longest."""
    return len(indices) * max((min(parked[index].remaining, chunk_tokens) for index in indices), default=0)


def _packed(parked: Sequence[ParkedPrompt], shorts: Sequence[int], chunk_tokens: int) -> tuple[int, ...]:
    longest, rows = parked[shorts[0]].remaining, 1
    for index in shorts[1:]:
        longest = max(longest, parked[index].remaining)
        if (rows + 1) * longest > chunk_tokens:
            break
        rows += 1
    return tuple(shorts[:rows])
