"""Who gets into the admin, and what may be done there at all."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib import admin
from django.test import Client
from django.urls import reverse

from accounts.admin.base import RecordAdmin, SiteModelAdmin
from accounts.audience import Audience
from accounts.models import ApiKey, AuditEvent, LaneAssignment, LedgerEntry, User
from accounts.tenancy import ScopeError, every_tenant
from inference.models import Generation
from tests.factories import (
    PASSWORD,
    ApiKeyFactory,
    BudgetEventFactory,
    ConversationFactory,
    EntitlementFactory,
    GenerationFactory,
    MembershipFactory,
    UserFactory,
    WebhookDeliveryFactory,
    WorkerFactory,
)

# As the site's routes do: a process that shows no pages has none.
admin.autodiscover()
PAGES = sorted(admin.site._registry.values(), key=lambda page: page.opts.label)
RECORDS = {
    "AuditEvent",
    "BudgetEvent",
    "Generation",
    "LaneAssignment",
    "LedgerEntry",
    "UsageRollup",
    "WebhookDelivery",
    "Worker",
}


def _url(page: Any, name: str, *arguments: object) -> str:
    return reverse(f"admin:{page.opts.app_label}_{page.opts.model_name}_{name}", args=arguments)


@pytest.fixture
def _rows(_admin_pages: None) -> None:
    """A row or two of everything."""
    ApiKeyFactory()
    EntitlementFactory()
    MembershipFactory()
    GenerationFactory()
    WorkerFactory()
    ConversationFactory()
    BudgetEventFactory()
    WebhookDeliveryFactory()


def test_every_page_is_one_of_ours() -> None:
    assert PAGES
    assert all(isinstance(page, SiteModelAdmin) for page in PAGES)
    assert {page.model.__name__ for page in PAGES if isinstance(page, RecordAdmin)} == RECORDS


@pytest.mark.usefixtures("_rows")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.opts.model_name)
def test_every_page_opens_for_operators_and_for_those_who_may_look_at_it(
    page: SiteModelAdmin, as_operator: Client, as_onlooker: Client, as_auditor: Client
) -> None:
    with every_tenant("test"):
        row = page.model._default_manager.first()
    urls = [_url(page, "changelist"), *([_url(page, "add")] if page.may_add else [])]
    if row is not None:
        urls += [_url(page, "change", row.pk), _url(page, "history", row.pk)]
    for url in urls:
        answer = as_operator.get(url)
        assert answer.status_code == 200, url
        assert "no-store" in answer["Cache-Control"], url
        adds, audits = url.endswith("/add/"), url.endswith("/history/") or page.audience is Audience.AUDITORS
        assert as_onlooker.get(url).status_code == (403 if adds or audits else 200), url
        closed = adds or page.audience is Audience.STAFF
        assert as_auditor.get(url).status_code == (403 if closed else 200), url


@pytest.mark.usefixtures("_rows")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.opts.model_name)
def test_nothing_is_deleted_and_records_are_neither_added_nor_changed(
    page: SiteModelAdmin, as_operator: Client
) -> None:
    with every_tenant("test"):
        row = page.model._default_manager.first()
        count = page.model._default_manager.count()
    if row is not None:
        assert as_operator.post(_url(page, "delete", row.pk), {"post": "yes"}).status_code == 403
        bulk = {"action": "delete_selected", "_selected_action": [str(row.pk)], "post": "yes"}
        as_operator.post(_url(page, "changelist"), bulk)
    if isinstance(page, RecordAdmin):
        assert as_operator.get(_url(page, "add")).status_code == 403
        if row is not None:
            assert as_operator.post(_url(page, "change", row.pk), {}).status_code == 403
    with every_tenant("test"):
        assert page.model._default_manager.count() == count


@pytest.mark.usefixtures("_rows")
def test_whoever_may_only_look_changes_nothing(as_onlooker: Client) -> None:
    with every_tenant("test"):
        key = ApiKey.objects.get()
    name = f"{key.name} changed"
    posts = {
        reverse("admin:accounts_apikey_add"): {"tenant": key.tenant_id, "name": "x", "scopes": ["read"]},
        reverse("admin:accounts_apikey_change", args=[key.pk]): {"name": name, "scopes": ["read"]},
        reverse("admin:accounts_apikey_rotate", args=[key.pk]): {"overlap": 1},
        reverse("admin:accounts_apikey_revoke", args=[key.pk]): {},
        reverse("admin:accounts_tenant_close", args=[key.tenant_id]): {},
        reverse("admin:accounts_user_add"): {"username": "x"},
    }
    for url, values in posts.items():
        assert as_onlooker.post(url, values).status_code == 403, url
    assert not AuditEvent.objects.exists()
    page = as_onlooker.get(reverse("admin:accounts_apikey_change", args=[key.pk])).content.decode()
    assert reverse("admin:accounts_apikey_revoke", args=[key.pk]) not in page
    assert "read only" in page


def test_whoever_is_not_staff_does_not_get_in(as_member: Client) -> None:
    assert as_member.get(reverse("admin:index"), follow=True).status_code == 403


@pytest.mark.usefixtures("_admin_pages")
def test_whoever_is_not_signed_in_is_led_to_the_one_sign_in_page() -> None:
    answer = Client().get(reverse("admin:accounts_apikey_changelist"), follow=True)
    target = reverse("admin:accounts_apikey_changelist")
    assert answer.redirect_chain[-1][0] == f"{reverse('login')}?next={target}"


def test_signing_in_leads_back_to_the_page_that_was_asked_for(operator: User) -> None:
    client = Client()
    target = reverse("admin:accounts_tenant_changelist")
    page = client.get(target, follow=True)
    answer = client.post(
        page.redirect_chain[-1][0],
        {"username": "operator", "password": PASSWORD, "next": target},
        follow=True,
    )
    assert answer.request["PATH_INFO"] == target
    assert answer.status_code == 200


@pytest.mark.usefixtures("_admin_pages")
def test_a_one_time_password_opens_nothing_but_the_page_to_change_it() -> None:
    client = Client()
    client.force_login(UserFactory(is_staff=True, is_superuser=True, must_change_password=True))
    for name in ("admin:index", "admin:accounts_apikey_changelist", "admin:accounts_user_add"):
        answer = client.get(reverse(name))
        assert (answer.status_code, answer["Location"]) == (302, reverse("password"))


def test_the_admin_has_its_own_content_security_policy(as_operator: Client) -> None:
    policy = as_operator.get(reverse("admin:index"))["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "http" not in policy


def test_the_tenant_scope_ends_with_the_answer(as_operator: Client) -> None:
    as_operator.get(reverse("admin:accounts_apikey_changelist"))
    with pytest.raises(ScopeError):
        ApiKey.objects.count()


@pytest.mark.usefixtures("_rows")
def test_search_finds_pages_and_rows_by_name(as_operator: Client) -> None:
    with every_tenant("test"):
        key = ApiKey.objects.get()
    found = as_operator.get(reverse("admin:search"), {"s": key.prefix, "extended": "1"}).content.decode()
    assert reverse("admin:accounts_apikey_change", args=[key.pk]) in found
    assert (
        reverse("admin:accounts_lane_changelist")
        in as_operator.get(reverse("admin:search"), {"s": "lane"}).content.decode()
    )
    assert as_operator.get(reverse("admin:search"), {"s": " "}).content == b""


def test_a_page_that_names_no_verb_cannot_write(operator: User) -> None:
    page = SiteModelAdmin(LaneAssignment, admin.site)
    with pytest.raises(NotImplementedError):
        page.save_model(None, LaneAssignment(), None, False)  # type: ignore[arg-type]
    with pytest.raises(NotImplementedError):
        page.delete_queryset(None, LedgerEntry.objects.none())  # type: ignore[arg-type]
    with every_tenant("test"):
        assert not Generation.objects.exists()
