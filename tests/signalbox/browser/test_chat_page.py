from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, BrowserContext, expect

from tests.signalbox.browser.chat_page import ChatPage
from tests.signalbox.browser.conftest import watched
from tests.signalbox.browser.site import PASSWORD, Site

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def test_a_question_is_answered_word_by_word_and_told_what_it_took(chat: ChatPage, site: Site) -> None:
    chat.ask("What is a lane?")
    # Progress is told to those who listen: the page does from now on.
    expect(chat.answer).to_contain_text("next in line")
    run = site.hand.take()
    run.prefill(5)
    expect(chat.answer).to_contain_text("Reading 5 of")
    run.say("A **priority", " class")
    expect(chat.answer.locator(".prose")).to_contain_text("class")
    run.say("**.")
    run.finish()
    chat.expect_answer("A priority class.")
    expect(chat.answer.locator("strong")).to_have_text("priority class")
    foot = chat.answer.locator(".answer-facts")
    expect(foot).to_contain_text("normal lane")
    expect(foot).to_contain_text("3 tokens")
    expect(foot).to_contain_text("tokens/s")


def test_a_waiting_question_shows_its_place_in_line(chat: ChatPage, site: Site) -> None:
    chat.ask("Am I next?")
    expect(chat.answer).to_contain_text("Waiting in the normal lane: next in line")


def test_an_answer_is_stopped_by_button_and_by_key(chat: ChatPage, site: Site) -> None:
    for stop in (chat.stop.click, lambda: chat.page.keyboard.press("Escape")):
        chat.ask("Count to a million")
        run = site.hand.take()
        run.say("One, two")
        chat.expect_answer("One, two")
        stop()
        run.end_cancelled(run.cancelled())
        chat.expect_finished()
        expect(chat.answer).to_contain_text("Stopped")
        chat.expect_answer("One, two")


def test_a_page_reloaded_in_the_middle_shows_the_answer_go_on(chat: ChatPage, site: Site) -> None:
    chat.ask("Tell me a story")
    run = site.hand.take()
    run.say("Once ", "upon ")
    expect(chat.answer.locator(".prose")).to_contain_text("upon")
    chat.page.reload()
    chat.expect_answer("Once upon")
    run.say("a ", "time.")
    run.finish()
    chat.expect_answer("Once upon a time.")
    chat.expect_finished()
    chat.page.reload()
    chat.expect_answer("Once upon a time.")


def test_a_restarted_server_costs_no_word(chat: ChatPage, site: Site) -> None:
    chat.ask("Tell me a story")
    run = site.hand.take()
    run.say("Once ")
    expect(chat.answer.locator(".prose")).to_contain_text("Once")
    site.web.kill()
    expect(chat.page.get_by_text("No connection")).to_be_visible()
    run.say("upon ")
    site.web.start()
    run.say("a time.")
    run.finish()
    chat.expect_answer("Once upon a time.")
    expect(chat.page.get_by_text("No connection")).to_be_hidden()


def test_an_outage_of_the_queue_costs_no_word_and_the_page_goes_on_by_itself(
    chat: ChatPage, site: Site
) -> None:
    chat.ask("Tell me a story")
    run = site.hand.take()
    run.say("Once ")
    expect(chat.answer.locator(".prose")).to_contain_text("Once")
    site.valkey.kill()
    try:
        # A page that is opened meanwhile is there, and says what is missing.
        chat.page.reload()
        expect(chat.page.get_by_text("No connection")).to_be_visible()
    finally:
        site.valkey.start()
    run.say("upon ", "a time.")
    run.finish()
    chat.expect_answer("Once upon a time.")
    expect(chat.page.get_by_text("No connection")).to_be_hidden()
    chat.ask("And then?")
    run = site.hand.take()
    run.say("They lived.")
    run.finish()
    chat.expect_answer("They lived.")


def test_a_failed_answer_keeps_its_words_says_why_and_is_asked_for_again(chat: ChatPage, site: Site) -> None:
    chat.ask("Try hard")
    run = site.hand.take()
    run.say("Half an")
    run.fail("out_of_memory", "The model ran out of memory.")
    expect(chat.answer).to_contain_text("The model ran out of memory.")
    chat.expect_answer("Half an")
    chat.answer.get_by_role("button", name="Try again").click()
    again = site.hand.take()
    again.say("A whole answer")
    again.finish()
    chat.expect_answer("A whole answer")
    assert (chat.questions.count(), chat.answers.count()) == (1, 1)


def test_conversations_are_kept_listed_renamed_and_deleted(chat: ChatPage, site: Site) -> None:
    for subject in ("Signals", "Switches"):
        chat.page.get_by_role("button", name="New chat").first.click()
        chat.ask(subject)
        run = site.hand.take()
        run.say(f"About {subject}")
        run.finish()
        chat.expect_answer(f"About {subject}")
    chat.conversation("Signals").get_by_role("link").click()
    chat.expect_answer("About Signals")
    chat.page.go_back()
    chat.expect_answer("About Switches")

    chat.conversation("Switches").hover()
    chat.page.get_by_role("button", name="Rename “Switches”").click()
    chat.page.get_by_label("Rename this chat", exact=True).last.fill("Points")
    chat.page.get_by_role("button", name="Save").click()
    expect(chat.conversation("Points")).to_be_visible()
    expect(chat.page.locator("#title")).to_have_text("Points")

    chat.page.get_by_role("button", name="Delete this chat").click()
    chat.page.get_by_role("button", name="Delete", exact=True).last.click()
    expect(chat.conversation("Points")).to_have_count(0)
    expect(chat.page.get_by_text("What would you like to know?")).to_be_visible()
    chat.page.reload()
    expect(chat.conversation("Signals")).to_be_visible()
    expect(chat.conversation("Points")).to_have_count(0)


def test_two_conversations_are_answered_at_once(chat: ChatPage, site: Site) -> None:
    chat.ask("First")
    first = site.hand.take()
    first.say("one ")
    expect(chat.answer.locator(".prose")).to_contain_text("one")
    chat.page.get_by_role("button", name="New chat").first.click()
    chat.ask("Second")
    second = site.hand.take()
    second.say("two")
    second.finish()
    chat.expect_answer("two")
    expect(chat.conversation("First").locator(".lamp")).to_be_visible()
    first.say("and done")
    chat.conversation("First").get_by_role("link").click()
    chat.expect_answer("one and done")
    first.finish()
    chat.expect_finished()
    expect(chat.conversation("First").locator(".lamp")).to_have_count(0)


def test_a_lane_that_was_not_given_is_told_with_its_reason(chat: ChatPage, site: Site) -> None:
    chat.page.get_by_label("Lane").select_option(label="High lane")
    site.python(
        "from accounts.models import Entitlement; from accounts.tenancy import every_tenant\n"
        "with every_tenant('test'): Entitlement.objects.filter(tenant__slug='works', lane='high').delete()"
    )
    chat.ask("Quickly, please")
    expect(chat.answer).to_contain_text("You asked for the high lane")
    expect(chat.answer).to_contain_text("so this ran in the normal lane")


def test_only_the_tenants_lanes_are_offered(chat: ChatPage) -> None:
    chat.page.get_by_label("Working for").select_option(label="Yard")
    expect(chat.page.get_by_label("Lane").locator("option")).to_have_text(["Default lane", "Low lane"])


HOSTILE = """<script>window.hurt = 1</script>

<img src=x onerror="window.hurt = 1"> <svg onload="window.hurt = 1"></svg>

[click](javascript:window.hurt=1) [data](data:text/html,<script>window.hurt=1</script>) [fine](https://example.org/)

![picture](https://example.org/spy.png)

<iframe src="https://example.org"></iframe><style>body { display: none }</style>

<form action="//example.org"><input name=q></form>

<a href="&#106;avascript:window.hurt=1">entity</a> <b onclick="window.hurt=1" style="position:fixed">bold</b>
<math><mtext><img src=x onerror=window.hurt=1></mtext></math>

```html
<script>window.hurt = 1</script>
```

`<img src=x onerror=window.hurt=1>` <!-- <img src=x onerror=window.hurt=1> --> line<br>break

| a | b |
| --- | --- |
| <script>window.hurt=1</script> | <img src=x onerror=window.hurt=1> |
"""


def test_hostile_answers_are_inert_streamed_and_stored(chat: ChatPage, site: Site) -> None:
    chat.ask("Be evil")
    run = site.hand.take()
    run.say(*re.findall(r".{1,7}", HOSTILE, re.DOTALL))
    run.finish()
    chat.expect_finished()
    for _ in range(2):
        expect(chat.answer.locator(".prose")).to_contain_text("bold")
        assert chat.page.evaluate("window.hurt") is None
        prose = chat.answer.locator(".prose")
        for tag in ("script", "img", "svg:not(.icon)", "iframe", "style", "form", "input", "math", "object"):
            assert prose.locator(tag).count() == 0, tag
        attributes = prose.evaluate(
            "node => [...node.querySelectorAll('*')].flatMap((one) => one.getAttributeNames()"
            ".filter((name) => name.startsWith('on') || name === 'style'))"
        )
        assert attributes == []
        links = prose.locator("a").evaluate_all(
            "links => links.map((link) => [link.textContent, link.protocol, link.rel])"
        )
        assert [link for link in links if link[1] not in (":", "https:")] == []
        assert ["fine", "https:", "noopener noreferrer nofollow"] in links
        expect(prose).to_contain_text("<script>window.hurt = 1</script>")
        chat.page.reload()
    assert not chat.page.problems, chat.page.problems  # type: ignore[attr-defined]


def test_a_hostile_question_and_title_are_text(chat: ChatPage, site: Site) -> None:
    question = "<img src=x onerror=window.hurt=1> **not bold**"
    chat.ask(question)
    run = site.hand.take()
    run.say("ok")
    run.finish()
    chat.expect_finished()
    expect(chat.conversation("<img src=x")).to_be_visible()
    expect(chat.questions.last).to_have_text(question)
    assert chat.page.evaluate("window.hurt") is None


def test_emoji_and_other_scripts_come_through_whole(chat: ChatPage, site: Site) -> None:
    text = "👩‍👩‍👧‍👦 日本語 é नमस्ते 🚂"
    chat.ask(text)
    run = site.hand.take()
    run.say(*text)
    run.finish()
    chat.expect_answer(text)
    assert "\ufffd" not in (chat.answer.text_content() or "")


def test_code_is_coloured_and_copied(chat: ChatPage, site: Site, context: BrowserContext) -> None:
    context.grant_permissions(["clipboard-read", "clipboard-write"], origin=site.base_url)
    chat.ask("Code")
    run = site.hand.take()
    run.say("```python\n", "def f():\n", "    return 1\n", "```\n")
    run.finish()
    expect(chat.answer.locator(".hljs-keyword").first).to_have_text("def")
    chat.answer.get_by_role("button", name="Copy", exact=True).click()
    expect(chat.answer.get_by_text("Copied")).to_be_visible()
    assert chat.page.evaluate("navigator.clipboard.readText()") == "def f():\n    return 1"


def test_everything_is_reached_by_keyboard_alone(chat: ChatPage, site: Site) -> None:
    keyboard = chat.page.keyboard
    chat.page.locator("body").click()
    keyboard.press("/")
    expect(chat.prompt).to_be_focused()
    keyboard.type("By hand")
    keyboard.press("Shift+Enter")
    keyboard.type("and line")
    keyboard.press("Enter")
    run = site.hand.take()
    run.say("ok")
    run.finish()
    chat.expect_finished()
    expect(chat.prompt).to_be_focused()
    keyboard.press("Alt+n")
    expect(chat.page.get_by_text("What would you like to know?")).to_be_visible()
    chat.conversation("By hand").get_by_role("link").focus()
    keyboard.press("Enter")
    chat.expect_answer("ok")
    chat.conversation("By hand").get_by_role("link").focus()
    keyboard.press("Tab")
    expect(chat.page.get_by_role("button", name="Rename “By hand”")).to_be_focused()
    keyboard.press("Enter")
    expect(chat.page.locator("#rename-input")).to_be_focused()
    keyboard.press("Escape")
    expect(chat.page.locator("#rename-dialog")).to_be_hidden()


def test_screen_readers_hear_finished_passages_and_not_single_tokens(chat: ChatPage, site: Site) -> None:
    chat.ask("Speak")
    run = site.hand.take()
    run.say("First ", "passage.", "\n\n", "Second ", "passage.")
    announcer = chat.page.locator("#announcer p")
    expect(announcer).to_have_text(["First passage."])
    run.finish()
    expect(announcer).to_have_text(["First passage.", "Second passage.", "Answer finished"])


#: How much wider a select is than what is chosen in it.
_ROOM_FOR_TEXT = """select => {
  const style = getComputedStyle(select);
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = style.font;
  const padding = parseFloat(style.paddingLeft) + parseFloat(style.paddingRight);
  return select.clientWidth - padding - pen.measureText(select.selectedOptions[0].text).width;
}"""


def test_a_phone_has_a_drawer_and_no_sideways_scrolling(site: Site, chromium: Browser) -> None:
    context = chromium.new_context(viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True)
    page = watched(context.new_page(), site)
    chat = ChatPage(page, site)
    chat.sign_in()
    chat.ask("A long " + "word" * 60)
    run = site.hand.take()
    run.say("```\n" + "x" * 300 + "\n```\n\n| " + " | ".join("abcdef" * 3) + " |\n|" + " --- |" * 18 + "\n")
    run.finish()
    chat.expect_finished()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate("document.getElementById('scroller').scrollWidth") <= 390
    page.locator("#model option").evaluate_all(
        "options => options.forEach(o => o.text = 'smollm2-135m-instruct')"
    )
    for select in ("#model", "#lane"):
        assert page.locator(select).evaluate(_ROOM_FOR_TEXT) >= 0, f"what is chosen in {select} is cut"
    expect(page.locator("#sidebar")).to_be_hidden()
    page.get_by_role("button", name="Open the list of chats").tap()
    expect(page.get_by_role("button", name="Close the list of chats")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("#sidebar")).to_be_hidden()
    expect(page.get_by_role("button", name="Open the list of chats")).to_be_focused()
    page.get_by_role("button", name="Open the list of chats").tap()
    page.locator(".conversation-link").first.tap()
    expect(page.locator("#sidebar")).to_be_hidden()
    assert not page.problems, page.problems  # type: ignore[attr-defined]
    context.close()


def test_dark_and_light_follow_the_system_until_chosen(site: Site, chromium: Browser) -> None:
    context = chromium.new_context(color_scheme="dark")
    page = context.new_page()
    chat = ChatPage(page, site)
    page.goto(f"{site.base_url}/login/")
    root = page.locator("html")
    expect(root).to_have_attribute("data-theme", "dark")
    chat.sign_in()
    page.locator("#account-menu summary").click()
    page.get_by_role("radio", name="Light").check()
    expect(root).to_have_attribute("data-theme", "light")
    page.reload()
    expect(root).to_have_attribute("data-theme", "light")
    context.close()


# Who may


def test_a_page_needs_a_sign_in_and_leads_back(site: Site, context: BrowserContext) -> None:
    page = context.new_page()
    page.goto(f"{site.base_url}/chat/")
    expect(page).to_have_url(re.compile(r"/login/\?next="))
    page.get_by_label("User name").fill("ada")
    page.get_by_label("Password", exact=True).fill("wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("There is no such user, or this is not their password")
    page.get_by_label("Password", exact=True).fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    expect(page).to_have_url(f"{site.base_url}/chat/")


def test_a_one_time_password_opens_nothing_but_its_own_change(site: Site, context: BrowserContext) -> None:
    password = site.python(
        "from accounts import users; from accounts.models import User; from accounts.principal import Actor\n"
        "fresh = User.objects.get(username='fresh')\n"
        "print(users.issue_one_time_password(user=fresh, actor=Actor.system('test')).password)"
    ).strip()
    page = watched(context.new_page(), site)
    chat = ChatPage(page, site)
    chat.sign_in("fresh", password)
    expect(page).to_have_url(f"{site.base_url}/password/")
    page.goto(f"{site.base_url}/chat/")
    expect(page).to_have_url(f"{site.base_url}/password/")
    page.get_by_label("New password", exact=True).fill("short")
    page.get_by_label("New password, again", exact=True).fill("short")
    page.get_by_role("button", name="Save password").click()
    expect(page.get_by_role("alert")).to_be_visible()
    page.get_by_label("New password", exact=True).fill("a far better promise")
    page.get_by_label("New password, again", exact=True).fill("a far better promise")
    page.get_by_role("button", name="Save password").click()
    expect(page).to_have_url(f"{site.base_url}/chat/")
    expect(page.get_by_text("You belong to no tenant yet")).to_be_visible()
    assert not page.problems, page.problems  # type: ignore[attr-defined]


def test_a_viewer_sees_why_nothing_can_be_asked(site: Site, context: BrowserContext) -> None:
    chat = ChatPage(context.new_page(), site)
    chat.sign_in("visitor")
    expect(chat.page.get_by_text("You may read here, but not ask")).to_be_visible()
    expect(chat.prompt).to_be_disabled()


def test_a_conversation_of_somebody_else_does_not_exist(
    chat: ChatPage, site: Site, chromium: Browser
) -> None:
    chat.ask("Mine alone")
    run = site.hand.take()
    run.say("A secret")
    run.finish()
    chat.expect_finished()
    other = chromium.new_context()
    stranger = ChatPage(other.new_page(), site)
    stranger.sign_in("brunel")
    expect(stranger.prompt).to_be_visible()
    stranger.page.goto(chat.page.url)
    expect(stranger.answer).to_contain_text("This chat does not exist any more")
    assert "secret" not in stranger.page.content()
    other.close()


def test_signing_out_in_one_window_ends_the_other(
    chat: ChatPage, site: Site, context: BrowserContext
) -> None:
    expect(chat.prompt).to_be_enabled()
    second = context.new_page()
    second.goto(f"{site.base_url}/chat/")
    second.locator("#account-menu summary").click()
    second.get_by_role("button", name="Sign out").click()
    expect(second).to_have_url(re.compile("/login/"))
    expect(chat.page).to_have_url(re.compile("/login/"))


def test_no_credential_is_in_any_url_or_log(chat: ChatPage, site: Site) -> None:
    seen: list[str] = []
    chat.page.on("request", lambda request: seen.append(request.url))
    chat.page.on("websocket", lambda socket: seen.append(socket.url))
    chat.page.reload()
    chat.ask("Hello")
    expect(chat.answer).to_contain_text("lane")
    session = next(c["value"] for c in chat.page.context.cookies() if c["name"] == "sessionid")
    csrf = chat.page.locator("#app").get_attribute("data-csrf") or "none"
    for secret in (PASSWORD, session, csrf):
        assert secret not in " ".join(seen)
        assert secret not in site.web.log.read_text()
    assert any(url.startswith("ws://") for url in seen)
