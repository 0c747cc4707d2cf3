"""Who may enter a tenant's area, page by page: its members, as far as their role goes, and nobody else."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from accounts.authentication import authenticate_key
from accounts.models import ApiKey, AuditEvent, Role, Tenant, User, WebhookEndpoint
from accounts.site.urls import urlpatterns
from accounts.tenancy import every_tenant
from tests.accounts.site.conftest import AsRole
from tests.factories import ApiKeyFactory, MembershipFactory, OperatorFactory, TenantFactory, UserFactory

LOOK = (
    "tenant",
    "tenant-usage",
    "tenant-usage-csv",
    "tenant-keys",
    "tenant-members",
    "tenant-webhooks",
    "tenant-key",
)
MANAGE = (
    "tenant-key-new",
    "tenant-key-rotate",
    "tenant-key-revoke",
    "tenant-webhook-new",
    "tenant-webhook",
    "tenant-webhook-secret",
    "tenant-webhook-end",
)
OF_KEY = ("tenant-key", "tenant-key-rotate", "tenant-key-revoke")
OF_WEBHOOK = ("tenant-webhook", "tenant-webhook-secret", "tenant-webhook-end")


class Things:
    """A key and a webhook endpoint of one tenant."""

    def __init__(self, tenant: Tenant) -> None:
        self.tenant = tenant
        self.key: Any = ApiKeyFactory(tenant=tenant)
        with every_tenant("test"):
            self.endpoint = WebhookEndpoint.objects.create(
                tenant=tenant, url="https://example.com/hook", pepper_id="none"
            )

    def url(self, page: str, slug: str | None = None) -> str:
        """The page's address, of these things, below the tenant's slug or another's."""
        things = [self.key.id] if page in OF_KEY else [self.endpoint.id] if page in OF_WEBHOOK else []
        return reverse(page, args=[slug or self.tenant.slug, *things])

    def are_untouched(self) -> bool:
        with every_tenant("test"):
            key = ApiKey.objects.get(id=self.key.id)
            endpoint = WebhookEndpoint.objects.get(id=self.endpoint.id)
            keys = ApiKey.objects.filter(tenant=self.tenant).count()
        return (
            keys,
            key.name,
            key.revoked_at,
            key.expires_at,
            endpoint.ended_at,
            endpoint.secret_version,
        ) == (
            1,
            self.key.name,
            None,
            None,
            None,
            1,
        )


@pytest.fixture
def things(rail: Tenant) -> Things:
    return Things(rail)


def test_every_page_is_in_this_test() -> None:
    [_, of_tenant] = urlpatterns
    names = {pattern.name for pattern in of_tenant.url_patterns}
    assert names == {*LOOK, *MANAGE, "tenant-webhook-replay"}


@pytest.mark.parametrize("page", [*LOOK, *MANAGE])
def test_a_stranger_must_sign_in_and_is_led_back(things: Things, page: str) -> None:
    for answer in (Client().get(things.url(page)), Client().post(things.url(page))):
        assert answer.status_code == 302
        assert answer["Location"] == f"{reverse('login')}?next={things.url(page)}"
    assert things.are_untouched()


@pytest.mark.parametrize("page", [*LOOK, *MANAGE])
def test_who_is_no_member_finds_nothing_there(things: Things, page: str) -> None:
    ended: Any = MembershipFactory(tenant=things.tenant, role=Role.OWNER, ended_at=timezone.now())
    elsewhere: Any = MembershipFactory(role=Role.OWNER)
    for user in (UserFactory(), ended.user, elsewhere.user, OperatorFactory()):
        client = Client()
        client.force_login(user)
        for answer in (
            client.get(things.url(page)),
            client.post(things.url(page)),
            client.put(things.url(page)),
        ):
            assert answer.status_code == 404
            assert things.tenant.name not in answer.content.decode()
    assert things.are_untouched()


@pytest.mark.parametrize("role", list(Role))
def test_members_see_all_and_only_owners_and_admins_decide(
    things: Things, as_role: AsRole, role: Role
) -> None:
    client = as_role(role)
    manages = role in (Role.OWNER, Role.ADMIN)
    for page in LOOK:
        assert client.get(things.url(page)).status_code == 200, page
    assert f"Your role here: {role}." in client.get(things.url("tenant")).content.decode()
    for page in MANAGE:
        assert client.get(things.url(page)).status_code == (200 if manages else 403), page
        if not manages:
            assert client.post(things.url(page), {"name": "mine", "overlap": 0}).status_code == 403, page
    if not manages:
        assert client.post(things.url("tenant-key"), {"name": "mine", "scopes": ["read"]}).status_code == 403
    assert things.are_untouched()
    # Taking usage along is an export, whoever may do it.
    assert {event.action for event in AuditEvent.objects.all()} == {"usage.export"}


@pytest.mark.parametrize("page", [*OF_KEY, *OF_WEBHOOK])
def test_another_tenant_s_things_are_not_there(things: Things, as_owner: Client, page: str) -> None:
    others = Things(TenantFactory())
    url = others.url(page, slug=things.tenant.slug)
    assert as_owner.get(url).status_code == 404
    assert as_owner.post(url, {"name": "mine", "scopes": ["read"], "overlap": 0}).status_code == 404
    assert others.are_untouched()
    assert authenticate_key(others.key.raw)


def test_a_closed_tenant_is_not_there(things: Things, as_owner: Client) -> None:
    things.tenant.closed_at = timezone.now()
    things.tenant.save()
    assert all(as_owner.get(things.url(page)).status_code == 404 for page in (*LOOK, *MANAGE))
    assert things.tenant.name not in as_owner.get(reverse("tenants")).content.decode()


@pytest.mark.parametrize("page", [page for page in LOOK if page != "tenant-key"])
def test_what_is_only_looked_at_takes_no_other_method(things: Things, as_owner: Client, page: str) -> None:
    assert as_owner.post(things.url(page)).status_code == 405
    assert as_owner.delete(things.url(page)).status_code == 405


def test_with_a_password_that_somebody_else_knows_nothing_opens(things: Things, as_owner: Client) -> None:
    User.objects.filter(username="the owner").update(must_change_password=True)
    for url in (reverse("tenants"), things.url("tenant"), things.url("tenant-key-new")):
        answer = as_owner.get(url)
        assert (answer.status_code, answer["Location"]) == (302, reverse("password"))


@pytest.mark.parametrize("page", [*LOOK, *MANAGE])
def test_no_page_is_kept_or_loads_anything_inline(things: Things, as_owner: Client, page: str) -> None:
    answer = as_owner.get(things.url(page))
    assert "no-store" in answer["Cache-Control"]
    policy = answer["Content-Security-Policy"]
    assert "'unsafe-inline'" not in policy
    assert "script-src 'self'" in policy
    text = answer.content.decode()
    assert "style=" not in text
    assert "<style" not in text
    assert text.count("<script") == text.count("<script src=")


def test_one_tenant_is_gone_to_at_once_and_several_are_chosen_from(rail: Tenant, as_owner: Client) -> None:
    answer = as_owner.get("/tenant", follow=True)
    assert answer.redirect_chain[-1][0] == reverse("tenant", args=["rail"])
    assert reverse("tenant", args=["rail"]) in as_owner.get(f"{reverse('tenants')}?choose").content.decode()
    MembershipFactory(
        user=User.objects.get(username="the owner"), tenant=TenantFactory(name="Yard", slug="yard")
    )
    TenantFactory(name="Foreign")
    page = as_owner.get(reverse("tenants")).content.decode()
    assert all(reverse("tenant", args=[slug]) in page for slug in ("rail", "yard"))
    assert "Foreign" not in page


@pytest.mark.usefixtures("_admin_pages")
def test_who_belongs_to_no_tenant_is_told_so() -> None:
    client = Client()
    client.force_login(UserFactory())
    assert "You belong to no tenant yet" in client.get(reverse("tenants")).content.decode()


def test_the_chat_leads_to_the_area_and_the_area_back(things: Things, as_owner: Client) -> None:
    assert f'href="{reverse("tenants")}"' in as_owner.get(reverse("chat")).content.decode()
    assert f'href="{reverse("chat")}"' in as_owner.get(things.url("tenant")).content.decode()
