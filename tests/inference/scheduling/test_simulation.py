"""The whole scheduler at work against whatever may arrive (``simulation`` has its parts)."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

from hypothesis import example, given

from inference.scheduling.preemption import MOST_PREEMPTIONS
from inference.scheduling.tick import PrefillLimits
from tests.inference.scheduling.simulation import (
    AMPLE,
    LANE_WINDOW,
    LANES,
    STEP,
    Machine,
    Request,
    Shape,
    Trouble,
    Worker,
    days,
    few,
    flood,
    floods,
    live,
    machines,
    shapes,
)

# Trouble of every kind


@few
@given(machines(), days(shapes()))
def test_everything_that_arrives_ends_whatever_arrives(machine: Machine, day: list[Trouble]) -> None:
    live(machine, day)


@few
@given(machines(), days(shapes(), crowd=8, cancels=6))
def test_storms_of_cancellations_leave_nothing_behind(machine: Machine, day: list[Trouble]) -> None:
    """F16."""
    live(machine, day)


@few
@given(machines(), days(shapes(prompt=(40, 120), tokens=(20, 60)), crowd=3))
def test_long_requests_only(machine: Machine, day: list[Trouble]) -> None:
    live(machine, day)


@few
@given(machines(), days(shapes(prompt=(1, 4), tokens=(1, 3)), crowd=8))
def test_short_requests_only(machine: Machine, day: list[Trouble]) -> None:
    live(machine, day)


@few
@given(machines(), days(shapes(lanes=(1, 1)), crowd=4))
def test_one_lane_only_never_preempts(machine: Machine, day: list[Trouble]) -> None:
    worker = live(machine, day)
    assert all(one.preempted == 0 for one in worker.requests)


@few
@given(machines(budgets=(8, 60)), days(shapes(prompt=(1, 40)), crowd=4, cancels=1))
def test_memory_for_one_request_at_a_time(machine: Machine, day: list[Trouble]) -> None:
    """What exceeds the whole budget is ended, all else runs."""
    for request in live(machine, day).requests:
        needs = math.ceil(request.cost / STEP) * STEP
        assert (request.ended == "never fits") <= (needs > machine.budget)
        assert request.ended != "completed" or needs <= machine.budget


@few
@given(machines(budgets=AMPLE), days(shapes(), crowd=5))
def test_the_starving_baseline_still_ends_when_the_streams_do(machine: Machine, day: list[Trouble]) -> None:
    live(replace(machine, limits=replace(machine.limits, interval=0)), day)


# Floods without an end


@few
@given(machines(budgets=AMPLE, chunks=(8, 24)), floods, shapes(prompt=(1, 40), tokens=(1, 20)))
@example(
    machine=Machine(PrefillLimits(8, 1), rows=1, preempts=False),
    saturated={0: [Shape("a", 0, 1, 14, 4)], 1: [Shape("a", 0, 1, 4, 4)], 2: [Shape("a", 0, 1, 4, 4)]},
    probe=Shape("a", 2, 1, 1, 1),
)
@example(
    machine=Machine(PrefillLimits(8, 7), rows=2),
    saturated={lane: [Shape("flood", lane, 1, 4, 4)] for lane in range(LANES)},
    probe=Shape("probe", 2, 60, 20, 20),
)
def test_f7_a_low_request_ends_while_every_lane_is_saturated_for_ever(
    machine: Machine, saturated: dict[int, list[Shape]], probe: Shape
) -> None:
    """With memory for all: it is admitted when its lane is served next, and again after a preemption once the other
    tenant of its lane has had as much as it was charged."""
    worker = Worker(machine)
    tenants = {lane: itertools.cycle(cycle) for lane, cycle in saturated.items()}
    for _ in range(40):
        flood(worker, tenants)
        worker.tick()
    request = worker.arrive("probe", probe.lane, probe.prompt, probe.max_tokens, probe.length)
    least = min(one.prompt + one.max_tokens for one in saturated[probe.lane])
    # Of its lane, these may come before it: one that waited before it came, with the same tag; preempted ones, whose
    # tag may tie with it as they are not charged again; and once it was charged and preempted itself, as much as it
    # was charged, each of that served up to three times.
    ties = 1 + (MOST_PREEMPTIONS * machine.rows if machine.preempts else 0)
    arrears = (1 + MOST_PREEMPTIONS) * (math.ceil(request.cost / least) + 1)
    seen, since = 0, worker.grants
    while not request.ended:
        flood(worker, tenants)
        worker.tick()
        if request.preempted != seen:
            seen, since = request.preempted, worker.grants
        if request in worker.queue:
            others = ties + (arrears if seen else 0)
            assert worker.grants - since <= (others + 1) * LANE_WINDOW
    assert request.produced == request.length


@few
@given(machines(budgets=(72, 160), chunks=(8, 24)), floods, shapes(prompt=(30, 50), tokens=(5, 20)))
def test_a_large_request_ends_while_small_ones_of_every_lane_fill_the_memory_for_ever(
    machine: Machine, saturated: dict[int, list[Shape]], probe: Shape
) -> None:
    worker = Worker(machine)
    tenants = {lane: itertools.cycle(cycle) for lane, cycle in saturated.items()}
    for _ in range(20):
        flood(worker, tenants)
        worker.tick()
    request = worker.arrive("probe", probe.lane, probe.prompt, probe.max_tokens, probe.length)
    for _ in range(6_000):
        if request.ended:
            break
        flood(worker, tenants)
        worker.tick()
    assert request.ended == "completed"


# By example


def full_of_low_streams(rows: int) -> tuple[Worker, list[Request]]:
    worker = Worker(Machine(PrefillLimits(8, 4), rows=rows))
    streams = [worker.arrive("a", 2, 4, 40, 40) for _ in range(rows)]
    while not all(stream.produced for stream in streams):
        worker.tick()
    return worker, streams


def test_f1_a_high_request_runs_at_once_and_the_preempted_stream_loses_nothing() -> None:
    worker, streams = full_of_low_streams(4)
    high = worker.arrive("b", 0, 4, 5, 5)
    worker.tick()
    assert high not in worker.queue
    [victim] = [stream for stream in streams if stream.preempted]
    assert victim.produced == min(stream.produced for stream in streams)
    worker.run_dry()
    assert [stream.produced for stream in streams] == [40] * 4


def test_equals_wait_for_a_row() -> None:
    worker, streams = full_of_low_streams(2)
    other = worker.arrive("b", 2, 4, 5, 5)
    while not any(stream.ended for stream in streams):
        assert other in worker.queue
        worker.tick()
    worker.run_dry()
    assert all(stream.preempted == 0 for stream in streams)
