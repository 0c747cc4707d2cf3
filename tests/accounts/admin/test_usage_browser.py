"""The usage page in a real browser: filtered, drawn in both schemes, exported, on a phone, and read out."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.accounts.admin.test_browser import AdminSite, page, signed_in, site
from tests.fixtures.accessibility import violations

__all__ = ["page", "signed_in", "site"]

pytestmark = pytest.mark.browser

PAGE = "/admin/accounts/usagerollup/usage/"

#: Two tenants' use of the last days, with prices for one model.
_USED = """
import uuid
from datetime import timedelta
from decimal import Decimal
from django.utils import timezone
from accounts import ledger
from accounts.models import Price, Tenant
from accounts.tenancy import every_tenant
now = timezone.now()
Price.objects.create(model="smollm2-135m-instruct", currency="EUR", prompt=Decimal("0.150007"), cached=Decimal("0.05"),
    completion=Decimal("0.6"), valid_from=now - timedelta(days=60))
tenants = [Tenant.objects.get_or_create(slug=slug, defaults=dict(name=name))[0]
    for slug, name in (("timetable", "Timetable"), ("depot", "Depot and yard operations"))]
with every_tenant("a test makes rows"):
    for n in range(240):
        ledger.settle(generation_id=uuid.uuid4(), tenant_id=tenants[n % 3 // 2].id, api_key_id=None, user_id=None,
            model=("smollm2-135m-instruct", "llama-3.2-3b-instruct")[n % 5 // 4], lane=("high", "normal", "low")[n % 3],
            prompt_tokens=1000 + 37 * n % 900, cached_tokens=11 * n % 700, completion_tokens=80 + 13 * n % 400,
            accepted_prediction_tokens=7 * n % 80, rejected_prediction_tokens=n % 9,
            at=now - timedelta(hours=0.7 * n))
ledger.rebuild()
"""

_COLOURS = """(names) => names.map(name => getComputedStyle(document.querySelector(name)).fill)"""


@pytest.fixture(scope="module")
def used(site: AdminSite) -> AdminSite:
    site.python(_USED)
    return site


def test_usage_is_found_from_the_menu_narrowed_and_exported(used: AdminSite, page: Page) -> None:
    page.goto("/admin/")
    page.locator(f'a[href="{PAGE}"]').locator("visible=true").click()
    expect(page.get_by_role("heading", name="Usage", exact=True)).to_be_visible()
    by_tenant = page.get_by_role("region", name="By tenant").first
    expect(by_tenant).to_contain_text("Depot and yard operations")
    page.get_by_label("Tenant", exact=True).select_option(label="Timetable")
    page.get_by_label("Parted by").select_option(label="Lane")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_role("region", name="By lane").first).to_contain_text("normal")
    expect(page.get_by_text("Depot and yard operations").locator("visible=true")).to_have_count(0)
    with page.expect_download() as download:
        page.get_by_role("link", name="Export as CSV").click()
    text = download.value.path().read_text()
    assert text.startswith("start,end,tenant_id,tenant,")
    assert "Timetable" in text
    assert "Depot" not in text


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_plots_are_seen_and_read_in_both_schemes(used: AdminSite, page: Page, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    page.goto(f"{PAGE}?by=model")
    drawn = page.get_by_role("img", name="Tokens each day, by model")
    expect(drawn).to_be_visible()
    assert len(set(page.evaluate(_COLOURS, [f".usage-part.usage-{n}" for n in range(4)]))) == 4
    assert violations(page, within="#content") == []


def test_usage_is_not_wider_than_a_phone(used: AdminSite, page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(PAGE)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_price_is_set_and_listed(used: AdminSite, page: Page) -> None:
    used.python(
        "from inference.models import LanguageModel\n"
        "LanguageModel.objects.get_or_create(name='smollm2-135m-instruct', defaults=dict(directory='m', size_bytes=1,\n"
        "    architecture='llama', context_length=8192, has_chat_template=True, dtype='float16'))\n"
    )
    page.goto("/admin/accounts/price/add/")
    page.get_by_label("Currency").fill("EUR")
    for label, amount in (("Prompt", "0.2"), ("Cached", "0.1"), ("Completion", "0.8")):
        page.get_by_label(label).fill(amount)
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("Holds")).to_be_visible()
    page.goto("/admin/accounts/price/")
    expect(page.locator("#result_list")).to_contain_text("0.200000")
