"""An operator grants a lane with a budget, sees first what it does, and a second operator approves it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.fixtures.accessibility import violations
from tests.signalbox.browser.conftest import PATIENCE_MS, watched
from tests.signalbox.browser.site import Site

pytestmark = [pytest.mark.browser, pytest.mark.slow]

#: Two operators, and a lane that asks for the second one above a million tokens a month.
_BEGIN = """
from accounts.models import Lane, User
for name in ("operator", "second"):
    User.objects.get_or_create(username=name, defaults={"is_staff": True, "is_superuser": True})
Lane.objects.filter(name="high").update(approval_above_tokens=1_000_000)
"""
#: As it was: the yard has the low lane alone, and no lane asks for anybody.
_END = """
from accounts import entitlements
from accounts.models import Entitlement, Lane
from accounts.principal import Actor
from accounts.tenancy import every_tenant
with every_tenant("the next test starts afresh"):
    added = list(Entitlement.objects.filter(tenant__slug="yard", ended_at=None).exclude(lane="low"))
entitlements.end_all(entitlements=added, actor=Actor.system("browser tests"))
Lane.objects.update(approval_above_tokens=None)
"""

SignIn = Callable[[str], Page]


@pytest.fixture
def sign_in(site: Site, chromium: Browser) -> Iterator[SignIn]:
    """Opens the admin as an operator, each in a browser of their own. What must not happen on a page fails the test."""
    site.python(_BEGIN)
    pages: list[Page] = []

    def sign_in(name: str) -> Page:
        context = chromium.new_context(viewport={"width": 1280, "height": 900}, base_url=site.base_url)
        context.set_default_timeout(PATIENCE_MS)
        page = watched(context.new_page(), site)
        pages.append(page)
        site.let_in(context, name)
        return page

    yield sign_in
    problems = [problem for page in pages for problem in page.problems]  # type: ignore[attr-defined]
    for page in pages:
        page.context.close()
    site.python(_END)
    assert not problems, problems


def _fill_in_a_grant(page: Page, tokens_per_day: str) -> None:
    page.goto("/admin/accounts/tenant/")
    page.get_by_role("link", name="Yard").first.click()
    page.wait_for_url(re.compile("/change/"))
    _act(page, "grant")
    page.locator("#id_lane").select_option("high")
    page.get_by_label("Tokens a day").fill(tokens_per_day)
    page.get_by_label("Reason").fill("launch week")


def _act(page: Page, action: str) -> None:
    """Take an action of a row's page. By its address: a narrow screen has them in a menu."""
    page.goto(re.sub(r"/change/.*", f"/{action}/", page.url))


def _preview(page: Page) -> None:
    page.get_by_role("button", name="Show what it does").click()
    expect(page.get_by_text("Nothing is saved yet.")).to_be_visible()


def test_a_budget_is_previewed_requested_approved_by_another_operator_and_narrowed(sign_in: SignIn) -> None:
    page = sign_in("operator")
    _fill_in_a_grant(page, "100000")
    _preview(page)
    expect(page.get_by_role("heading", name="Yard in the lane high")).to_be_visible()
    expect(page.locator("#content-main")).to_contain_text("come to 3,100,000 tokens a month with this")
    page.get_by_role("button", name="Back to the form").click()
    expect(page.get_by_label("Tokens a day")).to_have_value("100000")
    expect(page.get_by_label("Reason")).to_have_value("launch week")
    page.get_by_label("Weight").fill("2")
    _preview(page)
    page.get_by_role("button", name="Request it").click()
    expect(page.get_by_text("This waits for approval, and gives nothing yet.")).to_be_visible()
    expect(page.get_by_role("link", name="Approve")).to_have_count(0)

    other = sign_in("second")
    other.goto("/admin/accounts/entitlement/?state=requested")
    other.locator("#result_list").get_by_role("link", name="high").click()
    expect(other.get_by_text("operator asked for it.")).to_be_visible()
    expect(other.get_by_role("heading", name="What approving it does")).to_be_visible()
    other.get_by_role("link", name="Approve").click()
    expect(other.get_by_role("heading", name="Takes a second operator")).to_be_visible()
    assert violations(other, within="#content-main") == []
    other.get_by_label("Reason").fill("as agreed")
    other.get_by_role("button", name="Approve it").click()
    expect(other.get_by_text("Yard: high is approved.")).to_be_visible()
    expect(other.locator(".sb-trail")).to_contain_text("entitlement.approve")

    page.reload()
    expect(page.locator("[data-limit=tokens_per_day]")).to_contain_text("0 of 100,000 used (0 %)")
    page.get_by_label("Tokens a day").fill("0")
    _preview(page)
    expect(page.get_by_role("alert")).to_contain_text("Tokens a day: none at all.")
    expect(page.locator("#content-main")).to_contain_text("100,000 → 0")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("Saved: Yard: high")).to_be_visible()
    expect(page.locator("[data-limit=tokens_per_day]")).to_contain_text("none allowed")


def test_a_preview_that_somebody_overtook_is_not_saved(sign_in: SignIn) -> None:
    page, other = sign_in("operator"), sign_in("second")
    _fill_in_a_grant(page, "100")
    _preview(page)
    _fill_in_a_grant(other, "200")
    _preview(other)
    other.get_by_role("button", name="Save").click()
    expect(other.get_by_text("Granted: Yard: high")).to_be_visible()
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("has changed since this was shown to you")).to_be_visible()
    expect(page.get_by_label("Tokens a day")).to_have_value("100")


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_the_editors_pages_fit_every_screen_and_say_everything_to_everybody(
    sign_in: SignIn, scheme: str, width: int
) -> None:
    page = sign_in("operator")
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    page.set_viewport_size({"width": width, "height": 844})

    def check(name: str) -> None:
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        assert violations(page, within="#content-main") == [], name

    _fill_in_a_grant(page, "100000")
    check("grant")
    page.get_by_label("At the same time").fill("0")
    _preview(page)
    check("preview")
    page.get_by_role("button", name="Request it").click()
    expect(page.get_by_text("This waits for approval")).to_be_visible()
    check("requested")
    _act(page, "withdraw")
    check("withdraw")
    page.get_by_role("button", name="Withdraw it").click()
    _fill_in_a_grant(page, "1000")
    _preview(page)
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("Granted: Yard: high")).to_be_visible()
    check("change")
    _act(page, "extend")
    check("extend")
    page.goto("/admin/accounts/entitlement/")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
