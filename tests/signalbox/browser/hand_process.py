"""A worker's hand in a process of its own, on a live stack's state: reads one JSON command a line, answers each.

Started by ``site.RemoteHand``. Commands name a method of ``Hand`` or, once one was taken, of the ``Run``.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import django

django.setup()

from inference.messages import CancelReason, FinishReason  # noqa: E402
from signalbox import store  # noqa: E402
from tests.inference.api.hand import Hand, Run  # noqa: E402

_ENUMS = {"finish": FinishReason, "end_cancelled": CancelReason}


async def obey(hand: Hand, runs: dict[str, Run], command: dict[str, Any]) -> Any:
    """Carry out one command. ``take`` answers the generation's name, by which later ones mean its run."""
    verb, arguments = command["verb"], command.get("arguments", [])
    if verb == "take":
        run = await hand.take()
        runs[run.generation] = run
        return run.generation
    if verb in _ENUMS:
        arguments = [_ENUMS[verb](argument) for argument in arguments]
    target: Any = runs[command["run"]] if "run" in command else hand
    return await getattr(target, verb)(*arguments)


async def main(model: str) -> None:
    hand, runs = Hand(store.sync_client(), model), dict[str, Run]()
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        try:
            answer = {"result": await obey(hand, runs, json.loads(line))}
        except Exception as error:  # noqa: BLE001 — it is the test's to see
            answer = {"error": repr(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
