from __future__ import annotations

import itertools
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest_django import DjangoAssertNumQueries

from accounts.admission import Denial, LaneChoice, Refused, admit, resolve_lane
from accounts.authentication import principal_of_member
from accounts.models import AssignmentReason, Lane, LaneAssignment
from accounts.principal import Principal
from accounts.tenancy import every_tenant, tenant_scope
from tests.factories import EntitlementFactory, MembershipFactory, TenantFactory

LANES = [
    LaneChoice("high", 0, "priority"),
    LaneChoice("normal", 1, "default"),
    LaneChoice("low", 2, "flex"),
]
NAMES = [lane.name for lane in LANES]
ENTITLEMENTS = [set(names) for size in range(4) for names in itertools.combinations(NAMES, size)]
#: What a client may say, and the lane it means; None is "nothing in particular".
REQUESTS = {
    None: None,
    "": None,
    "auto": None,
    "high": "high",
    "priority": "high",
    "normal": "normal",
    "default": "normal",
    "low": "low",
    "flex": "low",
}


def _at_or_below(name: str, entitled: set[str]) -> str | None:
    return next((lower for lower in NAMES[NAMES.index(name) :] if lower in entitled), None)


@pytest.mark.parametrize("entitled", ENTITLEMENTS, ids=lambda names: "+".join(sorted(names)) or "none")
@pytest.mark.parametrize("key_default", [None, *NAMES])
@pytest.mark.parametrize(("requested", "asked"), REQUESTS.items())
def test_every_combination_gets_the_lane_it_has_a_right_to(
    requested: str | None, asked: str | None, key_default: str | None, entitled: set[str]
) -> None:
    wanted = asked or key_default or "normal"
    given_lane = _at_or_below(wanted, entitled)
    if given_lane is None:
        with pytest.raises(Refused) as refusal:
            resolve_lane(requested=requested, key_default=key_default, lanes=LANES, entitled=entitled)
        assert refusal.value.code == Denial.NO_ENTITLEMENT
        return
    resolution = resolve_lane(requested=requested, key_default=key_default, lanes=LANES, entitled=entitled)
    if given_lane != wanted:
        reason = AssignmentReason.NOT_ENTITLED
    elif asked:
        reason = AssignmentReason.REQUESTED
    else:
        reason = AssignmentReason.KEY_DEFAULT if key_default else AssignmentReason.TENANT_DEFAULT
    assert (resolution.lane.name, resolution.reason) == (given_lane, reason)


@given(
    requested=st.one_of(
        st.none(), st.text(max_size=20), st.sampled_from([*NAMES, "priority", "flex", "auto"])
    ),
    entitled=st.sets(st.sampled_from(NAMES)),
    key_default=st.one_of(st.none(), st.sampled_from(NAMES)),
)
def test_nothing_that_a_client_says_gets_it_a_lane_it_has_no_right_to(
    requested: str | None, entitled: set[str], key_default: str | None
) -> None:
    try:
        resolution = resolve_lane(
            requested=requested, key_default=key_default, lanes=LANES, entitled=entitled
        )
    except Refused:
        return
    assert resolution.lane.name in entitled


@given(st.text(min_size=1).filter(lambda text: text not in REQUESTS))
def test_an_unknown_lane_is_refused_without_repeating_it(requested: str) -> None:
    with pytest.raises(Refused) as refusal:
        resolve_lane(requested=requested, key_default="low", lanes=LANES, entitled=NAMES)
    assert refusal.value.code == Denial.UNKNOWN_LANE
    assert refusal.value.message.startswith("There is no such lane")


def test_a_refusal_says_what_the_tenant_may_use() -> None:
    with pytest.raises(Refused) as refusal:
        resolve_lane(requested="flex", key_default=None, lanes=LANES, entitled={"high", "normal"})
    assert "priority, default" in refusal.value.message


def test_an_operator_s_own_lane_falls_to_the_next_lower_rank() -> None:
    lanes = [*LANES, LaneChoice("night", 9, "night")]
    resolution = resolve_lane(requested="low", key_default=None, lanes=lanes, entitled={"high", "night"})
    assert resolution.lane.name == "night"


def _principal(**fields: Any) -> Principal:
    tenant = fields.pop("tenant", None) or TenantFactory()
    return Principal(
        tenant_id=tenant.id,
        tenant_name=tenant.name,
        scopes=frozenset({"inference"}),
        name="key",
        **fields,
    )


@pytest.mark.django_db
def test_an_admission_carries_the_entitlement_s_rights_and_leaves_its_assignment() -> None:
    tenant = TenantFactory(name="Rail")
    low = EntitlementFactory(tenant=tenant, lane=Lane.objects.get(name="low"), weight=5, speculation=False)
    key_id = uuid.uuid4()
    principal = _principal(tenant=tenant, api_key_id=key_id, api_key_prefix="abc")
    generation_id = uuid.uuid4()
    admission = admit(principal, "priority", generation_id)
    assert (admission.lane, admission.lane_rank, admission.service_tier) == ("low", 2, "flex")
    assert (admission.weight, admission.speculation) == (5, False)
    assert admission.requested_lane == "priority"
    assert admission.reason == AssignmentReason.NOT_ENTITLED
    with tenant_scope(tenant.id):
        assignment = LaneAssignment.objects.get()
    assert assignment.generation_id == generation_id
    assert (assignment.requested_lane, assignment.given_lane) == ("priority", "low")
    assert assignment.reason == "not_entitled"
    assert (assignment.tenant_name, assignment.api_key_id, assignment.api_key_prefix) == (
        "Rail",
        key_id,
        "abc",
    )
    assert assignment.entitlement_id == low.id
    assert assignment.policy_version == 1


@pytest.mark.django_db
def test_a_member_s_assignment_names_the_person() -> None:
    membership = MembershipFactory()
    EntitlementFactory(tenant=membership.tenant)
    principal = principal_of_member(membership.user_id, membership.tenant_id)
    admit(principal, None, uuid.uuid4())
    with tenant_scope(membership.tenant_id):
        assignment = LaneAssignment.objects.get()
    assert (assignment.user_id, assignment.user_name) == (membership.user_id, membership.user.username)
    assert (assignment.requested_lane, assignment.reason) == ("", "tenant_default")


@pytest.mark.django_db
@pytest.mark.parametrize("requested", ["normal", "no-such-lane"])
def test_a_refused_request_leaves_no_assignment(requested: str) -> None:
    # Another tenant's entitlement, and one that has ended, give no right.
    EntitlementFactory()
    principal = _principal()
    with pytest.raises(Refused):
        admit(principal, requested, uuid.uuid4())
    with every_tenant("test"):
        assert not LaneAssignment.objects.exists()


@pytest.mark.django_db
def test_admission_costs_three_queries_whatever_there_is(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    tenant = TenantFactory()
    for lane in Lane.objects.all():
        EntitlementFactory(tenant=tenant, lane=lane)
    principal = _principal(tenant=tenant)
    with django_assert_num_queries(3):
        admit(principal, "flex", uuid.uuid4())
