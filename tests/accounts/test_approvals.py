"""The second person: large grants give nothing before another operator agrees, whichever way they are asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from accounts import approvals, entitlements, lanes, reservations, tenants
from accounts.admission import plan
from accounts.lane_resolution import Refused, Wish
from accounts.limits import LimitName, Limits
from accounts.models import Allowance, Approval, AuditEvent, Entitlement, Lane, Tenant, User
from accounts.principal import Principal
from accounts.refusals import ChangeRefusal, ChangeRefused
from accounts.tenancy import every_tenant, tenant_scope
from tests.factories import ACTOR, EntitlementFactory, OperatorFactory, TenantFactory, UserFactory

MARK = 1000
WITHIN, ABOVE = Limits(tokens_per_month=600), Limits(tokens_per_month=1001)

pytestmark = pytest.mark.django_db


@pytest.fixture
def high() -> Lane:
    Lane.objects.filter(name="high").update(approval_above_tokens=MARK)
    return Lane.objects.get(name="high")


@pytest.fixture
def asking() -> User:
    return OperatorFactory(username="asking")


@pytest.fixture
def deciding() -> User:
    return OperatorFactory(username="deciding")


def _actions() -> list[str]:
    return list(AuditEvent.objects.order_by("sequence").values_list("action", flat=True))


def _request(high: Lane, asking: User, **terms: Any) -> Entitlement:
    values = {"tenant": terms.pop("tenant", None) or TenantFactory(), "limits": ABOVE, **terms}
    return entitlements.grant(lane=high, granted_by=asking, actor=ACTOR, **values)


def _fresh(entitlement: Entitlement) -> Entitlement:
    with every_tenant("test"):
        found: Entitlement = Entitlement.objects.select_related("allowance").get(id=entitlement.id)
    return found


def _gets_high(tenant: Tenant) -> bool:
    """Whether a request of the tenant's would be let into the lane."""
    principal = Principal(
        tenant_id=tenant.id, tenant_name=tenant.name, scopes=frozenset(), name="x", user_id=uuid4()
    )
    wish = Wish(requested="high", tokens=1, prompt_tokens=1)
    try:
        return plan(principal, wish, timezone.now()).choose().resolution.lane.name == "high"
    except Refused:
        return False


def test_a_large_grant_gives_nothing_before_another_operator_has_approved_it(
    high: Lane, asking: User, deciding: User
) -> None:
    requested = _request(high, asking)
    assert requested.approval == Approval.REQUESTED
    assert not _gets_high(requested.tenant)
    approved = approvals.approve(
        entitlement=requested, decided_by=deciding, actor=ACTOR, reason=" as agreed "
    )
    assert _gets_high(requested.tenant)
    assert (approved.approval, approved.decided_by, approved.decision_reason) == (
        Approval.APPROVED,
        deciding,
        "as agreed",
    )
    assert _actions() == ["entitlement.request", "entitlement.approve"]
    event = AuditEvent.objects.get(action="entitlement.approve")
    assert event.before is not None
    assert event.after is not None
    assert (event.before["approval"], event.after["approval"]) == ("requested", "approved")
    assert event.after["decided_by_id"] == str(deciding.pk)


def test_what_is_refused_gives_nothing_and_is_decided_once(high: Lane, asking: User, deciding: User) -> None:
    requested = _request(high, asking)
    with pytest.raises(ChangeRefused) as refusal:
        approvals.refuse(entitlement=requested, decided_by=deciding, actor=ACTOR, reason=" ")
    assert refusal.value.field == "reason"
    refused = approvals.refuse(entitlement=requested, decided_by=deciding, actor=ACTOR, reason="too much")
    assert refused.approval == Approval.REFUSED
    assert not _gets_high(requested.tenant)
    for decide in (approvals.approve, approvals.refuse):
        with pytest.raises(ChangeRefused) as refusal:
            decide(entitlement=requested, decided_by=deciding, actor=ACTOR, reason="again")
        assert refusal.value.code == ChangeRefusal.NOT_REQUESTED
    assert _actions() == ["entitlement.request", "entitlement.refuse"]


@pytest.mark.parametrize("who", ["asking", "a member of staff", "a closed operator"])
def test_nobody_decides_who_asked_or_is_no_operator(high: Lane, asking: User, who: str) -> None:
    requested = _request(high, asking)
    user = {
        "asking": lambda: asking,
        "a member of staff": lambda: UserFactory(is_staff=True),
        "a closed operator": lambda: OperatorFactory(is_active=False),
    }[who]()
    for decide in (approvals.approve, approvals.refuse):
        with pytest.raises(ChangeRefused) as refusal:
            decide(entitlement=requested, decided_by=user, actor=ACTOR, reason="because")
        assert refusal.value.code == ChangeRefusal.MAY_NOT_DECIDE
    assert _fresh(requested).approval == Approval.REQUESTED


def test_the_database_itself_keeps_who_asked_from_deciding(high: Lane, asking: User) -> None:
    requested = _request(high, asking)
    decided = {"approval": Approval.APPROVED, "decided_at": timezone.now()}
    for asked_by in (asking, None):
        with every_tenant("test"), pytest.raises(IntegrityError), transaction.atomic():
            Entitlement.objects.filter(id=requested.id).update(
                granted_by=asked_by, decided_by=asking, **decided
            )


def test_all_live_and_requested_grants_of_a_tenant_in_the_lane_count_together(
    high: Lane, asking: User
) -> None:
    tenant = TenantFactory()
    for_a_time = {"ends_at": timezone.now() + timedelta(days=1), "reason": "launch"}
    first = _request(high, asking, tenant=tenant, limits=WITHIN)
    second = _request(high, asking, tenant=tenant, limits=WITHIN, **for_a_time)
    third = _request(high, asking, tenant=tenant, limits=Limits(tokens_per_month=1), **for_a_time)
    assert [one.approval for one in (first, second, third)] == [
        Approval.NOT_NEEDED,
        Approval.REQUESTED,
        Approval.REQUESTED,
    ]
    elsewhere = _request(Lane.objects.get(name="normal"), asking, tenant=tenant)
    another = _request(high, asking, limits=WITHIN)
    assert [elsewhere.approval, another.approval] == [Approval.NOT_NEEDED] * 2
    for over in (second, third):
        entitlements.end(entitlement=over, actor=ACTOR)
    again = _request(high, asking, tenant=tenant, limits=Limits(tokens_per_month=400), **for_a_time)
    assert again.approval == Approval.NOT_NEEDED
    assert _actions().count("entitlement.withdraw") == 2


def test_a_lane_asks_never_or_always(asking: User) -> None:
    low = Lane.objects.get(name="low")
    assert _request(low, asking, limits=Limits()).approval == Approval.NOT_NEEDED
    lanes.set_approval(lane=low, approval_above_tokens=0, actor=ACTOR)
    assert _request(low, asking, limits=Limits(tokens_per_day=0)).approval == Approval.REQUESTED
    with pytest.raises(ChangeRefused) as refusal:
        lanes.set_approval(lane=low, approval_above_tokens=-1, actor=ACTOR)
    assert refusal.value.field == "approval_above_tokens"


def test_a_large_grant_names_who_asks_for_it(high: Lane) -> None:
    with pytest.raises(ChangeRefused) as refusal:
        entitlements.grant(tenant=TenantFactory(), lane=high, limits=ABOVE, actor=ACTOR)
    assert refusal.value.code == ChangeRefusal.APPROVAL_NEEDED
    assert _actions() == []


def test_a_new_tenant_is_no_way_around_it(high: Lane, asking: User) -> None:
    tenant = tenants.create(name="Rail", slug="rail", actor=ACTOR, granted_by=asking)
    with tenant_scope(tenant.id):
        assert dict(Entitlement.objects.values_list("lane", "approval")) == {
            "high": Approval.REQUESTED,
            "normal": Approval.NOT_NEEDED,
            "low": Approval.NOT_NEEDED,
        }
    with pytest.raises(ChangeRefused):
        tenants.create(name="Road", slug="road", actor=ACTOR)
    assert not Tenant.objects.filter(slug="road").exists()


@pytest.mark.parametrize(
    ("wider", "narrower"),
    [
        ({"limits": Limits(tokens_per_month=1001)}, {"limits": Limits(tokens_per_month=500)}),
        ({"limits": Limits()}, {"limits": Limits(tokens_per_month=600, concurrency=1)}),
    ],
)
def test_a_wider_one_is_requested_beside_the_present_one_and_a_narrower_one_holds_at_once(
    high: Lane, asking: User, deciding: User, wider: dict[str, Any], narrower: dict[str, Any]
) -> None:
    present = _request(high, asking, limits=WITHIN)
    requested = entitlements.change(entitlement=present, granted_by=asking, actor=ACTOR, **wider)
    assert (requested.id == present.id, requested.replaces_id) == (False, present.id)
    assert _fresh(present).allowance.limits == WITHIN
    assert _gets_high(present.tenant)
    narrowed = entitlements.change(entitlement=present, actor=ACTOR, **narrower)
    assert narrowed.id == present.id
    approved = approvals.approve(entitlement=requested, decided_by=deciding, actor=ACTOR)
    assert _fresh(approved).allowance.limits == wider["limits"]
    assert _fresh(present).ended_at is not None
    assert _fresh(present).allowance.limits == narrower["limits"]
    assert _actions() == [
        "entitlement.grant",
        "entitlement.request",
        "entitlement.change",
        "entitlement.end",
        "entitlement.approve",
    ]


def test_a_longer_one_is_requested_and_weight_and_speculation_are_no_size(
    high: Lane, asking: User, deciding: User
) -> None:
    end = timezone.now().replace(microsecond=0) + timedelta(days=1)
    present = _request(high, asking, ends_at=end, reason="launch")
    approvals.approve(entitlement=present, decided_by=deciding, actor=ACTOR)
    same = entitlements.change(entitlement=present, weight=9, speculation=False, actor=ACTOR)
    assert (same.id, same.approval) == (present.id, Approval.APPROVED)
    longer = entitlements.change(
        entitlement=present, ends_at=end + timedelta(days=1), granted_by=asking, actor=ACTOR
    )
    assert (longer.replaces_id, longer.approval, longer.weight) == (present.id, Approval.REQUESTED, 9)
    with pytest.raises(ChangeRefused) as refusal:
        entitlements.change(
            entitlement=present, ends_at=end + timedelta(days=2), granted_by=asking, actor=ACTOR
        )
    assert refusal.value.code == ChangeRefusal.ALREADY_REQUESTED


def test_a_requested_one_is_not_changed_but_withdrawn(high: Lane, asking: User, deciding: User) -> None:
    requested = _request(high, asking)
    with pytest.raises(ChangeRefused) as refusal:
        entitlements.change(entitlement=requested, limits=WITHIN, actor=ACTOR)
    assert refusal.value.code == ChangeRefusal.ALREADY_REQUESTED
    entitlements.end(entitlement=requested, actor=ACTOR)
    with pytest.raises(ChangeRefused) as refusal:
        approvals.approve(entitlement=requested, decided_by=deciding, actor=ACTOR)
    assert refusal.value.code == ChangeRefusal.NOT_REQUESTED
    assert _actions() == ["entitlement.request", "entitlement.withdraw"]


def test_whoever_replaces_takes_over_what_was_used_reserved_and_runs(
    high: Lane, asking: User, deciding: User
) -> None:
    present = _request(high, asking, limits=WITHIN)
    running, done = uuid4(), uuid4()
    with tenant_scope(present.tenant_id), transaction.atomic():
        for generation in (running, done):
            reservations.reserve(
                generation_id=generation,
                tenant_id=present.tenant_id,
                entitlement_allowance_id=present.allowance_id,
                key_allowance_id=None,
                tokens=100,
                now=timezone.now(),
            )
        reservations.settle(done, 70, timezone.now())
    requested = entitlements.change(entitlement=present, limits=ABOVE, granted_by=asking, actor=ACTOR)
    approved = approvals.approve(entitlement=requested, decided_by=deciding, actor=ACTOR)
    assert _month(approved) == (170, 100)
    with tenant_scope(present.tenant_id), transaction.atomic():
        reservations.settle(running, 30, timezone.now())
    assert _month(approved) == (100, 0)
    with every_tenant("test"):
        assert Allowance.objects.get(id=_fresh(approved).allowance_id).live_generations == 0
        assert Allowance.objects.filter(tenant=present.tenant_id).count() == 2


def _month(entitlement: Entitlement) -> tuple[int, int]:
    with every_tenant("test"):
        allowance = Allowance.objects.select_related("tenant").get(entitlement=entitlement)
        [state] = reservations.states_of([allowance], timezone.now())[allowance.id]
    assert state.name is LimitName.TOKENS_PER_MONTH
    return state.used, state.reserved


def _close(requested: Entitlement) -> None:
    tenants.close(tenant=requested.tenant, actor=ACTOR)


def _end_the_replaced(requested: Entitlement) -> None:
    with every_tenant("test"):
        entitlements.end(entitlement=requested.replaces, actor=ACTOR)


def _let_its_time_pass(requested: Entitlement) -> None:
    with every_tenant("test"):
        Entitlement.objects.filter(id=requested.id).update(ends_at=timezone.now(), reason="x")


@pytest.mark.parametrize(
    ("happens", "code"),
    [
        (_close, ChangeRefusal.TENANT_CLOSED),
        (_end_the_replaced, ChangeRefusal.ENTITLEMENT_ENDED),
        (_let_its_time_pass, ChangeRefusal.ENTITLEMENT_ENDED),
    ],
)
def test_what_can_no_longer_be_given_is_not_approved(
    high: Lane,
    asking: User,
    deciding: User,
    happens: Callable[[Entitlement], None],
    code: ChangeRefusal,
) -> None:
    present = _request(high, asking, limits=WITHIN)
    requested = entitlements.change(entitlement=present, limits=ABOVE, granted_by=asking, actor=ACTOR)
    happens(requested)
    with pytest.raises(ChangeRefused) as refusal:
        approvals.approve(entitlement=requested, decided_by=deciding, actor=ACTOR)
    assert refusal.value.code == code
    assert _fresh(requested).approval == Approval.REQUESTED


def test_what_has_changed_since_it_was_shown_is_not_approved(
    high: Lane, asking: User, deciding: User
) -> None:
    present = _request(high, asking, limits=WITHIN)
    requested = entitlements.change(entitlement=present, limits=ABOVE, granted_by=asking, actor=ACTOR)

    def version() -> str:
        with tenant_scope(present.tenant_id):
            return entitlements.version_of(present.tenant, "high", timezone.now())

    seen = version()
    entitlements.change(entitlement=present, limits=Limits(tokens_per_month=1), actor=ACTOR)
    with pytest.raises(ChangeRefused, match="has changed since this was shown to you") as refusal:
        approvals.approve(entitlement=requested, decided_by=deciding, actor=ACTOR, seen=seen)
    assert refusal.value.code == ChangeRefusal.CHANGED_MEANWHILE
    assert [_fresh(one).ended_at for one in (present, requested)] == [None, None]
    approved = approvals.approve(entitlement=requested, decided_by=deciding, actor=ACTOR, seen=version())
    assert approved.approval == Approval.APPROVED


def test_a_second_standing_one_is_not_approved(high: Lane, asking: User, deciding: User) -> None:
    requested = _request(high, asking)
    with pytest.raises(ChangeRefused) as refusal:
        _request(high, asking, tenant=requested.tenant)
    assert refusal.value.code == ChangeRefusal.ALREADY_REQUESTED
    # As an installation may have it from before the lane asked for approvals.
    EntitlementFactory(tenant=requested.tenant, lane=high)
    with pytest.raises(ChangeRefused) as refusal:
        approvals.approve(entitlement=requested, decided_by=deciding, actor=ACTOR)
    assert refusal.value.code == ChangeRefusal.ALREADY_ENTITLED


@pytest.mark.django_db(transaction=True)
def test_of_two_grants_at_once_that_are_too_much_together_one_is_requested(high: Lane, asking: User) -> None:
    tenant, start = TenantFactory(), threading.Barrier(2)

    def grant(hours: int) -> str:
        try:
            start.wait()
            return str(
                _request(
                    high,
                    asking,
                    tenant=tenant,
                    limits=WITHIN,
                    ends_at=timezone.now() + timedelta(hours=hours),
                    reason="launch",
                ).approval
            )
        finally:
            connection.close()

    with ThreadPoolExecutor(2) as threads:
        found = sorted(threads.map(grant, (1, 2)))
    assert found == [Approval.NOT_NEEDED, Approval.REQUESTED]


@pytest.mark.django_db(transaction=True)
def test_two_who_decide_at_once_decide_once(high: Lane, asking: User, deciding: User) -> None:
    requested, start = _request(high, asking), threading.Barrier(2)

    def decide(verb: Callable[..., Entitlement]) -> str:
        try:
            start.wait()
            verb(entitlement=requested, decided_by=deciding, actor=ACTOR, reason="at once")
        except ChangeRefused as refusal:
            return refusal.code.value
        finally:
            connection.close()
        return "decided"

    with ThreadPoolExecutor(2) as threads:
        found = sorted(threads.map(decide, (approvals.approve, approvals.refuse)))
    assert found == ["decided", "not_requested"]
