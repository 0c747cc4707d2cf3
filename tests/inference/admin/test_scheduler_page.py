"""The live scheduler page: what it says of a worker's snapshot and of the queue, and what it costs."""

from __future__ import annotations

import time
import uuid
from datetime import timedelta
from typing import Any

import pytest
import redis
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from accounts.models import Lane
from accounts.tenancy import every_tenant
from inference.admin.scheduler import STRIP_HEIGHT, WorkerNow, scheduler_now
from inference.dispatch import claims, heartbeats
from inference.dispatch.queue import DispatchQueue
from inference.messages import (
    DecodingRow,
    Heartbeat,
    ParkedRow,
    SchedulerSnapshot,
    SlotHolder,
    SlotSnapshot,
    SlotWaiter,
)
from inference.models import Generation, LanguageModel, Worker
from signalbox import store
from tests.factories import GenerationFactory, LanguageModelFactory, TenantFactory, WorkerFactory
from tests.heartbeats import make_heartbeat, make_snapshot
from tests.inference.dispatch.conftest import make_task

MIB, HOUR_S = 2**20, 3600
HTMX = {"HX-Request": "true"}


def _page(model: LanguageModel) -> str:
    return reverse("admin:inference_languagemodel_scheduler", args=(model.pk,))


def snapshot(**changes: Any) -> SchedulerSnapshot:
    return make_snapshot(time.time(), **changes)


def streaming(**changes: Any) -> DecodingRow:
    fields = {"generation": uuid.uuid4().hex, "tenant": uuid.uuid4().hex, "lane": "normal", "tokens": 10}
    return DecodingRow(**{**fields, "max_tokens": 100, "since": time.time() - 5 * HOUR_S, **changes})


def waiting(**changes: Any) -> ParkedRow:
    fields = {"generation": uuid.uuid4().hex, "tenant": uuid.uuid4().hex, "lane": "low", "done": 128}
    return ParkedRow(**{**fields, "total": 2500, "since": time.time() - 9 * HOUR_S, **changes})


def beat(worker: Worker, scheduler: SchedulerSnapshot | None, **changes: Any) -> Heartbeat:
    fields: dict[str, Any] = {
        "worker": worker.id.hex,
        "model": worker.model.name,
        "hostname": worker.hostname,
        "pid": worker.pid,
        "decoding": scheduler.decoding if scheduler else 0,
        "prefilling": scheduler.prefills if scheduler else 0,
        "scheduler": scheduler,
    }
    return make_heartbeat(time.time(), **{**fields, **changes})


def told(valkey: redis.Redis, scheduler: SchedulerSnapshot | None, **changes: Any) -> WorkerNow:
    """What the page makes of a worker that tells ``scheduler``."""
    worker = WorkerFactory()
    heartbeats.beat(valkey, beat(worker, scheduler, **changes))
    with every_tenant("test"):
        [one] = scheduler_now([worker.model]).models
    [shown] = one.workers
    return shown


def test_the_page_shows_rows_and_prompts_with_whose_they_are_and_how_far(
    as_operator: Client, valkey: redis.Redis
) -> None:
    tenant, worker = TenantFactory(name="Rail & Co"), WorkerFactory(hostname="mac-1")
    row, prompt = streaming(tenant=tenant.id.hex, lane="high"), waiting(tenant=tenant.id.hex)
    shown = snapshot(
        decoding=3, prefills=1, rows=[row], parked=[prompt], debt=256, recent="dp", recent_ms=[5, 80]
    )
    counters = {'preemptions_total{lane="low"}': 2.0, 'preemptions_total{lane="normal"}': 1.0}
    heartbeats.beat(valkey, beat(worker, shown, counters=counters))
    text = as_operator.get(_page(worker.model)).content.decode()
    for words in (
        "mac-1, process",
        "Rail &amp; Co",
        f"gen_{row.generation[:8]}…",
        reverse("admin:inference_generation_change", args=(uuid.UUID(row.generation),)),
        "10 / 100",
        "128 / 2,500",
        "for 5 h",
        "accepted 9 h",
        "4 of 8 slots taken",
        'Decode batch <span class="sb-faint">3</span>',
        "and 2 more",
        "after 4 decode ticks",
        "3 preempted",
        'aria-label="1 × prefill, median 80 ms, longest 80 ms; 1 × decode, median 5.0 ms, longest 5.0 ms"',
    ):
        assert words in text, words
    assert "style=" not in as_operator.get(_page(worker.model), headers=HTMX).content.decode()


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("changes", "headline", "meaning"),
    [
        ({}, "at once", "owe nothing"),
        ({"decoding": 2}, "at once", "No debt is open"),
        ({"decoding": 2, "debt": 256}, "after 4 decode ticks", "pays 64."),
        ({"decoding": 2, "debt": 1}, "after 1 decode tick", "pays 64."),
        (
            {"decoding": 2, "debt": 256, "prefills": 2},
            "after 2 decode ticks",
            "64 for each of 2 waiting prompts",
        ),
        ({"decoding": 2, "debt": 256, "decode_ms": 50.0}, "after 4 decode ticks, about 200 ms", "pays"),
        ({"decoding": 2, "interval": 0}, "when no stream is left", "starve"),
    ],
)
def test_debt_is_told_as_when_prompts_are_run_next(
    valkey: redis.Redis, changes: dict[str, Any], headline: str, meaning: str
) -> None:
    debt = told(valkey, snapshot(**changes)).debt
    assert debt is not None
    assert debt.headline == headline
    assert meaning in debt.meaning


def holding(**changes: Any) -> SlotHolder:
    fields = {"generation": uuid.uuid4().hex, "tenant": uuid.uuid4().hex, "lane": "normal", "tokens": 40}
    return SlotHolder(**{**fields, **changes})


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("changes", "at_slot", "headline", "meaning"),
    [
        # Rounds are a stream: prompts owe it, and each round pays.
        ({}, {"holder": holding()}, "at once", "No debt is open"),
        ({"prefills": 1, "debt": 256}, {"holder": holding()}, "after 4 rounds", "slot pays 64."),
        ({"debt": 256, "decode_ms": 50.0}, {"holder": holding()}, "after 4 rounds", "slot pays 64."),
        ({"interval": 0}, {"holder": holding()}, "when no stream is left", "starve"),
        # Beside rows, decode ticks pay.
        ({"decoding": 1, "debt": 64}, {"holder": holding()}, "after 1 decode tick", "a decode tick pays"),
        # A slice 0 is a prompt's: nothing streams, or it waits and pays like the others.
        ({}, {"holder": holding(tokens=0), "prompt_next": True}, "at once", "owe nothing"),
        ({"interval": 0}, {"holder": holding(tokens=9), "prompt_next": True}, "at once", "owe nothing"),
        (
            {"decoding": 1, "prefills": 1, "debt": 256},
            {"holder": holding(tokens=0), "prompt_next": True},
            "after 2 decode ticks",
            "64 for each of 2 waiting prompts",
        ),
        # Between two grants the slot is free, and a round is next all the same.
        ({"debt": 64}, {"waiting": True}, "after 1 round", "slot pays 64."),
        ({"debt": 64}, {"holder": None}, "at once", "owe nothing"),
    ],
)
def test_a_stream_of_the_speculative_slot_is_one_as_the_tick_has_it(
    valkey: redis.Redis, changes: dict[str, Any], at_slot: dict[str, Any], headline: str, meaning: str
) -> None:
    if at_slot.pop("waiting", False):
        at_slot["waiting"] = [in_ring("normal", 0, started=True)]
    shown = told(valkey, snapshot(slot=slot(**at_slot), **changes))
    assert shown.debt is not None
    assert shown.debt.headline == headline
    assert meaning in shown.debt.meaning
    streams = "owe nothing" not in meaning
    assert shown.no_rows == ("Only the speculative slot streams." if streams else "Nothing streams.")


@pytest.mark.django_db
def test_memory_is_drawn_as_parts_of_the_budget(valkey: redis.Redis) -> None:
    full = snapshot(kv_budget=1000 * MIB, kv_reserved=400 * MIB, kv_cached=100 * MIB, kv_watermark=50 * MIB)
    shares = told(valkey, full).memory
    assert [(share.kind, share.x, share.width) for share in shares] == [
        ("reserved", 0, 40),
        ("cached", 40, 10),
        ("free", 50, 45),
        ("watermark", 95, 5),
    ]
    assert told(valkey, full).memory_words.startswith("1000.0\xa0MiB: 400.0\xa0MiB reserved for what runs")
    # A budget that was lowered below what runs, and one that nobody keeps.
    over = told(valkey, snapshot(kv_budget=100, kv_reserved=150, kv_watermark=10)).memory
    assert sum(share.width for share in over) == 100
    assert told(valkey, snapshot()).memory == []


def slot(**changes: Any) -> SlotSnapshot:
    return SlotSnapshot(drafter="suffix_pool", draft_length=4, state="settled", **changes)


def in_ring(lane: str, skips: int, **changes: Any) -> SlotWaiter:
    ids = {"generation": uuid.uuid4().hex, "tenant": uuid.uuid4().hex}
    return SlotWaiter(**ids, lane=lane, skips=skips, **changes)


def test_the_slot_is_shown_with_its_holder_its_ring_and_what_it_gains(
    as_operator: Client, valkey: redis.Redis
) -> None:
    tenant, other, worker = TenantFactory(name="Rail & Co"), TenantFactory(name="Depot"), WorkerFactory()
    holder = SlotHolder(
        generation=uuid.uuid4().hex,
        tenant=tenant.id.hex,
        lane="high",
        slices=3,
        budget=8,
        tokens=40,
        max_tokens=512,
    )
    parked = in_ring("low", 2, started=True, tokens=77, max_tokens=128)
    shown = slot(
        holder=holder,
        waiting=[in_ring("normal", 0), parked],
        rotations=12,
        grants={tenant.id.hex: 30, other.id.hex: 10},
        proposed=2000,
        accepted=1500,
        verdict="enabled",
        speedup=1.42,
    )
    heartbeats.beat(valkey, beat(worker, snapshot(slot=shown)))
    text = as_operator.get(_page(worker.model), headers=HTMX).content.decode()
    for words in (
        "Suffix pool",
        "Only the speculative slot streams.",
        "1.42 times as fast",
        "75%",
        "1,500 of 2,000 drafted tokens",
        "4 tokens",
        "Rail &amp; Co",
        "3 of 8 rounds",
        "40 / 512",
        "77 / 128",
        "parked, passed over 2 of 2",
        "not begun, passed over 0 of 2",
        reverse("admin:inference_generation_change", args=(uuid.UUID(parked.generation),)),
        "Depot",
    ):
        assert words in text, words
    assert text.count("sb-pip-run") == 3
    assert "style=" not in text
    # Of the two, the one that was passed over as often as one may be.
    assert text.index(parked.generation[:8]) < text.index(">next<")
    assert text.count(">next<") == 1


def test_a_drafter_that_cannot_be_had_is_told_with_why(as_operator: Client, valkey: redis.Redis) -> None:
    worker = WorkerFactory()
    gone = SlotSnapshot(drafter_fault="The draft model in /gone cannot be loaded.", state="profiling")
    heartbeats.beat(valkey, beat(worker, snapshot(slot=gone)))
    text = as_operator.get(_page(worker.model), headers=HTMX).content.decode()
    assert "There is no drafter. The draft model in /gone cannot be loaded." in text
    heartbeats.beat(valkey, beat(worker, snapshot(slot=slot())))
    assert "There is no drafter" not in as_operator.get(_page(worker.model), headers=HTMX).content.decode()


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("changes", "words", "pips"),
    [
        ({"slices": 0, "budget": 8}, "0 of 8 rounds", 8),
        ({"slices": 11, "budget": 8}, "11 rounds, for nobody waits", 0),
        ({"slices": 1, "budget": 0}, "1 round; keeps it to its end", 0),
        ({"slices": 9, "budget": 64}, "9 of 64 rounds", 0),
    ],
)
def test_a_grant_is_told_by_its_rounds(
    valkey: redis.Redis, changes: dict[str, int], words: str, pips: int
) -> None:
    holder = SlotHolder(generation=uuid.uuid4().hex, tenant=uuid.uuid4().hex, lane="normal", **changes)
    shown = told(valkey, snapshot(slot=slot(holder=holder))).slot
    assert shown is not None
    assert shown.holder is not None
    assert (shown.holder.words, len(shown.holder.pips)) == (words, pips)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("changes", "headline", "meaning"),
    [
        ({"state": "forced_on"}, "always on", "whether it pays"),
        ({"state": "forced_off", "verdict": "enabled"}, "off", "Nothing new"),
        ({"state": "profiling", "samples": 3}, "being measured", "3 of 4 generations"),
        ({"verdict": "enabled", "speedup": 1.5}, "1.50 times as fast", "it pays"),
        ({"verdict": "declined", "speedup": 0.8}, "does not pay", "0.80 times as fast"),
        ({"verdict": "undecided", "speedup": 1.1}, "too close to call", "1.10 times as fast"),
        ({"state": "a new one"}, "not measured", ""),
    ],
)
def test_what_speculation_gains_is_told_in_words(
    valkey: redis.Redis, changes: dict[str, Any], headline: str, meaning: str
) -> None:
    shown = told(valkey, snapshot(slot=SlotSnapshot(**changes))).slot
    assert shown is not None
    assert (shown.verdict.headline, meaning in shown.verdict.meaning) == (headline, True)
    assert told(valkey, snapshot()).slot is None


@pytest.mark.django_db
def test_the_strip_is_as_high_as_the_longest_tick_and_ends_at_the_right(valkey: redis.Redis) -> None:
    strip = told(valkey, snapshot(recent="dpi", recent_ms=[5.0, 80.0, 0.0])).strip
    assert strip is not None
    decode, prefill, idle = strip.bars
    assert (prefill.height, prefill.y) == (STRIP_HEIGHT, 0)
    assert idle.height < decode.height < prefill.height
    assert strip.width - 6 == idle.x > prefill.x > decode.x
    assert prefill.title == "prefill, 80 ms"
    assert told(valkey, snapshot()).strip is None


@pytest.mark.django_db
def test_a_worker_that_tells_nothing_is_shown_all_the_same(valkey: redis.Redis) -> None:
    shown = told(valkey, None)
    assert (shown.terms, shown.debt, shown.rows, shown.memory) == (None, None, [], [])


def test_the_queue_is_told_by_lane_with_its_wait_and_its_way_to_the_floor(
    as_operator: Client, valkey: redis.Redis
) -> None:
    model = LanguageModelFactory(lane_floor=2)
    queue, ranks = DispatchQueue(valkey), dict(Lane.objects.values_list("name", "rank"))
    for lane in ("high", "high", "high", "low"):
        made = GenerationFactory(model=model, lane=Lane.objects.get(name=lane))
        with every_tenant("test"):
            Generation.objects.filter(id=made.id).update(created_at=timezone.now() - timedelta(seconds=90))
        task = make_task(rank=ranks[lane], model=model.name)
        queue.enqueue(_named(task, made))
    for _ in range(2):
        claims.claim(valkey, "worker", model.name, 30)
    page = as_operator.get(_page(model))
    [one] = page.context["scheduler"].models
    assert [(lane.name, lane.depth, lane.skips, lane.goes_first) for lane in one.lanes] == [
        ("high", 1, 0, False),
        ("normal", 0, 0, False),
        ("low", 1, 2, True),
    ]
    text = page.content.decode()
    for words in ("90.", "2 of 2", "goes first", "No worker runs"):
        assert words in text


def _named(task: Any, generation: Generation) -> Any:
    return type(task)(
        **{**{f: getattr(task, f) for f in task.__struct_fields__}, "generation": generation.id.hex}
    )


@pytest.mark.slow
def test_the_page_says_when_valkey_cannot_be_reached(
    as_operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = LanguageModelFactory()
    nowhere = redis.Redis(unix_socket_path="/nowhere/valkey.sock")
    monkeypatch.setattr(store, "shared_client", lambda: nowhere)
    text = as_operator.get(_page(model)).content.decode()
    assert "Valkey cannot be reached" in text
    assert "No worker runs" not in text


def test_one_page_shows_every_model_that_is_offered(as_onlooker: Client, valkey: redis.Redis) -> None:
    for name in ("first", "second"):
        LanguageModelFactory(name=name, prefill_interval=0 if name == "second" else 4)
    LanguageModelFactory(name="third", retired_at=timezone.now())
    text = as_onlooker.get(reverse("admin:inference_scheduler"), headers=HTMX).content.decode()
    assert "<html" not in text
    assert text.index("first") < text.index("second")
    assert "third" not in text
    assert text.count("The interval is 0") == 1


@pytest.mark.parametrize("left", ["worker", "queued", "running"])
def test_a_retired_model_is_shown_until_nothing_of_it_is_left(
    as_onlooker: Client, valkey: redis.Redis, left: str
) -> None:
    model = LanguageModelFactory(name="old one", retired_at=timezone.now())
    LanguageModelFactory(name="long gone", retired_at=timezone.now())
    ended = GenerationFactory(model=model, state="completed", ended_at=timezone.now())
    page = reverse("admin:inference_scheduler")
    assert "old one" not in as_onlooker.get(page, headers=HTMX).content.decode()
    if left == "worker":
        heartbeats.beat(valkey, beat(WorkerFactory(model=model), snapshot()))
    else:
        with every_tenant("test"):
            Generation.objects.filter(id=ended.id).update(state=left, ended_at=None)
    text = as_onlooker.get(page, headers=HTMX).content.decode()
    assert "old one" in text
    assert "retired: what waits and runs may finish" in text
    assert "long gone" not in text


def test_the_page_is_reached_from_now_and_from_models_and_workers(
    as_operator: Client, valkey: redis.Redis
) -> None:
    worker = WorkerFactory()
    heartbeats.beat(valkey, beat(worker, snapshot()))
    assert reverse("admin:inference_scheduler") in as_operator.get(reverse("admin:index")).content.decode()
    model_page = reverse("admin:inference_languagemodel_change", args=(worker.model.pk,))
    assert _page(worker.model) in as_operator.get(model_page).content.decode()
    worker_page = reverse("admin:inference_worker_change", args=(worker.pk,))
    link = reverse("admin:inference_worker_scheduler", args=(worker.pk,))
    assert link in as_operator.get(worker_page).content.decode()
    assert as_operator.get(link)["Location"] == f"{_page(worker.model)}#worker-{worker.id.hex}"


def test_who_is_no_staff_is_not_shown_it(as_member: Client) -> None:
    for url in (_page(LanguageModelFactory()), reverse("admin:inference_scheduler")):
        assert as_member.get(url).status_code in (302, 403)


def test_the_page_costs_as_much_under_load_as_idle(
    as_operator: Client, valkey: redis.Redis, django_assert_num_queries: Any
) -> None:
    model = LanguageModelFactory()
    queue = DispatchQueue(valkey)
    for _ in range(2):
        for lane in Lane.objects.all():
            made = GenerationFactory(model=model, lane=lane)
            queue.enqueue(_named(make_task(rank=lane.rank, model=model.name), made))
        rows = [streaming(tenant=TenantFactory().id.hex) for _ in range(10)]
        ring = [in_ring("low", 0, started=True) for _ in range(3)]
        busy = snapshot(decoding=10, rows=rows, slot=slot(waiting=ring))
        heartbeats.beat(valkey, beat(WorkerFactory(model=model), busy))
        # The user; the model; lanes; tenants; what waits first.
        with django_assert_num_queries(6):
            as_operator.get(_page(model), headers=HTMX)
