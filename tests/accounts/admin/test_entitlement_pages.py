"""The lane and budget editor: what a grant does is shown before it is saved; large ones wait for a second operator."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import transaction
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from accounts import entitlements, reservations
from accounts.limits import Limits
from accounts.models import Approval, AuditEvent, Entitlement, Lane, Tenant, User
from accounts.tenancy import every_tenant, tenant_scope
from tests.factories import (
    ACTOR,
    ApiKeyFactory,
    EntitlementFactory,
    MembershipFactory,
    OperatorFactory,
    TenantFactory,
)

ADD = reverse("admin:accounts_entitlement_add")
LIST = reverse("admin:accounts_entitlement_changelist")


def _url(entitlement: Entitlement, page: str = "change") -> str:
    return reverse(f"admin:accounts_entitlement_{page}", args=[entitlement.pk])


def _form(**values: Any) -> dict[str, Any]:
    return {"weight": 1, "speculation": "on", "on_exhausted": "refuse", "reason": "", **values}


def _actions() -> list[str]:
    return list(AuditEvent.objects.order_by("sequence").values_list("action", flat=True))


def _all() -> list[Entitlement]:
    with every_tenant("test"):
        return list(Entitlement.objects.select_related("allowance", "tenant").order_by("created_at"))


def _sent_by(preview: Any) -> dict[str, list[str]]:
    """What the preview's own form sends when it is saved."""
    sent: dict[str, list[str]] = {}
    for name, value in preview.context["sent"]:
        sent.setdefault(name, []).append(value)
    return {**sent, preview.context["version_field"]: [preview.context["version"]]}


def _shown(asked: Any) -> dict[str, str]:
    """What a question sends along of what it shows."""
    return {asked.context["version_field"]: asked.context["question"].version}


def _text(page: Any) -> str:
    text = re.sub(r"<[^>]+>", " ", page.content.decode())
    return re.sub(r"\s+", " ", text)


@pytest.fixture
def another_operator(_admin_pages: None) -> Client:
    client = Client()
    client.force_login(OperatorFactory(username="another"))
    return client


@pytest.fixture
def high(_admin_pages: None) -> Lane:
    """A lane in which a second operator is asked above 1,000 tokens a month."""
    Lane.objects.filter(name="high").update(approval_above_tokens=1000)
    return Lane.objects.get(name="high")


def test_a_grant_is_shown_then_saved_and_nothing_is_written_before(
    as_operator: Client, operator: User
) -> None:
    tenant = TenantFactory(time_zone="Asia/Seoul")
    ApiKeyFactory(tenant=tenant, name="timetable", default_lane_id="high")
    ApiKeyFactory(tenant=tenant, name="bound", allowed_lanes=["low"])
    MembershipFactory(tenant=tenant)
    EntitlementFactory(tenant=tenant, lane_id="normal")
    filled = _form(
        tenant=tenant.pk, lane="high", weight=3, tokens_per_day="5000", concurrency="0", reason="launch"
    )
    preview = as_operator.post(ADD, filled)
    assert (preview.status_code, _actions(), len(_all())) == (200, [], 1)
    shown = _text(preview)
    for said in (
        "Nothing is saved yet",
        "times are those of the tenant, Asia/Seoul",
        "5,000 0 of 5,000 used (0 %)",
        "At the same time: none at all. Nothing is admitted by this entitlement.",
        "1 key may use this lane.",
        "It is the lane of timetable where a request asks for none.",
        "1 member of",
        "This lane never asks for a second operator.",
    ):
        assert said in shown, said
    saved = as_operator.post(ADD, _sent_by(preview), follow=True)
    _, granted = _all()
    assert saved.redirect_chain[-1][0] == _url(granted)
    assert f"Granted: {tenant}: high" in saved.content.decode()
    assert granted.allowance.limits == Limits(tokens_per_day=5000, concurrency=0)
    assert (granted.weight, granted.granted_by, granted.reason) == (3, operator, "launch")
    assert _actions() == ["entitlement.grant"]


def test_a_refusal_is_told_in_the_form_before_anything_is_shown(as_operator: Client) -> None:
    standing = EntitlementFactory()
    for values, said in (
        ({"lane": "normal"}, "is entitled to normal already"),
        ({"lane": "high", "on_exhausted": "step_down"}, "Name the lane that requests go down to."),
        ({"lane": "high", "ends_at_0": "2036-01-01", "ends_at_1": "00:00:00"}, "has a reason"),
        (
            {
                "lane": "high",
                "starts_at_0": "2036-01-02",
                "starts_at_1": "0:00",
                "ends_at_0": "2036-01-01",
                "ends_at_1": "0:00",
                "reason": "x",
            },
            "would end before it starts",
        ),
        ({"lane": "high", "tokens_per_day": "-1"}, "greater than or equal to 0"),
    ):
        page = as_operator.post(ADD, _form(tenant=standing.tenant.pk, **values))
        assert said in page.content.decode(), said
        assert page.context.get("effect") is None
    assert _actions() == []


def test_a_change_shows_before_after_and_what_is_over_at_once(as_operator: Client) -> None:
    entitlement = EntitlementFactory(
        tenant__time_zone="Asia/Seoul", allowance__tokens_per_day=1000, allowance__live_generations=0
    )
    _use(entitlement, settled=300, reserved=100)
    page = as_operator.get(_url(entitlement))
    assert "400 of 1,000 used (40 %)" in _text(page)
    assert "100 of it reserved by what runs" in _text(page)
    assert re.search(r"Its window ends \d+ \w+ \d{4}, 00:00:00 KST\.", _text(page))
    preview = as_operator.post(_url(entitlement), _form(weight=2, tokens_per_day="350"))
    shown = _text(preview)
    for said in (
        "1 → 2",
        "1,000 → 350",
        "400 of 350 used (114 %)",
        "Tokens a day: 400 are used already, and 350 would be allowed. Nothing is admitted by this entitlement until",
        "1 generation runs or waits by this right, and keeps what it was admitted with.",
    ):
        assert said in shown, said
    assert re.search(r"until \d+ \w+ \d{4}, 00:00:00 KST\.", shown)
    saved = as_operator.post(_url(entitlement), _sent_by(preview), follow=True)
    assert f"Saved: {entitlement}" in saved.content.decode()
    [changed] = _all()
    assert (changed.weight, changed.allowance.limits) == (2, Limits(tokens_per_day=350))
    assert "over by 50: nothing new is admitted" in _text(saved)
    assert "entitlement.change" in saved.content.decode(), "the audit's events stand on the page"
    assert _actions() == ["entitlement.change"]


def test_what_changes_nothing_is_not_saved(as_operator: Client) -> None:
    entitlement = EntitlementFactory()
    preview = as_operator.post(_url(entitlement), _form())
    assert "Nothing would change." in preview.content.decode()
    assert 'name="seen"' not in preview.content.decode()


def test_a_preview_is_taken_up_again_with_what_was_filled_in(as_operator: Client) -> None:
    tenant = TenantFactory()
    preview = as_operator.post(ADD, _form(tenant=tenant.pk, lane="low", tokens_per_week="77", reason="why"))
    again = as_operator.post(ADD, {**_sent_by(preview), "_edit": "1", "seen": []})
    form = again.context["adminform"].form
    assert (form["tokens_per_week"].value(), form["reason"].value(), form["lane"].value()) == (
        "77",
        "why",
        "low",
    )
    assert "Please correct" not in again.content.decode()
    assert _actions() == []


def test_a_preview_that_is_older_than_somebodys_change_is_not_saved(as_operator: Client) -> None:
    entitlement = EntitlementFactory(allowance__tokens_per_day=1000)
    preview = as_operator.post(_url(entitlement), _form(tokens_per_day="2000"))
    entitlements.change(entitlement=entitlement, weight=7, actor=ACTOR)
    refused = as_operator.post(_url(entitlement), _sent_by(preview))
    assert "has changed since this was shown to you" in refused.content.decode()
    assert refused.context["adminform"].form["tokens_per_day"].value() == "2000"
    [kept] = _all()
    assert (kept.weight, kept.allowance.limits) == (7, Limits(tokens_per_day=1000))
    preview = as_operator.post(_url(entitlement), _form(tokens_per_day="2000"))
    assert "7 → 1" in _text(preview)


def test_saving_twice_grants_once(as_operator: Client) -> None:
    values = _form(
        tenant=TenantFactory().pk, lane="high", ends_at_0="2036-01-01", ends_at_1="00:00", reason="launch"
    )
    sent = _sent_by(as_operator.post(ADD, values))
    as_operator.post(ADD, sent)
    again = as_operator.post(ADD, sent)
    assert "has changed since this was shown to you" in again.content.decode()
    assert len(_all()) == 1


def test_a_large_grant_is_requested_and_decided_by_another_operator_alone(
    as_operator: Client, another_operator: Client, as_onlooker: Client, high: Lane
) -> None:
    tenant = TenantFactory(name="Rail")
    preview = as_operator.post(
        ADD, _form(tenant=tenant.pk, lane="high", tokens_per_day="100", reason="launch")
    )
    shown = _text(preview)
    assert "Takes a second operator" in shown
    assert "All live and requested grants of Rail in high come to 3,100 tokens a month with this." in shown
    assert "above 1,000 tokens a month" in shown
    saved = as_operator.post(ADD, _sent_by(preview), follow=True)
    [requested] = _all()
    assert requested.approval == Approval.REQUESTED
    page = _text(saved)
    assert "Requested: Rail: high. It gives nothing before another operator has approved it." in page
    assert "Another operator than whoever asked for it approves or refuses it." in page
    assert _url(requested, "approve") not in saved.content.decode()
    own = as_operator.post(_url(requested, "approve"), {"reason": ""})
    assert "another one than whoever asked" in own.content.decode()
    assert as_onlooker.post(_url(requested, "approve"), {"reason": ""}).status_code == 403

    waiting = another_operator.get(LIST, {"state": "requested"})
    assert [row.pk for row in waiting.context["cl"].result_list] == [requested.pk]
    page = another_operator.get(_url(requested))
    assert _url(requested, "approve") in page.content.decode()
    assert "What approving it does" in page.content.decode()
    assert "3,100 tokens a month with this" in _text(page)
    asked = another_operator.get(_url(requested, "approve"))
    assert "3,100 tokens a month with this" in _text(asked)
    assert _all()[0].approval == Approval.REQUESTED
    unseen = another_operator.post(_url(requested, "approve"), {"reason": "as agreed"})
    assert "has changed since this was shown to you" in unseen.content.decode()
    assert _all()[0].approval == Approval.REQUESTED
    answer = another_operator.post(
        _url(requested, "approve"), {"reason": "as agreed", **_shown(asked)}, follow=True
    )
    assert "Rail: high is approved." in answer.content.decode()
    assert "as agreed" in answer.content.decode()
    assert _actions() == ["entitlement.request", "entitlement.approve"]
    assert another_operator.get(LIST, {"state": "requested"}).context["cl"].result_count == 0


def test_a_request_is_refused_with_a_reason_or_withdrawn(
    as_operator: Client, another_operator: Client, operator: User, high: Lane
) -> None:
    first, second = (
        entitlements.grant(tenant=TenantFactory(), lane=high, granted_by=operator, actor=ACTOR) for _ in "12"
    )
    page = another_operator.post(_url(first, "refuse"), {"reason": ""})
    assert "required" in page.content.decode()
    another_operator.post(_url(first, "refuse"), {"reason": "too much"})
    answer = as_operator.post(_url(second, "withdraw"), {}, follow=True)
    assert "is withdrawn." in answer.content.decode()
    assert [row.approval for row in _all()] == [Approval.REFUSED, Approval.REQUESTED]
    for state, row in (("refused", first), ("ended", second)):
        found = as_operator.get(LIST, {"state": state}).context["cl"].result_list
        assert [one.pk for one in found] == [row.pk]
    assert "Refused" in _text(as_operator.get(_url(first)))
    assert "Withdrawn" in _text(as_operator.get(_url(second)))


def test_a_wider_one_replaces_the_present_one_when_it_is_approved(
    as_operator: Client, another_operator: Client, high: Lane
) -> None:
    present = EntitlementFactory(lane=high, allowance__tokens_per_month=900)
    preview = as_operator.post(_url(present), _form(tokens_per_month="2000"))
    assert "Until then the present entitlement stays as it is." in _text(preview)
    as_operator.post(_url(present), _sent_by(preview))
    present, wider = _all()
    assert present.allowance.limits == Limits(tokens_per_month=900)
    page = another_operator.get(_url(wider))
    assert "900 → 2,000" in _text(page)
    assert "2,000 tokens a month with this" in _text(page)
    asked = another_operator.get(_url(wider, "approve"))
    entitlements.change(entitlement=present, limits=Limits(tokens_per_month=800), actor=ACTOR)
    refused = another_operator.post(_url(wider, "approve"), {"reason": "", **_shown(asked)})
    assert "has changed since this was shown to you" in refused.content.decode()
    assert "800 → 2,000" in _text(refused)
    assert _all()[0].ended_at is None
    another_operator.post(_url(wider, "approve"), {"reason": "", **_shown(refused)})
    present, wider = _all()
    assert present.ended_at is not None
    assert wider.approval == Approval.APPROVED
    assert wider.allowance.limits == Limits(tokens_per_month=2000)
    assert _url(wider) in as_operator.get(_url(present)).content.decode()


def test_one_is_extended_with_a_reason(as_operator: Client) -> None:
    temporary = EntitlementFactory(ends_at=timezone.now() + timedelta(hours=1), reason="launch")
    page = as_operator.get(_url(temporary, "extend")).content.decode()
    assert "Now: temporary, until" in page
    past = as_operator.post(_url(temporary, "extend"), {"ends_at": "2020-01-01T00:00", "reason": "more"})
    assert "It would be over already" in past.content.decode()
    as_operator.post(_url(temporary, "extend"), {"ends_at": "2036-01-01T00:00", "reason": "still launching"})
    [extended] = _all()
    assert extended.ends_at is not None
    assert extended.ends_at.year in (2035, 2036)
    assert extended.reason == "still launching"


def test_one_is_ended_after_a_question(as_operator: Client) -> None:
    entitlement = EntitlementFactory()
    as_operator.get(_url(entitlement, "end"))
    assert _all()[0].ended_at is None
    answer = as_operator.post(_url(entitlement, "end"), follow=True)
    assert f"{entitlement} has ended." in answer.content.decode()
    assert _all()[0].ended_at is not None
    assert _actions() == ["entitlement.end"]


def test_only_what_is_open_is_offered(as_operator: Client, as_onlooker: Client, operator: User) -> None:
    now = timezone.now()
    live = EntitlementFactory()
    ended = EntitlementFactory(ended_at=now)
    over = EntitlementFactory(ends_at=now, reason="x")
    asked = EntitlementFactory(approval=Approval.REQUESTED, granted_by=operator)
    offered = {
        live: {"extend", "end"},
        ended: set(),
        over: set(),
        asked: {"withdraw"},
    }
    for row, actions in offered.items():
        page = as_operator.get(_url(row)).content.decode()
        assert {
            name
            for name in ("extend", "end", "approve", "refuse", "withdraw")
            if f'href="{_url(row, name)}"' in page
        } == actions
        assert ("Show what it does" in page) is (row is live)
        looked_at = as_onlooker.get(_url(row))
        assert "Show what it does" not in looked_at.content.decode()
        assert "Tokens a day" in looked_at.content.decode()
    refused = as_onlooker.post(_url(live), _form(weight=3))
    assert refused.status_code == 403


def test_times_and_approval_are_told_in_the_list(as_operator: Client) -> None:
    now = timezone.now()
    EntitlementFactory(ends_at=now + timedelta(days=1), reason="x", allowance__tokens_per_day=10)
    EntitlementFactory(starts_at=now + timedelta(days=1))
    EntitlementFactory(approval=Approval.REQUESTED)
    EntitlementFactory()
    page = as_operator.get(LIST)
    text = _text(page)
    for said in (
        "Temporary, until",
        "Not yet: from",
        "Waits for approval",
        "Standing",
        "Tokens a day: 0 %",
    ):
        assert said in text, said
    for state, count in (("gives", 2), ("not_yet", 1), ("requested", 1), ("ended", 0), ("refused", 0)):
        assert as_operator.get(LIST, {"state": state}).context["cl"].result_count == count, state


def test_pages_ask_as_much_for_many_as_for_few(
    as_operator: Client, django_assert_max_num_queries: Any
) -> None:
    tenant = TenantFactory()
    urls = [LIST, reverse("admin:accounts_tenant_change", args=[tenant.pk])]
    _grants(tenant, 2)
    few = []
    for url in urls:
        with django_assert_max_num_queries(40) as asked:
            as_operator.get(url)
        few.append(len(asked))
    _grants(tenant, 12)
    for url, count in zip(urls, few, strict=True):
        with django_assert_max_num_queries(count):
            as_operator.get(url)


def test_a_tenants_page_shows_its_entitlements_and_what_is_used(as_operator: Client) -> None:
    entitlement = EntitlementFactory(allowance__tokens_per_day=1000)
    EntitlementFactory(tenant=entitlement.tenant, lane_id="high", ended_at=timezone.now())
    _use(entitlement, settled=250, reserved=0)
    text = _text(as_operator.get(reverse("admin:accounts_tenant_change", args=[entitlement.tenant_id])))
    assert "250 of 1,000 used (25 %)" in text
    assert "Ended" in text


def test_a_tenants_calendar_and_a_lanes_mark_are_set_on_their_pages(as_operator: Client) -> None:
    tenant = TenantFactory(name="Rail")
    url = reverse("admin:accounts_tenant_change", args=[tenant.pk])
    page = as_operator.get(url)
    assert "takes effect when the current window ends" in _text(page)
    sent: dict[str, Any] = {"name": "Rail", "time_zone": "Asia/Seoul"}
    for inline in page.context["inline_admin_formsets"]:
        form = inline.formset.management_form
        sent |= {form.add_prefix(name): value for name, value in form.initial.items()}
    as_operator.post(url, sent)
    tenant.refresh_from_db()
    assert tenant.time_zone == "Asia/Seoul"
    lane = reverse("admin:accounts_lane_change", args=["high"])
    as_operator.post(lane, {"description": "", "approval_above_tokens": "5000"})
    assert Lane.objects.get(name="high").approval_above_tokens == 5000
    assert "above 5,000 tokens a month" in _text(as_operator.get(reverse("admin:accounts_lane_changelist")))
    assert [action for action in _actions() if action != "lane.describe"] == [
        "tenant.set_time_zone",
        "lane.set_approval",
    ]


def _grants(tenant: Tenant, count: int) -> None:
    for hours in range(count):
        EntitlementFactory(
            tenant=tenant,
            ends_at=timezone.now() + timedelta(hours=hours + 1),
            reason="x",
            allowance__tokens_per_day=100,
            allowance__requests_per_minute=5,
        )


def _use(entitlement: Entitlement, *, settled: int, reserved: int) -> None:
    with tenant_scope(entitlement.tenant_id), transaction.atomic():
        for tokens, done in ((settled, True), (reserved, False)):
            if not tokens:
                continue
            generation = uuid4()
            reservations.reserve(
                generation_id=generation,
                tenant_id=entitlement.tenant_id,
                entitlement_allowance_id=entitlement.allowance_id,
                key_allowance_id=None,
                tokens=tokens,
                now=timezone.now(),
            )
            if done:
                reservations.settle(generation, tokens, timezone.now())
