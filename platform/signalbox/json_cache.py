from __future__ import annotations

import json
from typing import Any


class JsonSerializer:
    """Cache values as JSON: who can write to Valkey must not be able to run code here, as pickle would let them."""

    def dumps(self, obj: Any) -> bytes | int:
        # Django counts with INCR, which wants a bare integer.
        if type(obj) is int:
            return obj
        return json.dumps(obj).encode()

    def loads(self, data: bytes) -> Any:
        return json.loads(data)
