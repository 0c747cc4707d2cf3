"""The chat page as its user sees it."""

from __future__ import annotations

from playwright.sync_api import Locator, Page, expect

from tests.signalbox.browser.site import PASSWORD, USER, Site


class ChatPage:
    def __init__(self, page: Page, site: Site) -> None:
        self.page = page
        self.site = site
        self.prompt = page.get_by_label("Your message")
        self.answers = page.locator(".turn-answer")
        self.questions = page.locator(".turn-user")
        self.stop = page.get_by_role("button", name="Stop answering")

    @property
    def answer(self) -> Locator:
        """The last answer."""
        return self.answers.last

    def sign_in(self, user: str = USER, password: str = PASSWORD) -> None:
        self.page.goto(f"{self.site.base_url}/")
        self.page.get_by_label("User name").fill(user)
        self.page.get_by_label("Password", exact=True).fill(password)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.wait_for_url(lambda url: "/login/" not in url)

    def ask(self, text: str) -> None:
        # The models are filled in by the page's script: from then on it listens.
        expect(self.page.locator("#model option").first).to_be_attached()
        self.prompt.fill(text)
        self.prompt.press("Enter")
        expect(self.questions.last).to_have_text(text)

    def conversation(self, title: str) -> Locator:
        """A conversation in the list."""
        return self.page.locator(".conversation").filter(has_text=title)

    def expect_answer(self, text: str) -> None:
        expect(self.answer.locator(".prose")).to_have_text(text)

    def expect_finished(self) -> None:
        expect(self.answer).to_have_attribute("aria-busy", "false")
