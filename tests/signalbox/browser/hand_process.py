"""A worker's hand in a process of its own, on a live stack's state: reads one JSON command a line, answers each.

Started by ``site.RemoteHand``. Commands name a method of ``Hand`` or, once one was taken, of the ``Run``;
``forget`` makes way for the next test.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import django

django.setup()

from django.db import connections  # noqa: E402

from accounts import entitlements  # noqa: E402
from accounts.models import Entitlement, Lane, Tenant  # noqa: E402
from accounts.principal import Actor  # noqa: E402
from accounts.tenancy import every_tenant  # noqa: E402
from inference import cancellation  # noqa: E402
from inference.messages import CancelReason, FinishReason  # noqa: E402
from inference.models import Conversation, Generation  # noqa: E402
from signalbox import store  # noqa: E402
from tests.inference.api.hand import Hand, Run  # noqa: E402

_ENUMS = {"finish": FinishReason, "end_cancelled": CancelReason}


def forget() -> None:
    """End what is under way, and give the tenant back the lanes that it had at the start."""
    try:
        with every_tenant("the next test starts afresh"):
            for generation in Generation.objects.filter(ended_at=None):
                cancellation.cancel(generation.id, CancelReason.OPERATOR_REQUESTED)
            Conversation.objects.all().delete()
            works = Tenant.objects.get(slug="works")
            for lane in Lane.objects.all():
                if not Entitlement.objects.filter(tenant=works, lane=lane, ended_at=None).exists():
                    entitlements.grant(tenant=works, lane=lane, actor=Actor.system("browser tests"))
    finally:
        connections.close_all()


async def obey(hand: Hand, runs: dict[str, Run], command: dict[str, Any]) -> Any:
    """Carry out one command. ``take`` answers the generation's name, by which later ones mean its run."""
    verb, arguments = command["verb"], command.get("arguments", [])
    if verb == "take":
        run = await hand.take()
        runs[run.generation] = run
        return run.generation
    if verb == "forget":
        return await asyncio.to_thread(forget)
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
