"""The door itself, asked from the threads of one process: what ``benchmarks.admission_cost`` measures without HTTP.

Runs with an installation's environment. First it makes two tenants; one has every limit set, on its entitlements and on
its key, all too high to be reached. Their keys are its first line of output. Then it reads one JSON request a line
(``{"arm", "clients", "requests"}``) and answers one JSON line: each acceptance's seconds, and all of them together.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accounts.limits import Limits
    from accounts.principal import Principal
    from inference.intake import Submission

#: Prompt tokens and max_tokens of every request.
PROMPT_TOKENS, MAX_TOKENS = 32, 1
_HIGH = 10**12


def main(model_name: str) -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "signalbox.settings")
    import django

    django.setup()
    from accounts.authentication import authenticate_key
    from accounts.limits import LimitName, Limits

    limits = {"limits": Limits(**{name.value: _HIGH for name in LimitName}), "none": Limits()}
    keys = {arm: key_of_new_tenant(arm, of) for arm, of in limits.items()}
    principals = {arm: authenticate_key(key) for arm, key in keys.items()}
    submission = submission_to(model_name)
    print(json.dumps(keys), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        answer = accept_all(principals[asked["arm"]], submission, asked["clients"], asked["requests"])
        print(json.dumps(answer), flush=True)


def submission_to(model_name: str) -> Submission:
    """What every request asks of the model."""
    from inference.intake import Submission
    from inference.messages import Sampling
    from inference.models import LanguageModel

    return Submission(
        model=LanguageModel.objects.get(name=model_name),
        prompt=[5] * PROMPT_TOKENS,
        max_tokens=MAX_TOKENS,
        sampling=Sampling(seed=1),
        route="completions",
        keep_output=True,
    )


def key_of_new_tenant(name: str, limits: Limits) -> str:
    """The key of a tenant made for it, with these limits on its entitlements and on the key."""
    from django.db import transaction

    from accounts import allowances, keys, tenants
    from accounts.actors import command_actor
    from accounts.models import Allowance
    from accounts.tenancy import tenant_scope

    actor = command_actor("benchmark")
    tenant = tenants.create(name=name, slug=name, actor=actor)
    key = keys.create(tenant=tenant, name="benchmark", actor=actor)
    with tenant_scope(tenant.id), transaction.atomic():
        for allowance in Allowance.objects.all():
            allowances.change(allowance.id, limits)
    return key.raw


def accept_all(principal: Principal, submission: Submission, clients: int, requests: int) -> dict[str, Any]:
    """Accept so many, ``clients`` at a time: each acceptance's seconds, and all of them together."""
    from django.db import connections

    from inference.intake import accept

    begun: list[float] = []
    together = Barrier(clients, action=lambda: begun.append(time.perf_counter()))
    numbers = itertools.count()

    def work(_: int) -> list[float]:
        seconds = []
        together.wait()
        while next(numbers) < requests:
            started = time.perf_counter()
            accept(principal, submission)
            # As after a request: a thread keeps no connection.
            connections.close_all()
            seconds.append(time.perf_counter() - started)
        return seconds

    with ThreadPoolExecutor(clients) as pool:
        by_client = list(pool.map(work, range(clients)))
    return {"each": list(itertools.chain(*by_client)), "all": time.perf_counter() - begun[0]}


if __name__ == "__main__":
    main(*sys.argv[1:])
