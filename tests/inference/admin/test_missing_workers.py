"""A worker that fell silent is missed exactly while its place is empty."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from inference.admin.missing_workers import unreplaced
from inference.models import Worker

_NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
_MODEL, _OTHER_MODEL = uuid.uuid4(), uuid.uuid4()


def worker(
    started: int, seen: int, *, stopped: bool = False, host: str = "a", model: uuid.UUID = _MODEL
) -> Worker:
    """A worker that was started and last seen so many minutes after noon."""
    last = _NOON + timedelta(minutes=seen)
    return Worker(
        model_id=model,
        hostname=host,
        pid=1,
        started_at=_NOON + timedelta(minutes=started),
        last_seen_at=last,
        stopped_at=last if stopped else None,
    )


def missed(*workers: Worker, alive: tuple[Worker, ...] = ()) -> list[Worker]:
    return unreplaced([*workers, *alive], {one.id.hex for one in alive})


def test_whoever_starts_in_its_place_ends_the_alarm() -> None:
    dead = worker(0, 10)
    assert missed(dead) == [dead]
    assert missed(dead, alive=(worker(11, 12),)) == []


def test_who_was_there_already_takes_no_place() -> None:
    dead = worker(0, 10)
    assert missed(dead, alive=(worker(1, 12),)) == [dead]


def test_another_model_or_another_host_is_another_place() -> None:
    dead = worker(0, 10)
    others = (worker(11, 12, host="b"), worker(11, 12, model=_OTHER_MODEL))
    assert missed(dead, alive=others) == [dead]


def test_of_two_that_fell_silent_one_start_replaces_one() -> None:
    first, second = worker(0, 10), worker(0, 11)
    assert missed(first, second, alive=(worker(12, 13),)) == [second]
    assert missed(first, second, alive=(worker(12, 13), worker(12, 13))) == []


def test_a_worker_that_was_stopped_is_not_missed_nor_is_whom_it_had_replaced() -> None:
    assert missed(worker(0, 10), worker(11, 20, stopped=True)) == []


_LIVES = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20), st.booleans()), max_size=12)


@given(_LIVES)
def test_a_supervisor_that_starts_each_anew_leaves_at_most_the_last_one_missed(
    lives: list[tuple[int, int, bool]],
) -> None:
    chain, now = [], 0
    for pause, life, stopped in lives:
        chain.append(worker(now + pause + 1, now + pause + 1 + life, stopped=stopped))
        now += pause + 1 + life
    last_is_missed = [one for one in chain[-1:] if one.stopped_at is None]
    assert missed(*chain) == last_is_missed
    assert missed(*chain[:-1], alive=tuple(chain[-1:])) == []
