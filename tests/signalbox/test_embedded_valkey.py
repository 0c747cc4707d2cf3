import redis


def test_the_embedded_server_keeps_an_append_only_file_and_evicts_nothing(valkey: redis.Redis) -> None:
    assert valkey.config_get("appendonly") == {b"appendonly": b"yes"} or valkey.config_get("appendonly") == {
        "appendonly": "yes"
    }
    assert "noeviction" in str(valkey.config_get("maxmemory-policy"))
