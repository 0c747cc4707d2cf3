from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from accounts import entitlements
from accounts.entitlement_states import State, state_of
from accounts.entitlement_terms import Terms, widens
from accounts.limits import Limits
from accounts.models import Allowance, Approval, AuditEvent, Entitlement, Lane, OnExhausted
from accounts.refusals import ChangeRefusal, ChangeRefused
from accounts.tenancy import every_tenant, tenant_scope
from tests.factories import ACTOR, EntitlementFactory, OperatorFactory, TenantFactory

pytestmark = pytest.mark.django_db


def test_a_grant_records_who_gave_what_and_why() -> None:
    operator, tenant = OperatorFactory(), TenantFactory()
    entitlement = entitlements.grant(
        tenant=tenant,
        lane=Lane.objects.get(name="high"),
        weight=3,
        speculation=False,
        reason=" launch week ",
        granted_by=operator,
        actor=ACTOR,
    )
    assert (entitlement.weight, entitlement.speculation, entitlement.reason) == (3, False, "launch week")
    event = AuditEvent.objects.get()
    assert event.after is not None
    assert (event.action, event.tenant_id, event.after["lane_id"]) == ("entitlement.grant", tenant.id, "high")
    assert event.after["reason"] == "launch week"


def test_a_lane_is_granted_again_only_after_it_was_ended() -> None:
    standing = EntitlementFactory()
    with pytest.raises(ChangeRefused) as refusal:
        entitlements.grant(tenant=standing.tenant, lane=standing.lane, actor=ACTOR)
    assert refusal.value.code == ChangeRefusal.ALREADY_ENTITLED
    entitlements.end(entitlement=standing, actor=ACTOR)
    entitlements.grant(tenant=standing.tenant, lane=standing.lane, actor=ACTOR)


def test_a_change_shows_before_and_after_and_none_shows_nothing() -> None:
    entitlement = EntitlementFactory()
    entitlements.change(entitlement=entitlement, weight=1, speculation=True, reason="", actor=ACTOR)
    assert not AuditEvent.objects.exists()
    entitlements.change(entitlement=entitlement, weight=4, speculation=True, reason="", actor=ACTOR)
    event = AuditEvent.objects.get()
    assert event.before is not None
    assert event.after is not None
    assert (event.before["weight"], event.after["weight"]) == (1, 4)


@pytest.mark.parametrize("weight", [0, -1, 1001])
def test_a_weight_out_of_range_is_refused(weight: int) -> None:
    entitlement = EntitlementFactory()
    with pytest.raises(ChangeRefused) as refusal:
        entitlements.change(entitlement=entitlement, weight=weight, speculation=True, reason="", actor=ACTOR)
    assert refusal.value.field == "weight"


def test_what_has_ended_is_not_changed() -> None:
    ended = EntitlementFactory(ended_at=timezone.now())
    with pytest.raises(ChangeRefused) as refusal:
        entitlements.change(entitlement=ended, weight=2, speculation=True, reason="", actor=ACTOR)
    assert refusal.value.code == ChangeRefusal.ENTITLEMENT_ENDED


def test_several_are_ended_at_once_each_with_its_record() -> None:
    standing = [EntitlementFactory() for _ in range(3)]
    ended = EntitlementFactory(ended_at=timezone.now())
    assert entitlements.end_all(entitlements=[*standing, ended], actor=ACTOR) == 3
    assert entitlements.end_all(entitlements=standing, actor=ACTOR) == 0
    with every_tenant("test"):
        assert not Entitlement.objects.filter(ended_at=None).exists()
    assert AuditEvent.objects.filter(action="entitlement.end").count() == 3


def test_a_closed_tenant_gets_no_entitlement() -> None:
    with pytest.raises(ChangeRefused) as refusal:
        entitlements.grant(
            tenant=TenantFactory(closed_at=timezone.now()), lane=Lane.objects.get(name="low"), actor=ACTOR
        )
    assert refusal.value.code == ChangeRefusal.TENANT_CLOSED


def test_a_grant_has_all_its_terms_and_its_event_says_each_of_them() -> None:
    tenant, start = TenantFactory(), timezone.now().replace(microsecond=0)
    limits = Limits(
        tokens_per_day=1,
        tokens_per_week=2,
        tokens_per_month=3,
        requests_per_minute=4,
        tokens_per_minute=5,
        concurrency=6,
    )
    granted = entitlements.grant(
        tenant=tenant,
        lane=Lane.objects.get(name="high"),
        limits=limits,
        starts_at=start,
        ends_at=start + timedelta(days=2),
        longest_queue_wait_s=30,
        on_exhausted=OnExhausted.STEP_DOWN,
        step_down_to=Lane.objects.get(name="low"),
        reason="launch",
        actor=ACTOR,
    )
    with every_tenant("test"):
        stored = Entitlement.objects.select_related("allowance").get(id=granted.id)
    assert stored.allowance.limits == limits
    assert (stored.starts_at, stored.ends_at) == (start, start + timedelta(days=2))
    after = AuditEvent.objects.get().after
    assert after is not None
    said = {
        "tokens_per_day": 1,
        "tokens_per_week": 2,
        "tokens_per_month": 3,
        "requests_per_minute": 4,
        "tokens_per_minute": 5,
        "concurrency": 6,
        "starts_at": start.isoformat(),
        "ends_at": (start + timedelta(days=2)).isoformat(),
        "longest_queue_wait_s": 30,
        "on_exhausted": "step_down",
        "step_down_to_id": "low",
        "approval": "not_needed",
    }
    assert said.items() <= after.items()


def _hours(count: float) -> Any:
    return timezone.now() + timedelta(hours=count)


@pytest.mark.parametrize(
    ("terms", "field"),
    [
        (lambda: {"ends_at": _hours(-1), "reason": "late"}, "ends_at"),
        (lambda: {"starts_at": _hours(2), "ends_at": _hours(1), "reason": "odd"}, "ends_at"),
        (lambda: {"ends_at": _hours(1), "reason": " "}, "reason"),
        (lambda: {"on_exhausted": OnExhausted.STEP_DOWN}, "step_down_to"),
        (lambda: {"step_down_to": Lane.objects.get(name="low")}, "step_down_to"),
        (
            lambda: {
                "on_exhausted": OnExhausted.STEP_DOWN,
                "step_down_to": Lane.objects.get(name="normal"),
            },
            "step_down_to",
        ),
        (
            lambda: {"on_exhausted": OnExhausted.STEP_DOWN, "step_down_to": Lane.objects.get(name="high")},
            "step_down_to",
        ),
        (lambda: {"longest_queue_wait_s": 0}, "longest_queue_wait_s"),
        (lambda: {"longest_queue_wait_s": 2**31}, "longest_queue_wait_s"),
        (lambda: {"weight": 0}, "weight"),
        (lambda: {"limits": Limits(tokens_per_day=-1)}, "tokens_per_day"),
        (lambda: {"limits": Limits(concurrency=2**63)}, "concurrency"),
        (lambda: {"reason": "x" * 201}, "reason"),
    ],
)
def test_impossible_terms_are_refused_at_their_field_in_a_grant_and_in_a_change(
    terms: Callable[[], dict[str, Any]], field: str
) -> None:
    normal = Lane.objects.get(name="normal")
    with pytest.raises(ChangeRefused) as refusal:
        entitlements.grant(tenant=TenantFactory(), lane=normal, actor=ACTOR, **terms())
    assert refusal.value.field == field
    with pytest.raises(ChangeRefused) as refusal:
        entitlements.change(entitlement=EntitlementFactory(lane=normal), actor=ACTOR, **terms())
    assert refusal.value.field == field
    assert not AuditEvent.objects.exists()


def test_a_lane_has_one_standing_grant_and_any_number_for_a_time() -> None:
    standing = EntitlementFactory()
    for days in (1, 2):
        temporary = entitlements.grant(
            tenant=standing.tenant,
            lane=standing.lane,
            ends_at=timezone.now() + timedelta(days=days),
            reason="more for a while",
            actor=ACTOR,
        )
    with pytest.raises(ChangeRefused) as refusal:
        entitlements.change(entitlement=temporary, ends_at=None, actor=ACTOR)
    assert refusal.value.code == ChangeRefusal.ALREADY_ENTITLED
    entitlements.end(entitlement=standing, actor=ACTOR)
    assert entitlements.change(entitlement=temporary, ends_at=None, actor=ACTOR).ends_at is None


def test_a_changed_limit_leaves_what_is_used_and_what_was_not_named() -> None:
    entitlement = EntitlementFactory(weight=3, allowance__tokens_per_day=100, allowance__live_generations=2)
    changed = entitlements.change(
        entitlement=entitlement, limits=Limits(tokens_per_day=50, concurrency=1), actor=ACTOR
    )
    assert changed.id == entitlement.id
    assert changed.weight == 3
    with every_tenant("test"):
        allowance = Allowance.objects.get(id=entitlement.allowance_id)
    assert allowance.limits == Limits(tokens_per_day=50, concurrency=1)
    assert allowance.live_generations == 2
    event = AuditEvent.objects.get()
    assert event.before is not None
    assert event.after is not None
    assert (event.before["tokens_per_day"], event.after["tokens_per_day"]) == (100, 50)
    assert (event.before["concurrency"], event.after["concurrency"]) == (None, 1)


def test_one_is_extended_until_its_time_is_over() -> None:
    end = timezone.now().replace(microsecond=0) + timedelta(days=1)
    temporary = EntitlementFactory(ends_at=end, reason="launch")
    extended = entitlements.change(entitlement=temporary, ends_at=end + timedelta(days=1), actor=ACTOR)
    assert extended.ends_at == end + timedelta(days=1)
    over = EntitlementFactory(ends_at=timezone.now(), reason="launch")
    with pytest.raises(ChangeRefused) as refusal:
        entitlements.change(entitlement=over, ends_at=end, actor=ACTOR)
    assert refusal.value.code == ChangeRefusal.ENTITLEMENT_ENDED


def test_what_was_decided_by_something_that_has_changed_since_is_refused() -> None:
    entitlement = EntitlementFactory(allowance__tokens_per_day=100)
    tenant, lane = entitlement.tenant, entitlement.lane
    with tenant_scope(tenant.id):
        seen = entitlements.version_of(tenant, lane.name, timezone.now())
    entitlements.change(entitlement=entitlement, limits=Limits(tokens_per_day=90), actor=ACTOR)
    for stale in (
        lambda: entitlements.change(entitlement=entitlement, weight=2, actor=ACTOR, seen=seen),
        lambda: entitlements.grant(
            tenant=tenant, lane=lane, ends_at=_hours(1), reason="more", actor=ACTOR, seen=seen
        ),
    ):
        with pytest.raises(ChangeRefused) as refusal:
            stale()
        assert refusal.value.code == ChangeRefusal.CHANGED_MEANWHILE
    with tenant_scope(tenant.id):
        seen = entitlements.version_of(tenant, lane.name, timezone.now())
    assert entitlements.change(entitlement=entitlement, weight=2, actor=ACTOR, seen=seen).weight == 2


@pytest.mark.parametrize(
    ("columns", "state"),
    [
        ({}, State.STANDING),
        ({"ends_at": 1}, State.TEMPORARY),
        ({"starts_at": 1}, State.NOT_YET),
        ({"starts_at": -1}, State.STANDING),
        ({"ends_at": 0}, State.ENDED),
        ({"ended_at": 0}, State.ENDED),
        ({"approval": Approval.REQUESTED}, State.REQUESTED),
        ({"approval": Approval.REQUESTED, "ends_at": -1}, State.ENDED),
        ({"approval": Approval.REQUESTED, "ended_at": 0}, State.WITHDRAWN),
        ({"approval": Approval.REFUSED, "ended_at": 0}, State.REFUSED),
        ({"approval": Approval.APPROVED}, State.STANDING),
    ],
)
def test_a_state_follows_from_times_and_approval(columns: dict[str, Any], state: State) -> None:
    now = timezone.now()
    times = {
        name: value if name == "approval" else now + timedelta(hours=value) for name, value in columns.items()
    }
    entitlement = Entitlement(**times)
    assert state_of(entitlement, now) is state
    assert entitlement.gives_at(now) is (state in (State.STANDING, State.TEMPORARY))


@pytest.mark.parametrize(
    ("before", "after", "wider"),
    [
        ({"limits": Limits(tokens_per_day=1)}, {"limits": Limits(tokens_per_day=2)}, True),
        ({"limits": Limits(tokens_per_day=1)}, {}, True),
        ({"limits": Limits(concurrency=1)}, {"limits": Limits(concurrency=2)}, True),
        ({"limits": Limits(tokens_per_day=2)}, {"limits": Limits(tokens_per_day=1)}, False),
        ({}, {"limits": Limits(tokens_per_day=1)}, False),
        ({"ends_at": 1}, {"ends_at": 2}, True),
        ({"ends_at": 1}, {}, True),
        ({"ends_at": 2}, {"ends_at": 1}, False),
        ({}, {"ends_at": 1}, False),
        ({"starts_at": 2}, {"starts_at": 1}, True),
        ({"starts_at": 2}, {}, True),
        ({"starts_at": 1}, {"starts_at": 2}, False),
        ({"weight": 1}, {"weight": 9}, False),
        ({"speculation": False}, {"speculation": True}, False),
    ],
)
def test_a_change_widens_what_gives_more_or_longer(
    before: dict[str, Any], after: dict[str, Any], wider: bool
) -> None:
    now = timezone.now()

    def terms(values: dict[str, Any]) -> Terms:
        times = ("starts_at", "ends_at")
        return Terms(**{name: now + timedelta(hours=v) if name in times else v for name, v in values.items()})

    assert widens(terms(before), terms(after)) is wider
