"""Python and Lua name the keys alike, and no two names can be confused."""

from __future__ import annotations

import redis

from inference.dispatch import functions, keys

MODEL = "org/model:1"


def test_python_and_lua_name_the_same_keys(valkey: redis.Redis) -> None:
    prelude = "\n".join(functions._source(part) for part in functions._PRELUDE)
    named = valkey.eval(
        prelude
        + """
        return {STREAM, WORKERS, heartbeat_key('w'), generation_key('g'), log_key('g'), presence_key('g'),
          ledger_key(ARGV[1]), places_key(ARGV[1]), ranks_key(ARGV[1]), queue_key(ARGV[1], 2), wake_channel(ARGV[1])}
        """,
        0,
        MODEL,
    )
    assert [name.decode() for name in named] == [
        keys.STREAM,
        keys.WORKERS,
        keys.heartbeat("w"),
        keys.generation("g"),
        keys.log("g"),
        keys.presence("g"),
        keys.ledger(MODEL),
        keys.places(MODEL),
        keys.ranks(MODEL),
        keys.queue(MODEL, 2),
        keys.wake_channel(MODEL),
    ]


def test_functions_are_sent_again_to_a_server_that_forgot_them(valkey: redis.Redis) -> None:
    assert functions.position(valkey, "0" * 32) is None
    valkey.script_flush()
    assert functions.position(valkey, "0" * 32) is None
