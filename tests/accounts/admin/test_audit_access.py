"""The auditor: sees all of the audit and what it leads to, nothing else, and changes nothing at any address."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpResponse, HttpResponseBase
from django.test import Client
from django.urls import reverse

from accounts import users
from accounts.audience import Audience, only_reads, sees
from accounts.models import ApiKey, AuditEvent, AuditVerification, User
from accounts.tenancy import every_tenant
from tests.accounts.admin.addresses import ADMIN, make_rows
from tests.factories import ACTOR, OperatorFactory, UserFactory
from tests.fixtures.admin import save


@pytest.fixture
def _rows(_admin_pages: None) -> None:
    make_rows()


@pytest.mark.usefixtures("_rows")
def test_who_may_only_look_sends_nothing_either(as_onlooker: Client) -> None:
    for address, name in ADMIN:
        if name not in ("login", "logout"):
            assert as_onlooker.post(address, {"post": "yes"}).status_code == 403, address
    assert not AuditVerification.objects.exists()


@pytest.mark.slow
@pytest.mark.usefixtures("_rows")
def test_an_auditor_reads_the_audit_what_it_leads_to_and_nothing_else(as_auditor: Client) -> None:
    read, refused = set(), set()
    for address, name in ADMIN:
        status = as_auditor.get(address).status_code
        assert status in (200, 302, 403, 404, 405), address
        {200: read, 403: refused}.get(status, set()).add(name)
    assert read >= {
        "accounts_audit",
        "accounts_audit_export",
        "accounts_audit_script",
        "accounts_auditevent_changelist",
        "accounts_laneassignment_changelist",
        "accounts_laneassignment_change",
        "accounts_lane_rights",
        "accounts_tenant_changelist",
        "accounts_entitlement_change",
        "accounts_entitlement_history",
        "accounts_apikey_change",
        "accounts_user_change",
        "accounts_membership_changelist",
        "accounts_lane_changelist",
        "inference_generation_change",
    }
    assert refused >= {
        "accounts_usage",
        "accounts_usage_csv",
        "accounts_ledgerentry_changelist",
        "accounts_price_changelist",
        "accounts_webhookendpoint_changelist",
        "accounts_webhookdelivery_changelist",
        "accounts_budgetevent_changelist",
        "inference_scheduler",
        "inference_worker_changelist",
        "inference_languagemodel_changelist",
        "inference_publishedprefix_changelist",
    }
    assert not any("conversation" in name for name in read)
    assert not {name for name in read if name.endswith("_add")}


@pytest.mark.usefixtures("_rows")
def test_no_page_offers_an_auditor_what_it_refuses(as_auditor: Client) -> None:
    for name in ("accounts_audit", "accounts_auditevent_changelist", "accounts_laneassignment_changelist"):
        html = as_auditor.get(reverse(f"admin:{name}")).content.decode()
        assert "Audit, read only" in html
        assert "Make a checkpoint" not in html
        menu = html.partition('id="nav-sidebar')[2].partition("</nav>")[0]
        linked = set(re.findall(r'href="(/admin/[^"]*)"', menu))
        assert reverse("admin:accounts_lanes_rights") in linked
        for address in linked:
            assert as_auditor.get(address, follow=True).status_code == 200, address
        assert reverse("admin:inference_worker_changelist") not in linked
    with every_tenant("test"):
        key = ApiKey.objects.first()
    assert key is not None
    page = as_auditor.get(reverse("admin:accounts_apikey_change", args=[key.pk])).content.decode()
    assert reverse("admin:accounts_apikey_revoke", args=[key.pk]) not in page


@pytest.mark.usefixtures("_rows")
def test_the_search_over_all_pages_finds_an_auditor_what_they_may_see(as_auditor: Client) -> None:
    found = as_auditor.get(reverse("admin:search"), {"s": "work"}).content.decode()
    assert "inference/worker" not in found
    found = as_auditor.get(reverse("admin:search"), {"s": "audit"}).content.decode()
    assert reverse("admin:accounts_auditevent_changelist") in found


@pytest.mark.usefixtures("_rows")
def test_who_may_only_look_is_not_led_to_the_audit(as_onlooker: Client) -> None:
    with every_tenant("test"):
        key = ApiKey.objects.first()
    assert key is not None
    html = as_onlooker.get(reverse("admin:accounts_apikey_change", args=[key.pk])).content.decode()
    assert reverse("admin:accounts_apikey_history", args=[key.pk]) not in html
    assert reverse("admin:accounts_auditevent_changelist") not in html
    for name in ("accounts_audit", "accounts_audit_export", "accounts_audit_script", "accounts_lanes_rights"):
        assert as_onlooker.get(reverse(f"admin:{name}")).status_code == 403, name


def test_an_operator_makes_an_auditor_and_unmakes_one(as_operator: Client) -> None:
    save(as_operator, reverse("admin:accounts_user_add"), {"username": "iris", "is_auditor": "on"})
    iris = User.objects.get(username="iris")
    assert (iris.is_auditor, iris.is_staff, iris.is_superuser) == (True, True, False)
    listed = as_operator.get(reverse("admin:accounts_user_changelist"), {"is_auditor__exact": "1"})
    assert [user.username for user in listed.context["cl"].result_list] == ["iris"]
    save(as_operator, reverse("admin:accounts_user_change", args=[iris.pk]), {"username": "iris"})
    iris.refresh_from_db()
    assert (iris.is_auditor, iris.is_staff) == (False, False)


def test_a_person_s_data_is_erased_after_their_name_was_typed(as_operator: Client) -> None:
    person = UserFactory(username="mabel", email="mabel@example.com")
    url = reverse("admin:accounts_user_erase", args=[person.pk])
    page = reverse("admin:accounts_user_change", args=[person.pk])
    assert "account is open. Close it first." in as_operator.post(
        url, {"username": "mabel"}
    ).content.decode().replace("&#x27;", "'")
    assert url not in as_operator.get(page).content.decode()
    users.close(user=person, actor=ACTOR)
    assert url in as_operator.get(page).content.decode()
    mistyped = as_operator.post(url, {"username": "ada"}).content.decode()
    assert "This is not mabel." in mistyped
    person.refresh_from_db()
    assert person.erased_at is None
    done = as_operator.post(url, {"username": "mabel"}, follow=True)
    assert "Their personal data is erased." in done.content.decode()
    person.refresh_from_db()
    assert person.erased_at is not None
    html = as_operator.get(page).content.decode()
    assert "Erased" in html
    assert reverse("admin:accounts_user_reopen", args=[person.pk]) not in html
    assert AuditEvent.objects.latest("sequence").action == "user.erase"


def test_who_sees_what_is_one_rule(db: None) -> None:
    operator, auditor = OperatorFactory(), UserFactory(is_staff=True, is_auditor=True)
    onlooker, member = UserFactory(is_staff=True), UserFactory()
    closed = UserFactory(is_staff=True, is_auditor=True, is_active=False)
    due = UserFactory(is_staff=True, is_auditor=True, must_change_password=True)
    expected = {
        Audience.STAFF: [operator, onlooker],
        Audience.STAFF_AND_AUDITORS: [operator, auditor, onlooker, due],
        Audience.AUDITORS: [operator, auditor],
    }
    for audience, who in expected.items():
        everybody = [operator, auditor, onlooker, member, closed, due]
        assert [one for one in everybody if sees(one, audience)] == who


def test_a_view_that_says_nothing_takes_nothing_from_who_is_no_operator(
    auditor: User, operator: User, rf: Any
) -> None:
    def view(request: Any) -> HttpResponse:
        return HttpResponse("seen")

    def answer(user: User, method: str, guarded: Any) -> HttpResponseBase:
        request = getattr(rf, method)("/admin/")
        request.user = user
        request._dont_enforce_csrf_checks = True
        return admin.site.admin_view(guarded)(request)

    assert answer(auditor, "get", view).status_code == 200
    assert answer(operator, "post", view).status_code == 200
    with pytest.raises(PermissionDenied):
        answer(auditor, "post", view)
    assert answer(auditor, "post", only_reads(view)).status_code == 200
