"""Who may use a lane right now and why, and who could at a time that has passed."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import time_machine
from django.test import Client
from django.urls import reverse

from accounts import entitlements, keys, members, tenants
from accounts.audit.lane_rights import who_may_use
from accounts.limits import Limits
from accounts.models import ApiKey, Entitlement, Lane, Role
from accounts.tenancy import every_tenant
from tests.accounts.admin.audited import NOW, TUESDAY, Audited, acting, audited
from tests.accounts.admin.test_audit_assignments import text
from tests.accounts.audit.own_state import settle
from tests.factories import EntitlementFactory, TenantFactory

HIGH = reverse("admin:accounts_lane_rights", args=["high"])


@pytest.fixture
def made(_admin_pages: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    settle(monkeypatch, tmp_path)
    made = audited(checkpoint=False)
    with time_machine.travel(NOW, tick=True):
        yield made


def holders(lane: str, at: Any = None) -> list[str]:
    found = who_may_use(Lane.objects.get(name=lane), NOW, at=at)
    assert found.tenants == len(found.holders)
    return [holder.tenant.name for holder in found.holders]


def test_the_page_says_who_by_whose_grant_until_when_and_what_is_left(
    made: Audited, as_auditor: Client
) -> None:
    first = as_auditor.get(reverse("admin:accounts_lanes_rights"))
    assert first["Location"] == HIGH
    members.add(tenant=made.timetable, user=made.person, role=Role.MEMBER, actor=acting(made.ada))
    page = as_auditor.get(HIGH)
    said = text(page)
    for words in (
        "Who may use high right now: 1 tenant",
        "Entitlement, until 29 Dec 2026, 12:00:00 UTC; what does not fit goes down to normal.",
        "Granted by ada, 22 Nov 2026, 09:30",
        "Approved by grace, 22 Nov 2026, 09:30",
        "winter timetable",
        "Tokens a day 0 of 1,000 used",
        f"departures sb_{made.key.prefix}…, by default",
        "1 person in the browser.",
    ):
        assert words in said, words
    assert "No event grants it" not in said
    assert text(as_auditor.get(reverse("admin:accounts_lane_rights", args=["low"]))).count("Depot") == 1
    assert as_auditor.get(reverse("admin:accounts_lane_rights", args=["fast"])).status_code == 404


def test_of_the_past_it_tells_what_held_then(made: Audited, as_auditor: Client) -> None:
    asked_at = TUESDAY - timedelta(days=2)
    assert holders("high", asked_at - timedelta(hours=1)) == []
    assert holders("high", TUESDAY) == ["Timetable"]
    with every_tenant("test"):
        entitlements.change(
            entitlement=made.granted, actor=acting(made.ada), limits=Limits(tokens_per_day=5), reason="less"
        )
        entitlements.end(entitlement=made.granted, actor=acting(made.grace))
    assert holders("high") == []
    assert holders("high", NOW - timedelta(minutes=1)) == ["Timetable"]
    said = text(as_auditor.get(HIGH, {"at": "2026-11-24T10:00"}))
    assert "Who could use high at 24 Nov 2026, 10:00:00 UTC: 1 tenant" in said
    assert "Tokens a day: 1,000" in said
    assert "winter timetable" in said


def test_before_its_approval_a_grant_gave_nothing(made: Audited) -> None:
    with time_machine.travel(NOW, tick=True) as clock:
        requested = entitlements.grant(
            tenant=made.depot,
            lane=Lane.objects.get(name="high"),
            actor=acting(made.ada),
            granted_by=made.ada,
            limits=Limits(tokens_per_day=9999),
        )
        clock.shift(timedelta(hours=2))
        from accounts import approvals

        approvals.approve(entitlement=requested, decided_by=made.grace, actor=acting(made.grace), reason="")
        clock.shift(timedelta(hours=1))
        assert holders("high", NOW + timedelta(hours=1)) == ["Timetable"]
        assert holders("high", NOW + timedelta(hours=2, minutes=30)) == ["Depot", "Timetable"]


def test_a_closed_tenant_may_not_and_could_before(made: Audited) -> None:
    tenants.close(tenant=made.timetable, actor=acting(made.ada))
    assert holders("high") == []
    assert holders("high", TUESDAY) == ["Timetable"]
    with time_machine.travel(NOW + timedelta(days=1), tick=True):
        tenants.reopen(tenant=made.timetable, actor=acting(made.ada))
        assert holders("high", NOW + timedelta(hours=12)) == []


def test_keys_reach_a_lane_as_they_did_then(made: Audited) -> None:
    with every_tenant("test"):
        key = ApiKey.objects.get(id=made.key.id)
        keys.change(
            key=key,
            name="bound",
            scopes=key.scopes,
            default_lane=None,
            expires_at=None,
            allowed_lanes=["normal"],
            actor=acting(made.ada),
        )
    high = Lane.objects.get(name="high")
    [now] = who_may_use(high, NOW).holders
    [then] = who_may_use(high, NOW, at=TUESDAY).holders
    assert [one.name for one in now.keys] == []
    assert [(one.name, one.by_default) for one in then.keys] == [("departures", True)]


def test_a_row_that_was_written_past_the_verbs_is_told(made: Audited, as_auditor: Client) -> None:
    with every_tenant("test"):
        Entitlement.objects.filter(id=made.granted.id).update(weight=9)
    EntitlementFactory(tenant=TenantFactory(name="Smuggled"), lane=Lane.objects.get(name="high"))
    said = text(as_auditor.get(HIGH))
    assert "Its row is not what its last event says: weight." in said
    assert "No event grants it" in said


def test_an_entitlement_of_which_the_row_is_gone_or_made_later_is_told_by_its_events(
    made: Audited, as_auditor: Client
) -> None:
    then = {"at": "2026-11-24T10:00"}
    with every_tenant("test"):
        rows = Entitlement.objects.filter(id=made.granted.id)
        rows.update(created_at=NOW - timedelta(minutes=1))
        said = text(as_auditor.get(HIGH, then))
        assert "1 tenant" in said
        assert "Its row says that it was made 29 Nov 2026, 11:59:00 UTC, its event 22 Nov 2026, 09:30" in said
        rows._raw_delete(rows.db)
    for page in (as_auditor.get(HIGH, then), as_auditor.get(HIGH)):
        said = text(page)
        assert "0 tenants" in said
        assert "Of an entitlement of Timetable to high the events tell, and its row is gone" in said
        assert "Granted by ada, 22 Nov 2026, 09:30" in said
    assert "its row is gone" not in text(as_auditor.get(HIGH, {"at": "2026-11-20T10:00"}))
    assert "its row is gone" not in text(as_auditor.get(reverse("admin:accounts_lane_rights", args=["low"])))


def test_what_is_asked_for_or_to_come_stands_apart(made: Audited, as_auditor: Client) -> None:
    entitlements.grant(
        tenant=made.depot,
        lane=Lane.objects.get(name="high"),
        actor=acting(made.ada),
        granted_by=made.ada,
        limits=Limits(tokens_per_month=100),
        starts_at=NOW + timedelta(days=1),
    )
    said = text(as_auditor.get(HIGH))
    assert "Not now Depot : begins 30 Nov 2026, 12:00:00 UTC" in said
    assert holders("high") == ["Timetable"]


@pytest.mark.parametrize(
    ("at", "said"), [("tomorrow", "Enter a valid date/time."), ("2027-01-01T00:00", "That time is to come")]
)
def test_a_time_that_cannot_be_answered_is_said(
    made: Audited, as_auditor: Client, at: str, said: str
) -> None:
    page = text(as_auditor.get(HIGH, {"at": at}))
    assert said in page
    assert "right now: 1 tenant" in page


def test_many_tenants_cost_no_more_queries_than_a_few_and_come_in_pages(
    made: Audited, as_auditor: Client, django_assert_max_num_queries: Any
) -> None:
    high = Lane.objects.get(name="high")
    with django_assert_max_num_queries(50) as few:
        as_auditor.get(HIGH)
    for n in range(55):
        EntitlementFactory(tenant=TenantFactory(name=f"A{n:02}"), lane=high)
    with django_assert_max_num_queries(len(few) + 2):
        page = as_auditor.get(HIGH)
    assert len(page.context["holders"]) == 50
    assert [one.holder.tenant.name for one in as_auditor.get(HIGH, {"page": "2"}).context["holders"]] == [
        *(f"A{n}" for n in range(50, 55)),
        "Timetable",
    ]
