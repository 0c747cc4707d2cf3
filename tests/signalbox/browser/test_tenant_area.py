"""A member looks at what the tenant may use and has used; an owner makes a key and rotates it. In a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import urljoin

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.fixtures.accessibility import violations
from tests.signalbox.browser.chat_page import ChatPage
from tests.signalbox.browser.conftest import watched
from tests.signalbox.browser.site import PASSWORD, Site

pytestmark = [pytest.mark.browser, pytest.mark.slow]

OWNER = "isambard"

#: A tenant of this file's own: the other files' one is made anew after each test.
_BRIDGES = """
import uuid
from datetime import timedelta
from django.contrib.auth.hashers import make_password
from django.utils import timezone
from accounts import reservations
from accounts.models import Allowance, ApiKey, Entitlement, Lane, LedgerEntry, Membership, Role, Tenant, User
from accounts.tenancy import every_tenant, tenant_scope

now = timezone.now()
lane = {{one.name: one for one in Lane.objects.all()}}

def allowance(**limits):
    return Allowance.objects.create(tenant=tenant, **limits)

def hold(of, tokens):
    reserved = uuid.uuid4()
    reservations.reserve(
        generation_id=reserved, tenant_id=tenant.id, entitlement_allowance_id=of.id, key_allowance_id=None,
        tokens=tokens, now=now,
    )
    return reserved

with every_tenant("browser tests"):
    if not Tenant.objects.filter(slug="bridges").exists():
        tenant = Tenant.objects.create(name="Bridges and Tunnels", slug="bridges", time_zone="Europe/London")
        user = User.objects.create(username={owner!r}, password=make_password({password!r}))
        Membership.objects.create(tenant=tenant, user=user, role=Role.OWNER)
        Membership.objects.create(tenant=tenant, user=User.objects.get(username="brunel"), role=Role.MEMBER)
        high = allowance(tokens_per_day=200_000, requests_per_minute=60, concurrency=4)
        Entitlement.objects.create(
            tenant=tenant, lane=lane["high"], allowance=high, ends_at=now + timedelta(days=3),
            reason="Opening of the new line", on_exhausted="step_down", step_down_to=lane["normal"],
        )
        normal = allowance(tokens_per_week=5_000_000, tokens_per_month=10_000_000)
        Entitlement.objects.create(tenant=tenant, lane=lane["normal"], allowance=normal)
        Entitlement.objects.create(tenant=tenant, lane=lane["low"], allowance=allowance())
        keys = [
            ApiKey.objects.create(
                tenant=tenant, name=name, prefix=f"bridges{{n:05}}", digest="0" * 64, pepper_id="none",
                scopes=["inference", "read"], allowance=allowance(tokens_per_month=4_000_000 if n else None),
            )
            for n, name in enumerate(["Timetable app", "Night reports"])
        ]
        for day in range(30):
            for n, (name, model) in enumerate(
                [("high", "smollm2"), ("normal", "smollm2"), ("normal", "llama-3.2"), ("low", "llama-3.2")]
            ):
                if (day * 7 + n * 3) % 5:
                    LedgerEntry.objects.create(
                        generation_id=uuid.uuid4(), tenant_id=tenant.id, api_key_id=keys[(day + n) % 2].id, model=model,
                        lane=name, prompt_tokens=4000 + 900 * ((day * (n + 3)) % 11), cached_tokens=1200,
                        completion_tokens=900 + 250 * ((day + n) % 7), settled_at=now - timedelta(days=day),
                    )
        with tenant_scope(tenant.id):
            reservations.settle(hold(high, 170_000), 168_400, now)
            hold(high, 9_000)
            reservations.settle(hold(normal, 900_000), 812_345, now)
"""


@pytest.fixture
def bridges(site: Site) -> str:
    """The tenant's address."""
    site.python(_BRIDGES.format(owner=OWNER, password=PASSWORD))
    return f"{site.base_url}/tenant/bridges/"


@pytest.fixture
def page(site: Site, context: BrowserContext, bridges: str) -> Iterator[Page]:
    """The owner's overview, come to through the log-in. What must not happen on any page fails the test."""
    page = watched(context.new_page(), site)
    sign_in(page, bridges, OWNER)
    yield page
    assert not page.problems, page.problems  # type: ignore[attr-defined]


def sign_in(page: Page, to: str, user: str) -> None:
    page.goto(to)
    expect(page).to_have_url(re.compile(r"/login/\?next=/tenant/"))
    page.get_by_label("User name").fill(user)
    page.get_by_label("Password", exact=True).fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    expect(page).to_have_url(to)


def test_limits_are_there_in_words_and_as_bars(page: Page) -> None:
    high = page.get_by_role("listitem").filter(has=page.get_by_role("heading", name="High lane"))
    expect(high).to_contain_text("Opening of the new line")
    expect(high).to_contain_text("177,400 of 200,000 used (88 %)")
    expect(high).to_contain_text("22,600 left · 9,000 of it reserved by what runs")
    bar = high.locator(".limit-bar").first
    whole = bar.bounding_box()
    used = bar.locator(".limit-used").bounding_box()
    assert whole is not None
    assert used is not None
    assert abs(used["width"] / whole["width"] - 168_400 / 200_000) < 0.02
    expect(page.get_by_text("1 generation of this tenant waits or runs now.")).to_be_visible()


def test_usage_is_drawn_and_tabled_and_taken_along(page: Page) -> None:
    page.get_by_role("link", name="Usage", exact=True).click()
    drawn = page.get_by_role("img", name="Tokens by day and lane, 30 days")
    expect(drawn).to_be_visible()
    columns = drawn.locator(".usage-column")
    expect(columns).to_have_count(30)
    floor = drawn.bounding_box()
    assert floor is not None
    for part in columns.last.locator(".usage-part").all():
        box = part.bounding_box()
        assert box is not None
        assert floor["y"] - 1 <= box["y"]
        assert box["y"] + box["height"] <= floor["y"] + floor["height"] + 1
    page.get_by_text("As a table").click()
    total = page.locator(".usage-table tfoot td").last.inner_text()
    expect(page.get_by_role("region", name="Totals").locator("tfoot")).to_contain_text(total)

    page.get_by_role("link", name="by key").click()
    expect(page.get_by_role("region", name="Totals")).to_contain_text("Timetable app (bridges00000…)")
    page.get_by_role("link", name="7 days").click()
    page.get_by_role("link", name="by hour").click()
    expect(page.locator(".usage-column")).to_have_count(24 * 7)
    with page.expect_download() as taken:
        page.get_by_role("link", name="Export as CSV").click()
    assert taken.value.suggested_filename == "usage-bridges-7d-by-hour.csv"
    assert (
        taken.value.path().read_text().startswith("start,end,tenant_id,tenant,api_key_id,api_key,model,lane,")
    )


def test_a_key_is_made_narrowed_rotated_and_revoked_by_its_owner(page: Page, site: Site) -> None:
    seen: list[str] = []
    page.on("request", lambda request: seen.append(request.url))
    page.get_by_role("link", name="Keys").click()
    page.get_by_role("link", name="New key").click()
    page.get_by_label("Name").fill("Ticket office")
    page.get_by_role("group", name="Allowed lanes").get_by_label("low").check()
    page.get_by_label("Default lane").select_option("low")
    page.get_by_label("Tokens a day").fill("1000")
    page.get_by_role("button", name="Make the key and show it").click()
    first = page.locator("#secret").inner_text()
    assert re.fullmatch(r"sb_\w{12}_\w{49}", first)
    assert site.get("/v1/models", Authorization=f"Bearer {first}")[0] == 200
    page.reload()
    expect(page.get_by_role("heading", name="This key was made already")).to_be_visible()
    page.get_by_role("link", name="To the keys").click()
    page.get_by_role("link", name="Ticket office").click()
    expect(page.get_by_text("0 of 1,000 used (0 %)")).to_be_visible()
    assert first not in page.content()

    page.get_by_role("link", name="Rotate").click()
    page.get_by_role("button", name="Rotate and show the new key").click()
    second = page.locator("#secret").inner_text()
    assert second != first
    for raw in (first, second):
        assert site.get("/v1/models", Authorization=f"Bearer {raw}")[0] == 200
    page.get_by_role("link", name="I have kept it").click()

    page.get_by_role("link", name="Revoke").click()
    page.get_by_role("button", name="Revoke the key").click()
    expect(page.get_by_role("status")).to_have_text("Ticket office is revoked.")
    assert site.get("/v1/models", Authorization=f"Bearer {second}")[0] == 401
    session = next(cookie["value"] for cookie in page.context.cookies() if cookie["name"] == "sessionid")
    for credential in (first, second, session, PASSWORD):
        assert credential not in " ".join(seen)
        assert credential.rsplit("_", 1)[-1] not in site.web.log.read_text()


def test_a_member_looks_and_is_offered_nothing_to_do(
    site: Site, context: BrowserContext, bridges: str
) -> None:
    page = watched(context.new_page(), site)
    sign_in(page, f"{bridges}keys/", "brunel")
    expect(page.get_by_text("Owners and admins make and change keys.")).to_be_visible()
    expect(page.get_by_role("link", name="New key")).to_have_count(0)
    page.get_by_role("link", name="Timetable app").click()
    for control in ("Rotate", "Revoke"):
        expect(page.get_by_role("link", name=control)).to_have_count(0)
    expect(page.get_by_role("button", name="Save")).to_have_count(0)
    page.goto(f"{site.base_url}/tenant/yard/")
    expect(page.get_by_text("There is nothing here")).to_be_visible()


def test_the_chat_leads_there_and_back(site: Site, context: BrowserContext) -> None:
    chat = ChatPage(watched(context.new_page(), site), site)
    chat.sign_in()
    chat.page.locator("#account-menu summary").click()
    chat.page.get_by_role("link", name="Usage, limits and keys").click()
    expect(chat.page.get_by_role("heading", name="Your tenants")).to_be_visible()
    chat.page.get_by_role("link", name="Works").click()
    expect(chat.page.get_by_role("heading", name="Lanes and limits")).to_be_visible()
    chat.page.get_by_role("link", name="Chat", exact=True).click()
    expect(chat.prompt).to_be_visible()


_PAGES = (
    "",
    "usage/",
    "usage/?range=7d&bucket=hour&group=api_key",
    "keys/",
    "keys/new/",
    "members/",
    "webhooks/",
)


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_every_page_is_readable_and_no_wider_than_the_screen(
    site: Site, chromium: Browser, bridges: str, width: int, scheme: str
) -> None:
    context = chromium.new_context(
        viewport={"width": width, "height": 844},
        color_scheme=scheme,  # type: ignore[arg-type]
    )
    page = watched(context.new_page(), site)
    sign_in(page, bridges, OWNER)
    page.goto(f"{bridges}keys/")
    key = page.locator(".card h2 a").first.get_attribute("href") or ""
    for path in (*_PAGES, key, f"{key}rotate/", f"{key}revoke/"):
        page.goto(urljoin(bridges, path))
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        for details in page.locator("details").all():
            details.locator("summary").first.click()
        assert violations(page) == [], path
    assert not page.problems, page.problems  # type: ignore[attr-defined]
    context.close()
