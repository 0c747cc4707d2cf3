from __future__ import annotations

import redis

from inference.worker.backoff import Backoff
from inference.worker.counters import Counters
from inference.worker.threads import Job, JobThread
from tests.inference.worker.conftest import wait_until


def test_a_job_that_fails_is_tried_again_and_stops_no_other() -> None:
    done: list[str] = []

    def fails() -> None:
        done.append("fails")
        raise RuntimeError("a bug")

    thread = JobThread("jobs", [Job("fails", 0.01, fails), Job("works", 0.01, lambda: done.append("works"))])
    thread.start()
    wait_until(lambda: done.count("fails") >= 3 and done.count("works") >= 3)
    thread.stop()
    thread.join(10)
    assert not thread.is_alive()


def test_a_store_that_comes_back_is_told_once() -> None:
    attempts: list[int] = []
    recoveries: list[int] = []

    def away_twice() -> None:
        attempts.append(len(attempts))
        if len(attempts) <= 2:
            raise redis.ConnectionError("away")

    thread = JobThread("jobs", [Job("job", 0.01, away_twice)], recovered=lambda: recoveries.append(1))
    thread.start()
    wait_until(lambda: len(attempts) >= 6)
    thread.stop()
    thread.join(10)
    assert recoveries == [1]


def test_a_hurried_job_does_not_wait_for_its_turn() -> None:
    done: list[int] = []
    thread = JobThread("jobs", [Job("rare", 3600, lambda: done.append(1))])
    thread.start()
    wait_until(lambda: len(done) == 1)
    thread.hurry("rare")
    wait_until(lambda: len(done) == 2)
    thread.stop()
    thread.join(10)
    assert not thread.is_alive()


def test_delays_double_up_to_the_longest_and_begin_anew_after_a_success() -> None:
    backoff = Backoff(0.1, 0.5)
    assert [round(backoff.delay(), 1) for _ in range(5)] == [0.1, 0.2, 0.4, 0.5, 0.5]
    backoff.reset()
    assert backoff.delay() == 0.1


def test_series_are_named_as_prometheus_does() -> None:
    counters = Counters()
    counters.counter("ticks_total", action="decode").add(3)
    counters.counter("ticks_total", action="decode").add()
    counters.counter("plain").set(2.5)
    counters.counter("odd_total", name='a"b\\c\nd').add()
    histogram = counters.histogram("seconds", (0.1, 1.0), lane="high")
    for value in (0.05, 0.1, 0.5, 7.0):
        histogram.observe(value)
    assert counters.snapshot() == {
        'ticks_total{action="decode"}': 4,
        "plain": 2.5,
        'odd_total{name="a\\"b\\\\c\\nd"}': 1,
        'seconds_bucket{lane="high",le="0.1"}': 2,
        'seconds_bucket{lane="high",le="1.0"}': 3,
        'seconds_bucket{lane="high",le="+Inf"}': 4,
        'seconds_sum{lane="high"}': 7.65,
        'seconds_count{lane="high"}': 4,
    }
