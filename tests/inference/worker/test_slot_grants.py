"""Whose the grants of the slot were: counted for each tenant by the worker, and read on the live page."""

from __future__ import annotations

from collections.abc import Callable

import redis
from django.test import Client
from django.urls import reverse

from inference.admin.scheduler_slot import GrantsOf
from inference.dispatch.heartbeats import heartbeats
from inference.models import DrafterKind, LanguageModel
from tests.inference.doors import entitled_principal
from tests.inference.engine.speculating import ScriptedDrafter
from tests.inference.worker.conftest import ENDLESS, WorkerInThread, submit, wait_until
from tests.inference.worker.test_slot import SHORT, SlotWorker, drafter, slot_worker

__all__ = ["drafter", "slot_worker"]


def test_each_grant_counts_for_the_tenant_whose_generation_has_it(
    model: LanguageModel, slot_worker: Callable[..., SlotWorker], drafter: ScriptedDrafter
) -> None:
    worker = slot_worker(grant_rounds=2)
    one, other = entitled_principal(), entitled_principal()
    long = submit(model, by=one, prompt=SHORT, max_tokens=8)
    worker.claim()
    worker.turn()
    short = submit(model, by=other, prompt=SHORT, max_tokens=3)
    worker.claim()
    worker.run_dry()
    assert [key for key, _ in worker.grants] == [long, short, long, short, long]
    assert worker.loop.board.latest is not None
    assert worker.loop.board.latest.slot is not None
    assert worker.loop.board.latest.slot.grants == {one.tenant_id.hex: 3, other.tenant_id.hex: 2}
    assert worker.metrics.slot("normal").grants.value == 5


def test_the_live_page_tells_how_two_tenants_share_a_running_worker(
    as_operator: Client,
    model: LanguageModel,
    valkey: redis.Redis,
    start_worker: Callable[..., WorkerInThread],
) -> None:
    model.speculation, model.drafter, model.grant_rounds = "on", DrafterKind.PROMPT_LOOKUP, 2
    model.save()
    start_worker()
    ids = {entitled.tenant_id.hex: entitled for entitled in (entitled_principal(), entitled_principal())}
    for entitled in ids.values():
        submit(model, by=entitled, prompt=SHORT, max_tokens=ENDLESS, unattended=True)

    def told() -> dict[str, int]:
        beats = heartbeats(valkey)
        scheduler = beats[0].scheduler if beats else None
        return scheduler.slot.grants if scheduler is not None and scheduler.slot is not None else {}

    wait_until(lambda: len(told()) == 2 and min(told().values()) >= 3)
    page = as_operator.get(reverse("admin:inference_languagemodel_scheduler", args=(model.pk,)))
    [shown] = page.context["scheduler"].models[0].workers
    grants: list[GrantsOf] = shown.slot.grants
    assert {one.tenant for one in grants} == {entitled.tenant_name for entitled in ids.values()}
    more, less = (one.grants for one in grants)
    assert 3 <= less <= more <= less + 1, "they take turns, each two slices at a time"
    assert {one.of for one in grants} == {more + less}
    text = page.content.decode()
    listed = text[text.index("Grants by tenant") :]
    for one in grants:
        assert f'sb-rows-tenant">{one.tenant}</span><span class="sb-rows-count">{one.grants}<' in listed
