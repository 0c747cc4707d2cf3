from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.signalbox.browser.chat_page import ChatPage
from tests.signalbox.browser.site import USER, Site, open_site

#: Longest wait for what a page is to show, in milliseconds.
PATIENCE_MS = 20_000
expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="session")
def _site(site_state: Path) -> Iterator[Site]:
    site = open_site(site_state)
    yield site
    site.close()


@pytest.fixture
def site(_site: Site) -> Iterator[Site]:
    """The session's site, with nothing under way on it."""
    yield _site
    _site.forget_everything()


@pytest.fixture
def context(chromium: Browser) -> Iterator[BrowserContext]:
    """A browser of its own: no cookies, nothing stored. Nothing may be asked of any other host."""
    context = chromium.new_context(viewport={"width": 1200, "height": 800})
    context.set_default_timeout(PATIENCE_MS)
    yield context
    context.close()


@pytest.fixture
def chat(site: Site, context: BrowserContext) -> Iterator[ChatPage]:
    """The chat page, signed in. Script errors, refused policies and foreign requests fail the test."""
    page = watched(context.new_page(), site)
    chat = ChatPage(page, site)
    site.let_in(context, USER)
    page.goto(f"{site.base_url}/")
    yield chat
    assert not page.problems, page.problems  # type: ignore[attr-defined]


def watched(page: Page, site: Site) -> Page:
    """``page``, whose ``problems`` lists what must not happen on any page."""
    problems: list[str] = []
    page.problems = problems  # type: ignore[attr-defined]
    page.on("pageerror", lambda error: problems.append(f"script error: {error}"))
    page.on(
        "console",
        lambda message: problems.append(message.text) if "Content Security Policy" in message.text else None,
    )
    page.on(
        "request",
        lambda request: (
            problems.append(f"foreign request: {request.url}")
            if not request.url.startswith((site.base_url, site.ws_url))
            else None
        ),
    )
    return page
