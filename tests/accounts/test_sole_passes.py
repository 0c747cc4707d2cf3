from __future__ import annotations

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from structlog.testing import capture_logs

from accounts import sole_passes
from accounts.sole_passes import sole_pass


def test_one_does_it_at_a_time_and_the_next_when_it_is_done(valkey: redis.Redis) -> None:
    with sole_pass("work", at_most_s=60) as first, sole_pass("work", at_most_s=60) as second:
        assert (first, second) == (True, False)
        with sole_pass("other work", at_most_s=60) as other:
            assert other
    with sole_pass("work", at_most_s=60) as third:
        assert third
    assert valkey.keys("pass:*") == []


def test_what_failed_is_done_again_and_what_died_after_a_while(valkey: redis.Redis) -> None:
    with pytest.raises(ZeroDivisionError), sole_pass("work", at_most_s=60):
        raise ZeroDivisionError
    with sole_pass("work", at_most_s=7) as alone:
        assert alone
        assert 0 < valkey.pttl("pass:work") <= 7000


def test_whoever_took_too_long_leaves_the_next_one_s_mark(valkey: redis.Redis) -> None:
    with sole_pass("work", at_most_s=60):
        valkey.delete("pass:work")  # it lapsed
        next_one = sole_passes.begin("work", at_most_s=60)
        assert next_one is not None
    with sole_pass("work", at_most_s=60) as third:
        assert not third
    sole_passes.end(next_one)
    assert sole_passes.begin("work", at_most_s=60) is not None


def test_what_was_done_has_not_failed_because_valkey_went_away(
    valkey: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = []
    with capture_logs() as logs, sole_pass("work", at_most_s=60):
        nobody = redis.Redis(port=1, retry=Retry(NoBackoff(), 0))
        monkeypatch.setattr(sole_passes, "_end_pass", lambda: nobody.register_script("return 1"))
        done.append("all of it")
    assert done == ["all of it"]
    assert [line["event"] for line in logs] == ["pass_left_to_lapse"]
