"""An operator makes a key with limits, watches what is used of them, and rotates it, in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import copy

import pytest
from playwright.sync_api import BrowserContext, Locator, Page, expect

from tests.fixtures.accessibility import violations
from tests.fixtures.event_stream import chat_stream
from tests.fixtures.live_stack import LiveStack
from tests.signalbox.browser.conftest import watched
from tests.signalbox.browser.site import MODEL, Site

pytestmark = [pytest.mark.browser, pytest.mark.slow]

_OPERATOR = """
from accounts.models import User
User.objects.get_or_create(username="operator", defaults={"is_staff": True, "is_superuser": True})
"""


@pytest.fixture
def page(site: Site, context: BrowserContext) -> Iterator[Page]:
    """A page of an operator's. Script errors, refused policies and foreign requests fail the test."""
    site.python(_OPERATOR)
    page = watched(context.new_page(), site)
    site.let_in(context, "operator")
    yield page
    assert not page.problems, page.problems  # type: ignore[attr-defined]


class KeyEditor:
    """The pages of keys, as an operator uses them."""

    def __init__(self, page: Page, site: Site) -> None:
        self.page = page
        self.site = site

    def new(self, tenant: str) -> None:
        self.page.goto(f"{self.site.base_url}/admin/accounts/tenant/")
        row = self.page.locator("#result_list a[href*='/tenant/']", has_text=tenant).first
        tenant_id = str(row.get_attribute("href")).split("/")[-3]
        self.page.goto(f"{self.site.base_url}/admin/accounts/apikey/add/?tenant={tenant_id}")

    def tick(self, section: str, *names: str) -> None:
        for name in names:
            self.page.locator(f".field-{section}").get_by_label(name, exact=True).check()

    def save(self) -> None:
        self.page.get_by_role("button", name="Save").click()

    def kept(self) -> str:
        """The text of the key that is shown, once it is kept: the key's own page is open then."""
        expect(self.page.locator("#secret")).to_have_text(re.compile(r"^sb_\w{12}_\w{49}$"))
        raw = self.page.locator("#secret").inner_text()
        self.page.get_by_role("link", name="I have kept it").click()
        return raw

    def beside(self, limit: str) -> Locator:
        """What is used of a limit, beside its field."""
        return self.page.locator(f"[data-limit={limit}]")

    def front(self, raw: str) -> LiveStack:
        """The site as an application with that key uses it."""
        front = copy(self.site)
        front.api_key, front.model = raw, MODEL
        return front


@pytest.fixture
def editor(page: Page, site: Site) -> KeyEditor:
    return KeyEditor(page, site)


def test_a_narrowed_key_is_made_used_watched_and_rotated_without_a_second_budget(editor: KeyEditor) -> None:
    page = editor.page
    editor.new("Works")
    page.get_by_label("Name").fill("timetable app")
    editor.tick("allowed_lanes", "normal", "low")
    editor.tick("allowed_models", MODEL)
    page.get_by_label("Allowed networks").fill("127.0.0.1\n192.0.2.0/24")
    page.get_by_label("Tokens a day").fill("400")
    page.get_by_label("At the same time").fill("2")
    editor.save()
    old = editor.front(editor.kept())
    assert old.get("/v1/models")[0] == 200
    expect(editor.beside("tokens_per_day")).to_contain_text("0 of 400 used (0 %)")

    with ThreadPoolExecutor(1) as application:
        answer = application.submit(lambda: chat_stream(old, "When?", max_tokens=100).read_to_end())
        run = editor.site.hand.take()
        page.reload()
        expect(editor.beside("tokens_per_day")).to_contain_text("of it reserved by what runs")
        expect(editor.beside("concurrency")).to_contain_text("1 of 2 used (50 %)")
        run.say("At ", "noon.")
        run.finish()
        assert answer.result().done
    page.reload()
    expect(editor.beside("tokens_per_day")).not_to_contain_text("reserved")
    used = editor.beside("tokens_per_day").locator(".sb-consumption-figure").inner_text()
    assert re.fullmatch(r"[1-9]\d* of 400 used \(\d+ %\)", used)

    page.get_by_role("link", name="Rotate").click()
    expect(page.get_by_text("They share the key's limits")).to_be_visible()
    page.get_by_label("Overlap, in hours").fill("1")
    page.get_by_role("button", name="Rotate and show the new key").click()
    new = editor.front(editor.kept())
    assert (old.get("/v1/models")[0], new.get("/v1/models")[0]) == (200, 200)
    expect(page.get_by_label("Tokens a day")).to_have_value("400")
    expect(editor.beside("tokens_per_day")).to_contain_text(used)
    expect(page.get_by_text("this key and sb_")).to_be_visible()

    page.get_by_label("Allowed networks").fill("192.0.2.0/24")
    editor.save()
    expect(page.get_by_text("Saved: timetable app")).to_be_visible()
    assert (old.get("/v1/models")[0], new.get("/v1/models")[0]) == (200, 401)
    page.goto(f"{editor.site.base_url}/admin/accounts/apikey/")
    expect(page.locator(".field-narrowing").first).to_have_text(
        f"normal, low; {MODEL}; 192.0.2.0/24; 2 limits"
    )


def test_a_mistake_is_told_at_its_field_and_what_was_typed_is_there_still(editor: KeyEditor) -> None:
    page = editor.page
    editor.new("Works")
    page.get_by_label("Name").fill("app")
    page.get_by_label("Allowed networks").fill("192.0.2.7/24")
    editor.save()
    field = page.locator(".field-allowed_networks")
    expect(field).to_contain_text("write 192.0.2.0/24 for the network")
    expect(page.get_by_label("Allowed networks")).to_have_value("192.0.2.7/24")


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_a_key_s_pages_fit_every_screen_and_say_everything_to_everybody(
    editor: KeyEditor, scheme: str, width: int
) -> None:
    page = editor.page
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    page.set_viewport_size({"width": width, "height": 844})

    def check(name: str) -> None:
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        assert violations(page, within="#content-main") == [], name

    editor.new("Works")
    check("add")
    page.get_by_label("Name").fill("app")
    page.get_by_label("Tokens a day").fill("0")
    page.get_by_label("Tokens a week").fill("1000")
    editor.save()
    editor.kept()
    check("change")
    page.goto(page.url.replace("/change/", "/rotate/"))
    check("rotate")
    page.goto(f"{editor.site.base_url}/admin/accounts/apikey/")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
