"""A generation's page in a real browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.accounts.admin.test_browser import AdminSite, page, signed_in, site

__all__ = ["page", "signed_in", "site"]

pytestmark = pytest.mark.browser

#: A generation with a run that was preempted, one that no worker reported, and one with merged chunks; its id.
_MAKE = """
from datetime import timedelta
from django.utils import timezone
from accounts.models import Tenant, Lane
from accounts.tenancy import every_tenant
from inference.models import *
with every_tenant("a test makes rows"):
    at = timezone.now() - timedelta(seconds=60)
    model = LanguageModel.objects.create(name="m", directory="m", source="s", architecture="llama",
        context_length=2048, has_chat_template=True, dtype="float32", size_bytes=1, checksum="0" * 64)
    made = Generation.objects.create(tenant=Tenant.objects.get(), model=model, lane=Lane.objects.get(name="normal"),
        route="completions", prompt_tokens=900, max_tokens=64, epoch=3, state="completed",
        claimed_at=at + timedelta(seconds=12), ended_at=at + timedelta(seconds=20))
    Generation.objects.filter(id=made.id).update(created_at=at)
    chunk = lambda start, n, **more: [start, "chunk", {"s": 0.4, "tokens": 300, "done": 300 * n, "total": 900, **more}]
    for epoch, start, end, outcome, events in (
        (1, 1, 4, "preempted", [chunk(1.0, 1), chunk(1.5, 2, beside=2)]),
        (3, 12, 20, "completed", [chunk(12.0, 3, merged=3, busy=0.2), [13.0, "first_token", {}],
            [13.0, "slot_grant", {"s": 2.0, "rounds": 8, "proposed": 28, "accepted": 21}],
            [13.0, "tokens", {"s": 2.0, "tokens": 29, "gap": 0.3}], [15.0, "slot_wait", {"s": 1.5, "parked": True}],
            [16.5, "slot_grant", {"s": 1.0, "rounds": 3, "proposed": 9, "accepted": 5}],
            [16.5, "tokens", {"s": 3.5, "tokens": 24, "gap": 1.6}], [17.5, "classic", {"reason": "batch_is_better"}],
            [20.0, "ended", {"reason": "stop"}]]),
    ):
        GenerationRun.objects.create(generation=made, epoch=epoch, worker_name="mac-1.local:4711", outcome=outcome,
            claimed_at=at + timedelta(seconds=start), ended_at=at + timedelta(seconds=end), events=events)
print(made.pk)
"""


@pytest.fixture(scope="module")
def address(site: AdminSite) -> str:
    return f"/admin/inference/generation/{site.python(_MAKE).strip()}/change/"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_timeline_is_drawn_in_both_schemes_and_can_be_read_in_each(
    page: Page,
    address: str,
    scheme: str,
) -> None:
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    page.goto(address)
    tracks = page.locator(".sb-timeline-track")
    expect(tracks).to_have_count(3)
    ground = page.locator(".sb-timeline").evaluate("element => getComputedStyle(element).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") == (scheme == "light")
    colours = {
        name: page.locator(f"rect.sb-tl-{name}").first.evaluate("element => getComputedStyle(element).fill")
        for name in ("waiting", "chunk", "tokens", "slot_grant")
    }
    assert len({ground, *colours.values()}) == 5, f"everything can be told apart from everything: {colours}"
    for track in tracks.all():
        frame = track.bounding_box()
        assert frame is not None
        for bar in track.locator("rect[x]").all():
            box = bar.bounding_box()
            assert box is not None
            assert box["width"] >= 1
            assert frame["x"] - 1 <= box["x"]
            assert box["x"] + box["width"] <= frame["x"] + frame["width"] + 1


def test_each_shape_says_what_it_is_and_the_table_says_it_again(page: Page, address: str) -> None:
    page.goto(address)
    expect(
        page.get_by_role("img", name="Prompt chunk: 300 tokens, 600 of 900 done, beside 2 other prompts")
    ).to_have_count(1)
    expect(
        page.get_by_role("img", name="Speculative slot: 8 rounds, 21 of 28 drafted tokens kept")
    ).to_have_count(1)
    expect(page.get_by_role("img", name="Lost: claimed somewhere in this time")).to_have_count(1)
    table = page.locator(".sb-timeline table")
    expect(table).to_be_hidden()
    page.get_by_text("As a table").click()
    expect(table.get_by_text("a higher lane needed its room")).to_be_visible()


def test_a_timeline_fits_a_phone(page: Page, address: str) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(address)
    page.get_by_text("As a table").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
