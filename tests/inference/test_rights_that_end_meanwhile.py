"""A request that waits for the database while its right ends, or is replaced: what it gets is decided by what is there
when its turn comes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
from django.db import connection, transaction

from accounts import approvals, entitlements, reservations
from accounts.limits import Limits
from accounts.models import Entitlement, Lane, LaneAssignment
from accounts.tenancy import every_tenant
from inference.dispatch import keys as dispatch_keys
from inference.intake import Accepted, Refused
from inference.models import LanguageModel
from tests.factories import ACTOR, EntitlementFactory, LanguageModelFactory, OperatorFactory, TenantFactory
from tests.inference.doors import accepted, principal_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("valkey")]

WAITS_WITHIN_S = 60.0


def _accepted_while(
    entitlement: Entitlement, model: LanguageModel, client: redis.Redis, happens: Callable[[], object]
) -> Accepted:
    """Accept a request that has chosen ``entitlement``, and then waits while ``happens`` is done and committed."""
    principal = principal_of(entitlement.tenant)

    def ask() -> Accepted:
        try:
            return accepted(model, by=principal, requested_lane=entitlement.lane_id)
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic(), every_tenant("the test holds what a settlement would"):
            reservations.lock([entitlement.allowance_id])
            asked = pool.submit(ask)
            _wait_until_it_has_its_place(client, model)
            happens()
        return asked.result(WAITS_WITHIN_S)


def _wait_until_it_has_its_place(client: redis.Redis, model: LanguageModel) -> None:
    """It takes one once it has chosen, and before its transaction begins."""
    deadline = time.monotonic() + WAITS_WITHIN_S
    while not client.zcard(dispatch_keys.places(model.name)):
        assert time.monotonic() < deadline, "the request takes no place"
        time.sleep(0.01)


def test_whose_right_is_ended_meanwhile_gets_what_there_is_beside_it(valkey: redis.Redis) -> None:
    tenant, model = TenantFactory(), LanguageModelFactory()
    ends, low = EntitlementFactory(tenant=tenant), Lane.objects.get(name="low")
    EntitlementFactory(tenant=tenant, lane=low)
    got = _accepted_while(ends, model, valkey, lambda: entitlements.end(entitlement=ends, actor=ACTOR))
    assert got.admission.lane == "low"
    with every_tenant("test"):
        assert not LaneAssignment.objects.filter(entitlement_id=ends.id).exists()


def test_whose_last_right_is_ended_meanwhile_is_refused(valkey: redis.Redis) -> None:
    ends, model = EntitlementFactory(), LanguageModelFactory()
    with pytest.raises(Refused) as refusal:
        _accepted_while(ends, model, valkey, lambda: entitlements.end(entitlement=ends, actor=ACTOR))
    assert refusal.value.code == "no_entitlement"
    with every_tenant("test"):
        assert not LaneAssignment.objects.exists()
    assert valkey.zcard(dispatch_keys.places(model.name)) == 0


def test_whose_right_is_replaced_meanwhile_gets_the_new_one(valkey: redis.Redis) -> None:
    """An approval takes nothing from anybody for a moment."""
    model, high = LanguageModelFactory(), Lane.objects.get(name="high")
    present = EntitlementFactory(lane=high, allowance__tokens_per_month=100)
    Lane.objects.filter(name="high").update(approval_above_tokens=100)
    asking, deciding = OperatorFactory(), OperatorFactory()
    wider = entitlements.change(
        entitlement=present, limits=Limits(tokens_per_month=200), granted_by=asking, actor=ACTOR
    )
    got = _accepted_while(
        present,
        model,
        valkey,
        lambda: approvals.approve(entitlement=wider, decided_by=deciding, actor=ACTOR),
    )
    assert (got.admission.lane, got.admission.entitlement_id) == ("high", wider.id)
