"""Turns at the speculative slot: the rules, by their vectors and by their bounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.scheduling.rotation import (
    BACKLOG_CAP,
    SKIP_CAP,
    Contender,
    backlog_admits,
    grant_expired,
    next_grant_index,
)

VECTORS = json.loads((Path(__file__).parent / "vectors" / "rotation.json").read_text())
RANKS = {"high": 0, "normal": 1, "low": 2}


@pytest.mark.parametrize("case", VECTORS["next_grant_index"], ids=str)
def test_the_next_grant_is_the_vectors_own(case: dict[str, Any]) -> None:
    ring = [Contender(RANKS[lane], skips) for lane, skips in case["ring"]]
    assert next_grant_index(ring) == case["index"]


def test_an_empty_ring_grants_nobody() -> None:
    assert next_grant_index([]) is None


def test_equally_skipped_entries_go_in_the_order_in_which_they_came() -> None:
    assert next_grant_index([Contender(2, 2), Contender(0, 2), Contender(1, 2)]) == 0


@pytest.mark.parametrize(
    ("slices", "budget", "backlog_pending", "expired"),
    [
        (1, 2, True, False),
        (2, 2, True, True),
        (9, 2, True, True),
        (9, 2, False, False),
        (1, 1, True, True),
        (1, 1, False, False),
        (9, 0, True, False),
        (0, 0, True, False),
    ],
)
def test_a_grant_expires_with_its_budget_and_only_while_somebody_waits(
    slices: int, budget: int, backlog_pending: bool, expired: bool
) -> None:
    assert grant_expired(slices, budget, backlog_pending) is expired


@pytest.mark.parametrize(
    ("backlog_len", "budget", "admits"),
    [(0, 1, True), (1, 8, True), (2, 8, False), (3, 8, False), (0, 0, False), (1, 0, False)],
)
def test_two_may_wait_and_nobody_without_rotation(backlog_len: int, budget: int, admits: bool) -> None:
    assert backlog_admits(backlog_len, budget) is admits


rings = st.lists(st.builds(Contender, st.integers(0, 3), st.integers(0, 5)), min_size=1, max_size=6)


@given(rings)
def test_lanes_count_only_while_nobody_is_overdue(ring: list[Contender]) -> None:
    index = next_grant_index(ring)
    assert index is not None
    chosen, before = ring[index], ring[:index]
    if max(one.skips for one in ring) >= SKIP_CAP:
        assert all(one.skips <= chosen.skips for one in ring)
        assert all(one.skips < chosen.skips for one in before)
    else:
        assert all(one.lane_rank >= chosen.lane_rank for one in ring)
        assert all(one.lane_rank > chosen.lane_rank for one in before)


@given(
    ahead=st.lists(st.integers(0, 3), max_size=BACKLOG_CAP),
    lane_rank=st.integers(0, 3),
    arrivals=st.lists(st.integers(0, 3), min_size=4, max_size=4),
)
def test_whoever_joins_a_ring_of_three_is_granted_by_the_fourth_decision(
    ahead: list[int], lane_rank: int, arrivals: list[int]
) -> None:
    """Whoever comes after each decision; by the third, unless another of the ring is overdue as long."""
    ring = [(Contender(rank, 0), "") for rank in ahead] + [(Contender(lane_rank, 0), "it")]
    for decision, arrival in enumerate(arrivals, 1):
        index = next_grant_index([contender for contender, _ in ring])
        assert index is not None
        overdue = [name for contender, name in ring if contender.skips >= SKIP_CAP]
        if ring.pop(index)[1] == "it":
            return
        assert decision < 3 or (decision == 3 and len(overdue) > 1)
        ring = [(Contender(one.lane_rank, one.skips + 1), name) for one, name in ring]
        ring.append((Contender(arrival, 0), ""))
    pytest.fail("it was passed over four times")
