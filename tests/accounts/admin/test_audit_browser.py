"""The audit's pages in a real browser: the question answered in one click, by somebody who can change nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.accounts.admin.test_browser import AdminSite, page, signed_in, site
from tests.factories import PASSWORD
from tests.fixtures.accessibility import violations

__all__ = ["page", "signed_in", "site"]

pytestmark = pytest.mark.browser

AUDIT = "/admin/accounts/auditevent/state/"
EVENTS = "/admin/accounts/auditevent/"
ASSIGNMENTS = "/admin/accounts/laneassignment/"

_MAKE = """
from datetime import UTC, datetime
from tests.accounts.admin.audited import audited
from tests.factories import UserFactory
made = audited(datetime.fromisoformat({tuesday!r}))
UserFactory(username="iris", is_staff=True, is_auditor=True)
print(made.by_key[0].hex, made.key.id)
"""


def last_tuesday() -> datetime:
    """Half past nine on the last Tuesday that is over."""
    today = datetime.now(UTC).replace(hour=9, minute=30, second=0, microsecond=0)
    return today - timedelta(days=(today.weekday() - 1) % 7 or 7)


@pytest.fixture(scope="module")
def made(site: AdminSite) -> tuple[str, str]:
    """A generation in high, and the key that it was asked with."""
    generation, key = site.python(_MAKE.format(tuesday=last_tuesday().isoformat())).split()
    return generation, key


@pytest.fixture(scope="module")
def auditor(site: AdminSite, made: tuple[str, str], chromium: Browser) -> Iterator[BrowserContext]:
    context = chromium.new_context(base_url=site.base_url, timezone_id="UTC")
    opened = context.new_page()
    opened.goto("/admin/")
    opened.get_by_label("User name").fill("iris")
    opened.get_by_label("Password", exact=True).fill(PASSWORD)
    opened.get_by_role("button", name="Sign in").click()
    opened.wait_for_url(f"**{AUDIT}")
    opened.close()
    yield context
    context.close()


@pytest.fixture
def reading(auditor: BrowserContext) -> Iterator[Page]:
    """A page of the auditor's. A script error on it fails the test."""
    opened = auditor.new_page()
    errors: list[str] = []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    yield opened
    opened.close()
    assert errors == []


def test_who_ran_in_high_last_tuesday_by_what_right_and_who_granted_it_is_one_click_away(
    reading: Page,
) -> None:
    reading.goto("/admin/")
    tuesday = last_tuesday()
    reading.get_by_role("link", name=f"who ran in high on Tuesday {tuesday.day} {tuesday:%b %Y}").click()
    answer = reading.get_by_role("region", name=re.compile("Who ran in high on Tuesday")).first
    expect(answer).to_contain_text("Timetable")
    expect(answer).to_contain_text("mabel")
    expect(answer).to_contain_text("winter timetable")
    expect(answer).to_contain_text(re.compile(r"ada,[^.]*Approved by grace"))
    expect(answer).to_contain_text("All 4 records are what was sealed")
    answer.get_by_role("button", name="Verify now").click()
    expect(reading.get_by_text("The chain holds.")).to_be_visible()
    expect(reading.get_by_text("All 4 records are what was sealed")).to_be_visible()


def test_events_are_searched_narrowed_and_their_changes_stand_side_by_side(reading: Page) -> None:
    reading.goto(EVENTS)
    expect(reading.get_by_text("lane_assignments.seal")).to_have_count(0)
    reading.locator("#searchbar").fill("grace")
    reading.locator("#searchbar").press("Enter")
    rows = reading.locator("#result_list tbody")
    expect(rows).to_have_count(1)
    rows.get_by_role("link", name="entitlement.approve").click()
    changed = reading.get_by_role("row", name=re.compile("Approval")).first
    expect(changed.locator("del")).to_have_text("requested")
    expect(changed.locator("ins")).to_have_text("approved")
    expect(reading.get_by_role("row", name=re.compile("Decided by")).locator("ins")).to_have_text("grace")
    expect(reading.get_by_text("Holds.")).to_be_visible()
    reading.get_by_role("link", name="all about it").click()
    expect(reading.locator("#result_list tbody")).to_have_count(2)
    reading.get_by_role("link", name="Show the others too").click()
    reading.locator("#changelist a", has_text="Filters").first.click()
    reading.locator("#changelist-filter").get_by_role("link", name="API keys").click()
    expect(reading.locator("#result_list")).to_contain_text("api_key.create")
    expect(reading.locator("#result_list")).not_to_contain_text("tenant.create")


def test_days_are_chosen_from_one_to_another(reading: Page) -> None:
    reading.goto(f"{ASSIGNMENTS}?given_lane=high")
    reading.locator("#changelist a", has_text="Filters").first.click()
    day = last_tuesday().date().isoformat()
    reading.locator('#changelist-filter input[name="first"]').fill(day)
    reading.locator('#changelist-filter input[name="last"]').fill(day)
    reading.locator("#changelist-filter").get_by_role("button", name="Show").click()
    expect(reading).to_have_url(re.compile(f"given_lane=high.*first={day}.*last={day}"))
    expect(reading.locator("#result_list tbody")).to_have_count(4)


def test_a_generation_s_lane_is_explained_and_proved(reading: Page, made: tuple[str, str]) -> None:
    reading.goto(ASSIGNMENTS)
    reading.locator("#searchbar").fill(f"gen_{made[0]}")
    reading.locator("#searchbar").press("Enter")
    reading.locator("#result_list tbody a").first.click()
    expect(reading.get_by_role("heading", name="Why it ran in high")).to_be_visible()
    expect(reading.get_by_text("Then the key has a default: high.")).to_be_visible()
    expect(reading.get_by_role("img", name="holds")).to_have_count(5)
    reading.get_by_role("link", name="The entitlement of Timetable to high").click()
    expect(reading.get_by_role("heading", name="What the audit says")).to_be_visible()


def test_who_may_use_a_lane_now_and_at_a_time(reading: Page) -> None:
    reading.goto(AUDIT)
    reading.get_by_role("link", name="Who may use high now").click()
    holder = reading.get_by_role("article", name="Timetable")
    expect(holder).to_contain_text("departures")
    expect(holder).to_contain_text("Approved by grace")
    before = last_tuesday() - timedelta(days=5)
    reading.get_by_label("At, in UTC").fill(before.strftime("%Y-%m-%dT%H:%M:%S"))
    reading.get_by_role("button", name="Show").click()
    expect(reading.get_by_text("Nobody.")).to_be_visible()


def test_an_export_is_downloaded_and_checked_without_signalbox(reading: Page, tmp_path: Path) -> None:
    reading.goto(AUDIT)
    reading.get_by_label("Lane").select_option("high")
    with reading.expect_download() as download:
        reading.get_by_role("button", name="Export").click()
    with reading.expect_download() as script:
        reading.get_by_role("link", name="The script that checks it").click()
    export, checker = tmp_path / "export.jsonl", tmp_path / "verify_export.py"
    download.value.save_as(export)
    script.value.save_as(checker)
    run: Any = lambda: subprocess.run(  # noqa: E731 — said twice below
        [sys.executable, str(checker), str(export)], capture_output=True, text=True, cwd=tmp_path, env={}
    )
    held = run()
    assert held.returncode == 0, held.stdout + held.stderr
    export.write_text(export.read_text().replace('"winter timetable"', '"summer timetable"', 1))
    assert run().returncode == 1


def test_an_auditor_who_tries_to_change_something_is_refused(reading: Page, made: tuple[str, str]) -> None:
    reading.goto(f"/admin/accounts/apikey/{made[1]}/change/")
    expect(reading.get_by_text("Audit, read only").first).to_be_attached()
    expect(reading.get_by_role("link", name="Revoke")).to_have_count(0)
    reading.goto(AUDIT)
    expect(reading.get_by_role("button", name="Make a checkpoint now")).to_have_count(0)
    for path, body in (
        (f"/admin/accounts/apikey/{made[1]}/revoke/", ""),
        ("/admin/accounts/auditevent/state/settings/", "checkpoint_minutes=1"),
        ("/admin/accounts/auditevent/state/checkpoint/", ""),
        ("/admin/accounts/user/add/", "username=mallory&is_superuser=on"),
        ("/admin/accounts/entitlement/", "action=end_selected"),
    ):
        status = reading.evaluate(
            """async ([path, body]) => {
                const token = document.querySelector("[name=csrfmiddlewaretoken]").value;
                const headers = {"X-CSRFToken": token, "Content-Type": "application/x-www-form-urlencoded"};
                return (await fetch(path, {method: "POST", headers, body})).status;
            }""",
            [path, body],
        )
        assert status == 403, path
    for path in ("/admin/inference/worker/", "/admin/accounts/usagerollup/usage/"):
        answer = reading.goto(path)
        assert answer is not None
        assert answer.status == 403, path


def test_an_operator_signs_the_head_and_changes_the_settings(page: Page, made: tuple[str, str]) -> None:
    page.goto("/admin/")
    page.locator(f'a[href="{AUDIT}"]').locator("visible=true").click()
    page.get_by_label("Minutes between checkpoints").fill("30")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("Saved: the audit's settings.")).to_be_visible()
    page.get_by_role("button", name="Make a checkpoint now").click()
    expect(page.get_by_text(re.compile("Signed: the chain up to event"))).to_be_visible()
    page.get_by_role("button", name="Verify from scratch").click()
    expect(page.get_by_text(re.compile("Last verified now, from scratch"))).to_be_visible()


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_every_page_of_the_audit_is_clear_at_any_width_in_both_schemes(
    reading: Page, made: tuple[str, str], scheme: Any, width: int
) -> None:
    reading.emulate_media(color_scheme=scheme)
    reading.set_viewport_size({"width": width, "height": 844})
    day = last_tuesday().date().isoformat()
    for path in (
        AUDIT,
        f"{EVENTS}export/",
        f"{EVENTS}?actor_kind=user",
        f"{EVENTS}3/change/",
        f"{ASSIGNMENTS}?given_lane=high&first={day}&last={day}",
        f"{ASSIGNMENTS}{made[0]}/change/",
        f"{ASSIGNMENTS}who-may/high/",
    ):
        reading.goto(path)
        assert reading.evaluate("document.documentElement.scrollWidth") <= width, path
        assert violations(reading, within="#content") == [], path
