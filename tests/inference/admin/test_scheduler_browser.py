"""The live scheduler page in a real browser, under a load that a heartbeat tells."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.accounts.admin.test_browser import AdminSite, page, signed_in, site

__all__ = ["page", "signed_in", "site"]

pytestmark = pytest.mark.browser

PAGE = "/admin/inference/languagemodel/scheduler/"

#: One model whose worker is busy in every way, and a queue in two lanes. ``{tokens}``: how far its first row is.
_BUSY = """
import time, uuid
from accounts.models import Lane, Tenant
from accounts.tenancy import every_tenant
from inference.dispatch import claims, heartbeats
from inference.dispatch.queue import dispatch_queue
from inference.messages import *
from inference.models import Generation, LanguageModel, Worker
from signalbox import store
now, MIB = time.time(), 2**20
with every_tenant("a test makes rows"):
    model, _ = LanguageModel.objects.get_or_create(name="llama-3.2-3b-instruct", defaults=dict(directory="m",
        architecture="llama", context_length=8192, has_chat_template=True, dtype="float16", size_bytes=1))
    tenants = [Tenant.objects.get_or_create(slug=slug, defaults=dict(name=name))[0].id.hex
        for slug, name in (("timetable", "Timetable"), ("depot", "Depot and yard operations of the northern region"))]
    if not Generation.objects.exists():
        for lane, count in (("high", 3), ("low", 3)):
            lane = Lane.objects.get(name=lane)
            for _ in range(count):
                made = Generation.objects.create(tenant_id=tenants[0], model=model, lane=lane, route="completions",
                    prompt_tokens=900, max_tokens=64)
                dispatch_queue().enqueue(GenerationTask(generation=made.id.hex, tenant=tenants[0], model=model.name,
                    lane=lane.name, lane_rank=lane.rank, weight=1, prompt=[1], max_tokens=64,
                    sampling=Sampling(seed=1), accepted_at=now))
        for _ in range(2):  # two of the high lane are served past the low one
            claims.claim(store.sync_client(), "b" * 32, model.name, 600)
rows = [DecodingRow(generation=uuid.uuid5(uuid.NAMESPACE_URL, str(n)).hex, tenant=tenants[n % 2],
    lane=("high", "normal", "low")[n % 3], tokens=tokens, max_tokens=512, since=now - 2 - 3 * n)
    for n, tokens in enumerate(({tokens}, 231, 498, 77, 160))]
parked = [ParkedRow(generation=uuid.uuid5(uuid.NAMESPACE_DNS, lane).hex, tenant=tenant, lane=lane, done=done,
    total=total, since=since) for tenant, lane, done, total, since in (
        (tenants[0], "normal", 1408, 2500, now - 4), (tenants[1], "low", 256, 6144, now - 11))]
recent = ("pdsdsd" * 20)[:118] + "di"
holding, ring = uuid.uuid5(uuid.NAMESPACE_OID, "0").hex, [uuid.uuid5(uuid.NAMESPACE_OID, n).hex for n in "12"]
slot = SlotSnapshot(drafter="suffix_pool", draft_length=4, state="settled", verdict="enabled", speedup=1.42,
    proposed=8120, accepted=5904, rotations=57, grants={{tenants[0]: 61, tenants[1]: 34}},
    holder=SlotHolder(generation=holding, tenant=tenants[0], lane="high", slices=3, budget=8, tokens=188,
        max_tokens=512),
    waiting=[SlotWaiter(generation=ring[0], tenant=tenants[1], lane="normal", skips=1, started=True, tokens=96,
        max_tokens=256), SlotWaiter(generation=ring[1], tenant=tenants[0], lane="high", max_tokens=512)])
scheduler = SchedulerSnapshot(at=now, decoding=5, prefills=2, rows=rows, parked=parked, debt=384, chunk=128, interval=4,
    decode_ms=22.4, chunk_ms=118.0, kv_reserved=1750 * MIB, kv_budget=4096 * MIB, kv_watermark=205 * MIB,
    kv_cached=610 * MIB, kv_cache_budget=1024 * MIB, lane_floor=4, preemption=True, recent=recent,
    recent_ms=[{{"i": 0, "p": 90 + 7 * n % 60, "d": 20 + 5 * n % 7, "s": 31 + 3 * n % 9}}[one]
        for n, one in enumerate(recent)], slot=slot)
heartbeats.HEARTBEAT_TTL_S = 120
heartbeats.beat(store.sync_client(), Heartbeat(worker="a" * 32, model=model.name, hostname="mac-studio.local", pid=4711,
    started_at=now - 9000, sent_at=now, progressed_at=now + 100, ready=True, draining=False, blas="Accelerate",
    device="Apple M1 Ultra", decoding=5, prefilling=2, slots=8, scheduler=scheduler,
    counters={{'preemptions_total{{lane="low"}}': 3.0, 'deferrals_total{{lane_rank="2"}}': 11.0}}))
"""

_DRAWN = (
    ".sb-box",
    ".sb-tick-decode",
    ".sb-tick-prefill",
    ".sb-tick-speculate",
    ".sb-kv-cached",
    ".sb-kv-watermark",
)
#: Of the first its ground, of all others what fills them. Asked at once: each second the page has other elements.
_COLOURS = """([ground, ...shapes]) => {
    const look = name => getComputedStyle(document.querySelector(name));
    return [look(ground).backgroundColor, ...shapes.map(name => look(name).fill)];
}"""


@pytest.fixture(scope="module")
def busy(site: AdminSite) -> AdminSite:
    site.python(_BUSY.format(tokens=12))
    return site


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_of_a_busy_worker_can_be_seen_in_both_schemes(busy: AdminSite, page: Page, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    page.goto(PAGE)
    expect(page.get_by_role("img", name=re.compile("× prefill, .*× decode, "))).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("reserved for what runs"))).to_be_visible()
    expect(page.get_by_role("progressbar", name="1408 of 2500 tokens")).to_be_visible()
    expect(page.get_by_text("after 2 decode ticks")).to_be_visible()
    expect(page.get_by_role("row", name="low")).to_contain_text("2 of 4")
    ground, *fills = page.evaluate(_COLOURS, [*_DRAWN])
    assert (ground == "rgb(255, 255, 255)") == (scheme == "light")
    assert len({ground, *fills}) == len(_DRAWN), fills
    slot = page.get_by_role("region", name="Speculative slot")
    expect(slot).to_contain_text("1.42 times as fast")
    expect(slot.get_by_role("region", name="Has it")).to_contain_text("3 of 8 rounds")
    expect(slot.get_by_role("region", name="Wait for it")).to_contain_text("parked, passed over 1 of 2")


def test_it_follows_the_worker_until_it_is_held_still(busy: AdminSite, page: Page) -> None:
    page.goto(PAGE)
    expect(page.get_by_text("12 / 512")).to_be_visible()
    busy.python(_BUSY.format(tokens=13))
    expect(page.get_by_text("13 / 512")).to_be_visible(timeout=10_000)
    page.get_by_label("Hold still").check()
    told = page.locator("#live time").get_attribute("datetime")
    busy.python(_BUSY.format(tokens=14))
    # Another page, which nobody holds, asks twice meanwhile.
    other = page.context.new_page()
    other.goto(PAGE)
    expect(other.get_by_text("14 / 512")).to_be_visible()
    for _ in range(2):
        with other.expect_response(re.compile(PAGE)):
            pass
    other.close()
    assert page.evaluate("document.visibilityState") == "visible"
    expect(page.get_by_text("13 / 512")).to_be_visible()
    assert page.locator("#live time").get_attribute("datetime") == told
    page.get_by_label("Hold still").uncheck()
    expect(page.get_by_text("14 / 512")).to_be_visible(timeout=10_000)


def test_the_scheduler_s_pages_are_not_wider_than_a_phone(busy: AdminSite, page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(PAGE)
    form = page.get_by_role("link", name="Settings").get_attribute("href")
    assert form is not None
    for path in (PAGE, form):
        page.goto(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
