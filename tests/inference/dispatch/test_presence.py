"""Presence: who is read, and who has not been for the grace period."""

from __future__ import annotations

import pytest
import redis

from inference.dispatch import keys, presence
from inference.dispatch.presence import AbsenceWatch
from tests.inference.dispatch.conftest import OwnValkey

GRACE_S = 60.0


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_refreshed_generation_is_read(valkey: redis.Redis) -> None:
    presence.refresh(valkey, ["a", "b"], GRACE_S)
    assert presence.absent(valkey, ["a", "b", "c"]) == {"c"}
    assert presence.absent(valkey, []) == set()


def test_presence_ends_by_itself(valkey: redis.Redis) -> None:
    presence.refresh(valkey, ["a"], GRACE_S)
    assert 0 < valkey.pttl(keys.presence("a")) <= presence.ttl_s(GRACE_S) * 1000 <= 15_000


@pytest.mark.parametrize("grace_s", [0.2, 10.0, 60.0, 3600.0])
def test_a_reader_counts_as_present_for_part_of_the_grace_period(grace_s: float) -> None:
    assert 0 < presence.ttl_s(grace_s) < grace_s


def test_a_generation_without_a_reader_is_detached_after_the_grace_period(valkey: redis.Redis) -> None:
    clock = Clock()
    watch = AbsenceWatch(valkey, GRACE_S, clock)
    left = GRACE_S - presence.ttl_s(GRACE_S)
    assert watch.detached(["a"]) == set()
    clock.now += left - 1
    assert watch.detached(["a"]) == set()
    clock.now += 1
    assert watch.detached(["a"]) == {"a"}


def test_a_reader_that_comes_back_starts_the_period_anew(valkey: redis.Redis) -> None:
    clock = Clock()
    watch = AbsenceWatch(valkey, GRACE_S, clock)
    watch.detached(["a"])
    clock.now += GRACE_S / 2
    presence.refresh(valkey, ["a"], GRACE_S)
    assert watch.detached(["a"]) == set()
    valkey.delete(keys.presence("a"))
    clock.now += GRACE_S
    assert watch.detached(["a"]) == set()


def test_an_outage_of_valkey_detaches_nobody(own_valkey: OwnValkey) -> None:
    """While it is down no reader can refresh: all get the grace period anew."""
    clock = Clock()
    watch = AbsenceWatch(own_valkey.client(), GRACE_S, clock)
    watch.detached(["a"])
    own_valkey.crash()
    clock.now += 10 * GRACE_S
    with pytest.raises(redis.ConnectionError):
        watch.detached(["a"])
    own_valkey.start()
    assert watch.detached(["a"]) == set()
    clock.now += GRACE_S
    assert watch.detached(["a"]) == {"a"}
