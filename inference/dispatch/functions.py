"""The server-side functions: each file of ``lua/`` is one atomic step in Valkey.

They check fences and move what is kept; they decide nothing. What is served next, and what it is charged, is
computed by ``inference.scheduling`` and handed to them.

Beyond Valkey's memory limit nothing new is let in, while all that ends or frees something goes on:
refused, it would keep the memory full for ever.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import Any, Final

import redis
import redis.asyncio

#: Put before every function, in this order.
_PRELUDE: Final = ("keys", "transitions")


class ServerFunction:
    """One Lua file, called by its hash and sent again to a server that does not know it (a restarted one).

    ``lets_in``: it brings in new work, so it is refused beyond the memory limit.
    """

    def __init__(self, name: str, *, lets_in: bool = False) -> None:
        flags = "#!lua" if lets_in else "#!lua flags=allow-oom"
        self._text = "\n".join((flags, *(_source(part) for part in (*_PRELUDE, name))))
        self._sha = hashlib.sha1(self._text.encode(), usedforsecurity=False).hexdigest()

    def __call__(self, client: redis.Redis, *arguments: str | bytes | int | float) -> Any:
        """Run it. Raises ``redis.RedisError`` when the server cannot be reached or refuses."""
        try:
            return client.evalsha(self._sha, 0, *arguments)
        except redis.exceptions.NoScriptError:
            return client.eval(self._text, 0, *arguments)

    async def acall(self, client: redis.asyncio.Redis, *arguments: str | bytes | int | float) -> Any:
        """Run it, from an event loop."""
        try:
            return await client.evalsha(self._sha, 0, *arguments)
        except redis.exceptions.NoScriptError:
            return await client.eval(self._text, 0, *arguments)


@cache
def _source(name: str) -> str:
    return (files("inference.dispatch") / "lua" / f"{name}.lua").read_text(encoding="utf-8")


take_place: Final = ServerFunction("take_place", lets_in=True)
enqueue: Final = ServerFunction("enqueue", lets_in=True)
withdraw: Final = ServerFunction("withdraw")
position: Final = ServerFunction("position")
lanes: Final = ServerFunction("lanes")
contenders: Final = ServerFunction("contenders")
claim: Final = ServerFunction("claim")
renew: Final = ServerFunction("renew")
requeue: Final = ServerFunction("requeue")
acknowledge: Final = ServerFunction("acknowledge")
publish: Final = ServerFunction("publish")
append_end: Final = ServerFunction("append_end")
attend: Final = ServerFunction("attend")
beat: Final = ServerFunction("beat")
