"""Tenants, entitlements, members, users and lanes: every write through its verb, with the operator as actor."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth import authenticate
from django.db import IntegrityError
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from accounts.audit import verification
from accounts.models import AuditEvent, Entitlement, Lane, Membership, Role, Tenant, User
from accounts.tenancy import every_tenant
from tests.factories import EntitlementFactory, MembershipFactory, OperatorFactory, TenantFactory, UserFactory
from tests.fixtures.admin import filled, save
from tests.fixtures.stored_text import stored_text


def _url(name: str, *arguments: object) -> str:
    return reverse(f"admin:accounts_{name}", args=arguments)


def _actions() -> list[str]:
    return list(AuditEvent.objects.order_by("sequence").values_list("action", flat=True))


def test_a_new_tenant_has_the_lanes_that_were_ticked(as_operator: Client, operator: User) -> None:
    answer = as_operator.post(
        _url("tenant_add"), {"name": "Rail", "slug": "rail", "lanes": ["low", "normal"]}
    )
    tenant = Tenant.objects.get()
    assert answer["Location"] == _url("tenant_change", tenant.pk)
    with every_tenant("test"):
        assert {row.lane_id for row in Entitlement.objects.all()} == {"low", "normal"}
        assert {row.granted_by for row in Entitlement.objects.all()} == {operator}
    assert _actions() == ["tenant.create", "entitlement.grant", "entitlement.grant"]


def test_no_lane_above_normal_is_ticked_for_a_new_tenant(as_operator: Client) -> None:
    Lane.objects.create(name="night", rank=9, service_tier="night")
    page = as_operator.get(_url("tenant_add"))
    assert page.context["adminform"].form.initial["lanes"] == ["normal", "low", "night"]


def test_a_new_member_is_a_member_unless_more_is_chosen(as_operator: Client) -> None:
    page = as_operator.get(_url("membership_add")).content.decode()
    assert '<option value="member" selected>' in page
    assert '<option value="owner" selected>' not in page


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("membership", "Members"),
        ("usagerollup", "Usage by hour"),
        ("auditevent", "Audit"),
        ("apikey", "API keys"),
    ],
)
def test_a_list_has_one_name_in_its_menu_its_heading_and_its_title(
    as_operator: Client, model: str, name: str
) -> None:
    page = as_operator.get(_url(f"{model}_changelist")).content.decode()
    assert f"<title> {name} | Signalbox</title>" in page
    assert page.count(name) >= 3


def test_what_was_made_and_saved_is_said_on_its_own_page(as_operator: Client) -> None:
    night = {"name": "night", "rank": 9, "service_tier": "night", "description": ""}
    made = as_operator.post(_url("lane_add"), night, follow=True)
    assert made.redirect_chain[-1][0] == _url("lane_change", "night")
    assert "Made: night" in made.content.decode()
    assert "was added successfully" not in made.content.decode()
    saved = as_operator.post(_url("lane_change", "night"), {"description": "Late."}, follow=True)
    assert "Saved: night" in saved.content.decode()


def test_a_page_that_is_only_read_leads_back_and_offers_no_second_page_where_there_is_one(
    as_operator: Client,
) -> None:
    save(as_operator, _url("tenant_add"), {"name": "Rail", "slug": "rail"})
    event = as_operator.get(_url("auditevent_change", 1)).content.decode()
    assert "Back" in event
    assert "Close" not in event
    listed = as_operator.get(_url("auditevent_changelist")).content.decode()
    assert "Previous" not in listed
    assert "Next" not in listed


def test_a_refusal_is_shown_at_its_field(as_operator: Client) -> None:
    TenantFactory(slug="rail")
    page = as_operator.post(_url("tenant_add"), {"name": "Rail", "slug": "rail"}).content.decode()
    assert "already exists" in page
    with every_tenant("test"):
        owner = MembershipFactory(role=Role.OWNER)
    page = as_operator.post(_url("membership_change", owner.pk), {"role": "viewer"}).content.decode()
    assert "is the last owner of" in page
    assert _actions() == []


def test_a_tenant_is_renamed_closed_and_reopened(as_operator: Client) -> None:
    tenant = TenantFactory(name="Rail")
    save(as_operator, _url("tenant_change", tenant.pk), {"name": "Railway"})
    as_operator.get(_url("tenant_close", tenant.pk))
    assert Tenant.objects.get().closed_at is None
    as_operator.post(_url("tenant_close", tenant.pk))
    assert Tenant.objects.get().closed_at is not None
    as_operator.post(_url("tenant_reopen", tenant.pk))
    tenant.refresh_from_db()
    assert (tenant.name, tenant.closed_at) == ("Railway", None)
    assert _actions() == ["tenant.rename", "tenant.close", "tenant.reopen"]


def test_learning_from_a_tenant_is_switched_on_its_page_which_says_what_is_kept(as_operator: Client) -> None:
    tenant = TenantFactory(name="Rail")
    page = as_operator.get(_url("tenant_change", tenant.pk)).content.decode()
    assert "which can be read as text" in page
    assert "manage.py pool forget" in page
    save(as_operator, _url("tenant_change", tenant.pk), {"name": "Rail", "suffix_pool": "on"})
    tenant.refresh_from_db()
    assert tenant.suffix_pool
    save(as_operator, _url("tenant_change", tenant.pk), {"name": "Railway"})
    tenant.refresh_from_db()
    assert (tenant.name, tenant.suffix_pool) == ("Railway", False)
    assert _actions() == ["tenant.set_suffix_pool", "tenant.rename", "tenant.set_suffix_pool"]


def test_a_tenant_s_page_leads_to_its_first_key_member_and_lane(as_operator: Client) -> None:
    tenant = TenantFactory()
    for name, model in (("new_key", "apikey"), ("grant", "entitlement"), ("add_member", "membership")):
        answer = as_operator.get(_url(f"tenant_{name}", tenant.pk))
        assert answer["Location"] == f"{_url(f'{model}_add')}?tenant={tenant.pk}"
        assert (
            f'<option value="{tenant.pk}" selected>' in as_operator.get(answer["Location"]).content.decode()
        )


def test_several_entitlements_are_ended_after_a_question(as_operator: Client) -> None:
    rows = [EntitlementFactory() for _ in range(3)]
    chosen = {"action": "end_selected", "_selected_action": [str(row.pk) for row in rows]}
    question = as_operator.post(_url("entitlement_changelist"), chosen).content.decode()
    assert "End 3 entitlements" in question
    with every_tenant("test"):
        assert Entitlement.objects.filter(ended_at=None).count() == 3
    answer = as_operator.post(_url("entitlement_changelist"), {**chosen, "confirmed": "yes"}, follow=True)
    assert "3 entitlements ended." in answer.content.decode()
    assert _actions() == ["entitlement.end"] * 3


@pytest.mark.django_db(transaction=True)
def test_a3_a_bulk_change_in_the_admin_fails_with_its_audit(as_operator: Client) -> None:
    rows = [EntitlementFactory() for _ in range(3)]
    AuditEvent.objects.create(sequence=2, at=timezone.now(), actor_name="x", action="x.x", hash="x" * 64)
    chosen = {
        "action": "end_selected",
        "_selected_action": [str(row.pk) for row in rows],
        "confirmed": "yes",
    }
    with pytest.raises(IntegrityError):
        as_operator.post(_url("entitlement_changelist"), chosen)
    with every_tenant("test"):
        assert Entitlement.objects.filter(ended_at=None).count() == 3


def test_a_member_is_added_given_a_role_and_let_go(as_operator: Client) -> None:
    tenant, user = TenantFactory(), UserFactory()
    MembershipFactory(tenant=tenant, role=Role.OWNER)
    as_operator.post(_url("membership_add"), {"tenant": tenant.pk, "user": user.pk, "role": "member"})
    with every_tenant("test"):
        membership = Membership.objects.get(user=user)
    as_operator.post(_url("membership_change", membership.pk), {"role": "admin"})
    as_operator.post(_url("membership_end", membership.pk))
    with every_tenant("test"):
        membership.refresh_from_db()
    assert membership.role == "admin"
    assert membership.ended_at is not None
    assert _actions() == ["membership.add", "membership.change_role", "membership.end"]


def test_a_new_user_s_password_is_shown_once(as_operator: Client) -> None:
    answer = save(as_operator, _url("user_add"), {"username": "ada", "email": "ada@example.com"})
    ada = User.objects.get(username="ada")
    shown = answer.context["shown"].secret
    assert shown in answer.content.decode()
    assert authenticate(username="ada", password=shown) == ada
    assert shown not in stored_text()
    assert shown not in as_operator.get(_url("user_change", ada.pk)).content.decode()
    save(as_operator, _url("user_change", ada.pk), {"username": "ada", "is_staff": "on"})
    ada.refresh_from_db()
    assert (ada.is_staff, ada.is_superuser, ada.email) == (True, False, "")
    again = save(as_operator, _url("user_new_password", ada.pk)).context["shown"].secret
    assert authenticate(username="ada", password=shown) is None
    assert authenticate(username="ada", password=again) == ada
    assert _actions() == ["user.create", "user.change", "user.reset_password"]


def test_sending_the_form_of_a_new_user_again_makes_nobody_and_says_so(as_operator: Client) -> None:
    url = _url("user_add")
    sent = filled(as_operator, url, {"username": "ada"})
    as_operator.post(url, sent)
    again = as_operator.post(url, sent)
    assert "This user was made already" in again.content.decode()
    assert User.objects.filter(username="ada").count() == 1
    assert _actions() == ["user.create"]


def test_a_one_time_password_stays_when_its_form_is_sent_again(as_operator: Client) -> None:
    user = UserFactory(username="ada")
    url = _url("user_new_password", user.pk)
    sent = filled(as_operator, url, {})
    password = as_operator.post(url, sent).context["shown"].secret
    again = as_operator.post(url, sent)
    assert "The password was made already" in again.content.decode()
    assert authenticate(username="ada", password=password) == user
    assert _actions() == ["user.reset_password"]


def test_an_account_is_closed_and_reopened_but_never_the_last_operator_s(
    as_operator: Client, operator: User
) -> None:
    page = as_operator.post(_url("user_close", operator.pk)).content.decode()
    assert "is the last operator" in page
    other = OperatorFactory()
    as_operator.post(_url("user_close", other.pk))
    other.refresh_from_db()
    assert not other.is_active
    as_operator.post(_url("user_reopen", other.pk))
    other.refresh_from_db()
    assert other.is_active


def test_a_lane_is_added_and_described(as_operator: Client) -> None:
    night = {"name": "night", "rank": 9, "service_tier": "night", "description": "When nobody looks."}
    as_operator.post(_url("lane_add"), night)
    as_operator.post(_url("lane_change", "night"), {"description": "After hours."})
    assert Lane.objects.get(name="night").description == "After hours."
    assert _actions() == ["lane.add", "lane.describe"]
    page = as_operator.post(_url("lane_add"), {**night, "name": "auto", "rank": 10}).content.decode()
    assert "for no lane in particular" in page or "already exists" in page


def test_an_event_s_page_shows_what_was_and_what_is(as_operator: Client) -> None:
    tenant = TenantFactory(name="Rail")
    save(as_operator, _url("tenant_change", tenant.pk), {"name": "Railway"})
    page = as_operator.get(_url("auditevent_change", 1)).content.decode()
    assert "<del>Rail</del>" in page
    assert "<ins>Railway</ins>" in page
    assert verification.verify(from_scratch=True).fault is None


LISTS = {
    "tenant": lambda: EntitlementFactory(),
    "entitlement": lambda: EntitlementFactory(),
    "membership": lambda: MembershipFactory(),
    "user": lambda: MembershipFactory(),
}


@pytest.mark.parametrize("model", LISTS)
def test_lists_cost_as_much_for_many_rows_as_for_few(
    as_operator: Client, django_assert_max_num_queries: Any, model: str
) -> None:
    for _ in range(3):
        LISTS[model]()
    with django_assert_max_num_queries(14) as few:
        as_operator.get(_url(f"{model}_changelist"))
    for _ in range(15):
        LISTS[model]()
    with django_assert_max_num_queries(len(few)):
        as_operator.get(_url(f"{model}_changelist"))
