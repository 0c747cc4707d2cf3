"""Live pages in a real browser, while the site hangs and while it is away: old data is not shown as live."""

from __future__ import annotations

import pytest
from playwright.sync_api import BrowserContext, expect

from tests.accounts.admin.test_browser import AdminSite, signed_in, site

__all__ = ["signed_in", "site"]

pytestmark = pytest.mark.browser

#: Longer than a page waits for an answer, on a machine that is busy.
_PATIENCE_MS = 30_000


@pytest.mark.parametrize("path", ["/admin/", "/admin/inference/languagemodel/scheduler/"])
def test_what_is_old_is_marked_until_the_site_answers_again(
    site: AdminSite, signed_in: BrowserContext, path: str
) -> None:
    page = signed_in.new_page()  # what it asks for in vain is an error on its console
    page.goto(path)
    mark = page.get_by_text("The site does not answer: what is shown here is old.")
    panels = page.locator("#live")
    expect(panels).to_be_visible()
    expect(mark).to_be_hidden()
    site.web.stop()
    try:
        expect(mark).to_be_visible(timeout=_PATIENCE_MS)
        expect(panels).to_have_css("opacity", "0.6")
    finally:
        site.web.resume()
    expect(mark).to_be_hidden(timeout=_PATIENCE_MS)
    site.web.kill()
    try:
        expect(mark).to_be_visible(timeout=_PATIENCE_MS)
    finally:
        site.web.start()
    expect(mark).to_be_hidden(timeout=_PATIENCE_MS)
    page.close()
