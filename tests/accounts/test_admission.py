from __future__ import annotations

import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from threading import Event
from typing import Any

import pytest
import time_machine
from django.db import connection, transaction
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries
from time_machine import Traveller

from accounts import entitlements, reservations, tenants
from accounts.admission import Admission, Plan, RightLost, admit, plan
from accounts.authentication import principal_of_member
from accounts.lane_resolution import Denial, Refused, Wish
from accounts.limits import LimitName
from accounts.models import Allowance, AssignmentReason, Entitlement, Lane, LaneAssignment
from accounts.principal import Principal
from accounts.reservations import Short
from accounts.tenancy import every_tenant, tenant_scope
from tests.factories import (
    ACTOR,
    AllowanceFactory,
    ApiKeyFactory,
    EntitlementFactory,
    MembershipFactory,
    TenantFactory,
)

pytestmark = pytest.mark.django_db


def _principal(**fields: Any) -> Principal:
    tenant = fields.pop("tenant", None) or TenantFactory()
    return Principal(
        tenant_id=tenant.id,
        tenant_name=tenant.name,
        scopes=frozenset({"inference"}),
        name="key",
        **fields,
    )


def _plan(principal: Principal, requested: str | None = None, tokens: int = 100) -> Plan:
    wish = Wish(requested=requested, tokens=tokens, prompt_tokens=10)
    return plan(principal, wish, timezone.now())


def _admit(principal: Principal, requested: str | None = None, tokens: int = 100) -> Admission:
    planned = _plan(principal, requested, tokens)
    with transaction.atomic():
        return admit(principal, planned, planned.choose(), uuid.uuid4())


@pytest.fixture
def assignment() -> Any:
    def only() -> LaneAssignment:
        with every_tenant("the test looks at what it made"):
            return LaneAssignment.objects.get()

    return only


def test_an_admission_carries_the_entitlement_s_rights_and_leaves_its_assignment(assignment: Any) -> None:
    tenant = TenantFactory(name="Rail")
    low = EntitlementFactory(
        tenant=tenant,
        lane=Lane.objects.get(name="low"),
        weight=5,
        speculation=False,
        longest_queue_wait_s=30,
        allowance__tokens_per_day=1000,
    )
    key = ApiKeyFactory(tenant=tenant, allowance__concurrency=2)
    principal = _principal(
        tenant=tenant, api_key_id=key.id, api_key_prefix="abc", key_allowance_id=key.allowance_id
    )
    admission = _admit(principal, "priority")
    assert (admission.lane, admission.lane_rank, admission.service_tier) == ("low", 2, "flex")
    assert (admission.weight, admission.speculation) == (5, False)
    assert admission.longest_queue_wait_s == 30
    assert admission.requested_lane == "priority"
    assert admission.reason == AssignmentReason.NOT_ENTITLED
    assert {(state.name, state.used) for state in admission.limits} == {
        (LimitName.TOKENS_PER_DAY, 100),
        (LimitName.CONCURRENCY, 1),
    }
    row = assignment()
    assert (row.requested_lane, row.given_lane) == ("priority", "low")
    assert row.reason == "not_entitled"
    assert (row.tenant_name, row.api_key_id, row.api_key_prefix) == ("Rail", key.id, "abc")
    assert row.entitlement_id == low.id
    assert row.policy_version == 2
    assert {"name": "tokens_per_day", "limit": 1000, "used": 100} in row.budget_position


def test_a_step_down_is_in_the_assignment_with_the_limit_that_was_short(assignment: Any) -> None:
    tenant = TenantFactory()
    low = Lane.objects.get(name="low")
    high = EntitlementFactory(
        tenant=tenant,
        lane=Lane.objects.get(name="high"),
        on_exhausted="step_down",
        step_down_to=low,
        allowance__tokens_per_week=99,
    )
    EntitlementFactory(tenant=tenant, lane=low)
    admission = _admit(_principal(tenant=tenant), "high")
    assert (admission.lane, admission.reason) == ("low", AssignmentReason.STEPPED_DOWN)
    assert assignment().step_downs == [
        {"lane": "high", "entitlement_id": str(high.id), "limit": "tokens_per_week"}
    ]


def test_a_member_s_assignment_has_the_person_s_id_and_no_name(assignment: Any) -> None:
    membership = MembershipFactory()
    EntitlementFactory(tenant=membership.tenant)
    _admit(principal_of_member(membership.user_id, membership.tenant_id))
    row = assignment()
    assert row.user_id == membership.user_id
    with every_tenant("test"):
        assert membership.user.username not in str(LaneAssignment.objects.filter(pk=row.pk).values())
    assert (row.requested_lane, row.reason) == ("", "tenant_default")


@pytest.mark.parametrize("requested", ["normal", "no-such-lane"])
def test_a_refused_request_leaves_no_assignment(requested: str) -> None:
    # Another tenant's entitlement, and one that has ended, give no right.
    EntitlementFactory()
    principal = _principal()
    with pytest.raises(Refused):
        _admit(principal, requested)
    with every_tenant("test"):
        assert not LaneAssignment.objects.exists()


@pytest.mark.parametrize(
    "fields",
    [
        {"ended_at": datetime(2026, 1, 1, tzinfo=UTC)},
        {"starts_at": datetime(2200, 1, 1, tzinfo=UTC)},
        {"ends_at": datetime(2026, 1, 1, tzinfo=UTC)},
        {"approval": "requested"},
    ],
    ids=["ended", "not yet", "lapsed", "not approved"],
)
def test_an_entitlement_that_does_not_give_now_gives_nothing(fields: dict[str, Any]) -> None:
    tenant = TenantFactory()
    EntitlementFactory(tenant=tenant, **fields)
    with pytest.raises(Refused) as refusal:
        _admit(_principal(tenant=tenant))
    assert refusal.value.code == Denial.NO_ENTITLEMENT


def _end(entitlement: Entitlement, clock: Traveller) -> None:
    clock.shift(timedelta(milliseconds=300))
    entitlements.end(entitlement=entitlement, actor=ACTOR)


def _let_its_time_pass(entitlement: Entitlement, clock: Traveller) -> None:
    assert entitlement.ends_at is not None
    clock.move_to(entitlement.ends_at)


def _close_the_tenant(entitlement: Entitlement, clock: Traveller) -> None:
    tenants.close(tenant=entitlement.tenant, actor=ACTOR)


@pytest.mark.parametrize("happens", [_end, _let_its_time_pass, _close_the_tenant])
def test_a_right_that_ends_while_a_request_waits_gives_nothing(
    happens: Callable[[Entitlement, Traveller], None],
) -> None:
    tenant = TenantFactory()
    with time_machine.travel(datetime(2026, 3, 1, 12, tzinfo=UTC), tick=False) as clock:
        temporary = EntitlementFactory(tenant=tenant, ends_at=timezone.now() + timedelta(seconds=2))
        standing = EntitlementFactory(tenant=tenant)
        principal = _principal(tenant=tenant)
        planned = _plan(principal)
        choice = planned.choose()
        assert choice.resolution.entitlement_id == temporary.id
        happens(temporary, clock)
        with pytest.raises(RightLost), transaction.atomic():
            admit(principal, planned, choice, uuid.uuid4())
        anew = _plan(principal)
        if happens is _close_the_tenant:
            with pytest.raises(Refused) as refusal:
                anew.choose()
            assert refusal.value.code == Denial.NO_ENTITLEMENT
        else:
            assert anew.choose().resolution.entitlement_id == standing.id


@pytest.mark.django_db(transaction=True)
def test_nothing_is_admitted_by_an_entitlement_after_its_end() -> None:
    tenant = TenantFactory()
    entitlement = EntitlementFactory(tenant=tenant)
    principal = _principal(tenant=tenant)
    ending = Event()

    def end() -> datetime | None:
        try:
            ending.set()
            return entitlements.end(entitlement=entitlement, actor=ACTOR).ended_at
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic(), every_tenant("the test holds the budget, as a settlement does"):
            reservations.lock([entitlement.allowance_id])
            ended = pool.submit(end)
            assert ending.wait(10)
            planned = _plan(principal)
            admit(principal, planned, planned.choose(), uuid.uuid4())
        ended_at = ended.result(30)
    with every_tenant("test"):
        assigned_at = LaneAssignment.objects.get().created_at
    assert ended_at is not None
    assert assigned_at <= ended_at


def test_a_budget_that_was_lost_between_plan_and_admission_is_short_and_nothing_is_held() -> None:
    tenant = TenantFactory()
    entitlement = EntitlementFactory(tenant=tenant, allowance__tokens_per_day=150)
    principal = _principal(tenant=tenant)
    late = _plan(principal)
    choice = late.choose()
    _admit(principal)
    with pytest.raises(Short) as short, transaction.atomic():
        admit(principal, late, choice, uuid.uuid4())
    assert (short.value.state.used, short.value.state.limit) == (100, 150)
    late.is_short(short.value.allowance_id, short.value.state)
    with pytest.raises(Refused) as refusal:
        late.choose()
    assert refusal.value.code == Denial.INSUFFICIENT_QUOTA
    with tenant_scope(tenant.id):
        assert Allowance.objects.get(id=entitlement.allowance_id).live_generations == 1
        assert LaneAssignment.objects.count() == 1


def test_a_key_s_limit_that_is_found_short_is_the_key_s() -> None:
    tenant = TenantFactory()
    EntitlementFactory(tenant=tenant)
    allowance = AllowanceFactory(tenant=tenant, concurrency=1)
    principal = _principal(tenant=tenant, api_key_id=uuid.uuid4(), key_allowance_id=allowance.id)
    late = _plan(principal)
    choice = late.choose()
    _admit(principal)
    with pytest.raises(Short) as short, transaction.atomic():
        admit(principal, late, choice, uuid.uuid4())
    late.is_short(short.value.allowance_id, short.value.state)
    with pytest.raises(Refused) as refusal:
        late.choose()
    assert (refusal.value.code, refusal.value.subject) == (
        Denial.CONCURRENCY_LIMIT_EXCEEDED,
        "this API key",
    )


@pytest.mark.parametrize("lanes", [1, 3])
def test_admission_costs_the_same_queries_whatever_there_is(
    lanes: int, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    tenant = TenantFactory()
    key = ApiKeyFactory(tenant=tenant)
    principal = _principal(tenant=tenant, api_key_id=key.id, key_allowance_id=key.allowance_id)
    for lane in Lane.objects.order_by("-rank")[:lanes]:
        EntitlementFactory(tenant=tenant, lane=lane, allowance__tokens_per_day=10_000)
        # The first of a window opens it.
        _admit(principal, lane.name)
    with django_assert_num_queries(4):
        planned = _plan(principal, "low")
    choice = planned.choose()
    # Allowances, windows, three updates and inserts of the reservation, the entitlement, the assignment.
    with transaction.atomic(), django_assert_num_queries(7):
        admit(principal, planned, choice, uuid.uuid4())
