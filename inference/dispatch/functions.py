"""The server-side functions: each file of ``lua/`` is one atomic step in Valkey.

They check fences and move what is kept; they decide nothing. What is served next, and what it is charged, is
computed by ``inference.scheduling`` and handed to them.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import Any, Final

import redis

#: Put before every function, in this order.
_PRELUDE: Final = ("keys", "transitions")


class ServerFunction:
    """One Lua file, called by its hash and sent again to a server that does not know it (a restarted one)."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._text = "\n".join(_source(part) for part in (*_PRELUDE, name))
        self._sha = hashlib.sha1(self._text.encode(), usedforsecurity=False).hexdigest()

    def __call__(self, client: redis.Redis, *arguments: str | bytes | int) -> Any:
        """Run it. Raises ``redis.RedisError`` when the server cannot be reached or refuses."""
        try:
            return client.evalsha(self._sha, 0, *arguments)
        except redis.exceptions.NoScriptError:
            return client.eval(self._text, 0, *arguments)


@cache
def _source(name: str) -> str:
    return (files("inference.dispatch") / "lua" / f"{name}.lua").read_text(encoding="utf-8")


take_place: Final = ServerFunction("take_place")
enqueue: Final = ServerFunction("enqueue")
withdraw: Final = ServerFunction("withdraw")
position: Final = ServerFunction("position")
contenders: Final = ServerFunction("contenders")
claim: Final = ServerFunction("claim")
renew: Final = ServerFunction("renew")
requeue: Final = ServerFunction("requeue")
acknowledge: Final = ServerFunction("acknowledge")
publish: Final = ServerFunction("publish")
append_end: Final = ServerFunction("append_end")
