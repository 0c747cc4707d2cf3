"""The admin in a real browser: an operator's first day, from the one-time password to a revoked key."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Error, Page, expect

from signalbox.supervision import embedded_valkey
from tests.fixtures.live_stack import LiveStack
from tests.fixtures.once import once

pytestmark = pytest.mark.browser

PASSWORD = "semaphore-and-points"
SETTINGS = {"SIGNALBOX_DEBUG": "1"}


class AdminSite(LiveStack):
    """Web and Valkey of a fresh installation. In debug mode, which serves static files without collecting them."""

    def open(self, prepared: Path) -> None:
        """Start on a copy of what ``prepare`` made."""
        self.bootstrap = json.loads((prepared / "bootstrap.json").read_text())
        self.api_key = self.bootstrap["api_key"]
        shutil.copytree(prepared / "state", self.state_dir)
        embedded_valkey.prepare(self.configuration.valkey_dir, self.configuration.valkey_socket)
        self.valkey.start()
        self.web.start()


def prepare(directory: Path, database: Path) -> None:
    """Make the state directory ``state`` in ``directory``: the first accounts, in a copy of ``database``."""
    site = AdminSite(directory, settings=SETTINGS)
    (site.state_dir / "vendor").mkdir(parents=True)
    shutil.copy(database, site.state_dir)
    try:
        (directory / "bootstrap.json").write_text(site.manage("bootstrap", "--json"))
    finally:
        site.console.close()


@pytest.fixture(scope="module")
def site(migrated_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdminSite]:
    site = AdminSite(Path(tempfile.mkdtemp(prefix="sb-admin-")), settings=SETTINGS)
    try:
        site.open(
            once(tmp_path_factory, "admin-site", lambda directory: prepare(directory, migrated_database))
        )
        yield site
    finally:
        site.shut_down()


@pytest.fixture(scope="module")
def signed_in(site: AdminSite, chromium: Browser) -> Iterator[BrowserContext]:
    """The operator, who has replaced the one-time password on the way in."""
    context = chromium.new_context(base_url=site.base_url)
    page = context.new_page()
    page.goto("/admin/")
    page.get_by_label("User name").fill(site.bootstrap["username"])
    page.get_by_label("Password", exact=True).fill(site.bootstrap["one_time_password"])
    page.get_by_role("button", name="Sign in").click()
    expect(page).to_have_url(re.compile("/password/"))
    page.goto("/admin/")
    expect(page).to_have_url(re.compile("/password/"))
    page.locator("#id_password").fill(PASSWORD)
    page.locator("#id_again").fill(PASSWORD)
    page.locator("#id_again").press("Enter")
    page.wait_for_url(lambda url: "/password/" not in url)
    page.close()
    yield context
    context.close()


@pytest.fixture
def page(signed_in: BrowserContext) -> Iterator[Page]:
    """A page of the operator's. An error on its console, the content security policy's included, fails the test."""
    page = signed_in.new_page()
    errors: list[str] = []

    def keep(message: ConsoleMessage) -> None:
        if message.type == "error":
            errors.append(message.text)

    page.on("console", keep)
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    page.close()
    assert errors == []


def test_a_key_is_shown_once_works_and_is_refused_after_its_revocation(site: AdminSite, page: Page) -> None:
    page.goto("/admin/accounts/tenant/")
    page.get_by_role("link", name="Default").click()
    page.get_by_role("link", name="New key").click()
    page.get_by_label("Name").fill("timetable app")
    page.get_by_role("button", name="Save").click()

    secret = page.locator("#secret")
    expect(secret).to_have_text(re.compile(r"^sb_\w{12}_\w{49}$"))
    raw = secret.inner_text()
    assert raw not in page.url
    assert site.get("/v1/models", Authorization=f"Bearer {raw}")[0] == 200

    page.get_by_role("link", name="I have kept it").click()
    expect(page.get_by_label("Name")).to_have_value("timetable app")
    assert raw not in page.content()
    page.reload()
    assert raw not in page.content()

    page.get_by_role("link", name="Revoke").click()
    expect(page.get_by_role("heading", name="Revoke timetable app?")).to_be_visible()
    assert site.get("/v1/models", Authorization=f"Bearer {raw}")[0] == 200
    page.get_by_role("button", name="Revoke the key").click()
    expect(page.get_by_text("timetable app is revoked.")).to_be_visible()
    assert site.get("/v1/models", Authorization=f"Bearer {raw}")[0] == 401

    page.locator('a[href$="/history/"]').click()
    expect(page.get_by_text("api_key.revoke")).to_be_visible()
    assert raw.rsplit("_", 1)[1] not in site.logs()


def test_reloading_the_page_that_shows_a_key_makes_no_second_one(page: Page) -> None:
    page.goto("/admin/accounts/tenant/")
    page.get_by_role("link", name="Default").click()
    page.get_by_role("link", name="New key").click()
    page.get_by_label("Name").fill("reloaded app")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#secret")).to_be_visible()
    page.reload()
    expect(page.get_by_role("heading", name="This key was made already")).to_be_visible()
    expect(page.locator("#secret")).to_have_count(0)
    page.get_by_role("link", name="To the list").click()
    expect(page.get_by_role("link", name="reloaded app")).to_have_count(1)


@pytest.mark.parametrize("width", [390, 1280])
def test_a_page_s_tabs_are_all_there_whatever_its_width(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    page.goto("/admin/accounts/tenant/")
    page.get_by_role("link", name="Default").first.click()
    for name in ("General", "API keys", "Entitlements", "Members"):
        expect(page.locator("#tabs-items").get_by_role("link", name=name)).to_be_attached()
    page.locator("#tabs-items").get_by_role("link", name="Members").click()
    expect(page.locator("#content").get_by_role("link", name=re.compile("admin")).first).to_be_visible()


def test_a_row_s_card_on_a_phone_shows_what_matters_and_cuts_nothing(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto("/admin/accounts/lane/")
    for cell in page.locator(".field-description").all():
        cut = cell.evaluate("element => element.scrollHeight - element.clientHeight")
        assert cut <= 0, cell.inner_text()
    page.goto("/admin/accounts/apikey/")
    shown = page.locator("#result_list tbody").first.locator("th:visible, td:visible")
    assert shown.count() <= 4


def test_going_back_does_not_bring_a_secret_back(page: Page) -> None:
    page.goto("/admin/accounts/user/add/")
    page.get_by_label("User name").fill("signaller")
    page.get_by_role("button", name="Save").click()
    secret = page.locator("#secret").inner_text()
    page.get_by_role("link", name="I have handed it over").click()
    expect(page.get_by_label("User name")).to_have_value("signaller")
    # The answer to a POST that may not be stored: the browser has nothing to go back to.
    with pytest.raises(Error, match="ERR_CACHE_MISS"):
        page.go_back(wait_until="commit")
    page.wait_for_load_state()
    # What is asked again and again bears that the browser is still changing the page for its own.
    expect(page.locator("html")).not_to_contain_text(secret)


def test_the_landing_page_follows_what_happens(site: AdminSite, page: Page) -> None:
    page.goto("/admin/")
    expect(page.get_by_text("No worker runs")).to_be_visible()
    site.python(
        "import time\n"
        "from inference.dispatch import heartbeats\n"
        "from inference.messages import Heartbeat\n"
        "from signalbox import store\n"
        "now = time.time()\n"
        "client = store.sync_client()\n"
        "heartbeats.HEARTBEAT_TTL_S = 60\n"
        "heartbeats.beat(client, Heartbeat(worker='a' * 32, model='tiny', hostname='mac', pid=1, started_at=now,\n"
        "    sent_at=now, progressed_at=now, ready=True, draining=False, blas='', device='cpu', decoding=2,\n"
        "    prefilling=0, slots=8, counters={}))\n"
    )
    expect(page.get_by_label("2 of 8 slots taken")).to_be_visible(timeout=20_000)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_admin_follows_the_system_s_colour_scheme(
    signed_in: BrowserContext, page: Page, scheme: str
) -> None:
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    page.goto("/admin/")
    panel = page.locator(".sb-panel").first
    ground = panel.evaluate("element => getComputedStyle(element).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") == (scheme == "light")


def test_no_page_is_wider_than_a_phone(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    for path in (
        "/admin/",
        "/admin/accounts/apikey/",
        "/admin/accounts/tenant/",
        "/admin/accounts/tenant/add/",
        "/admin/accounts/auditevent/1/change/",
        "/admin/accounts/lane/",
        "/admin/accounts/user/",
        "/admin/inference/generation/",
        "/admin/inference/languagemodel/",
    ):
        page.goto(path)
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= 390, path


def test_people_and_rows_are_found_from_anywhere(page: Page) -> None:
    page.goto("/admin/")
    page.keyboard.press("Control+k")
    page.locator("#search-input-command").press_sequentially("default")
    expect(page.locator("#command-results-list").get_by_text("Default").first).to_be_visible()
