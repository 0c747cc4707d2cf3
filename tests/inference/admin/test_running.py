"""What the landing page counts in a worker's slots, it lists: heartbeats are older than the database."""

from __future__ import annotations

import time
import uuid
from typing import Any

import pytest
import redis
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from accounts.tenancy import every_tenant
from inference.admin.now import Now, WorkerState
from inference.admin.running import Doing, told_by, without_ended
from inference.dispatch import heartbeats
from inference.messages import DecodingRow, ParkedRow, SlotHolder, SlotSnapshot, SlotWaiter
from inference.models import Generation
from tests.factories import GenerationFactory, WorkerFactory
from tests.heartbeats import make_heartbeat, make_snapshot


def _whose(generation: uuid.UUID) -> dict[str, Any]:
    return {"generation": generation.hex, "tenant": uuid.uuid4().hex, "lane": "normal"}


def writing(generation: uuid.UUID) -> DecodingRow:
    return DecodingRow(**_whose(generation), tokens=10, max_tokens=100, since=time.time())


def reading(generation: uuid.UUID) -> ParkedRow:
    return ParkedRow(**_whose(generation), done=128, total=2500, since=time.time())


@pytest.mark.django_db
def test_what_has_ended_since_the_heartbeat_takes_no_slot(as_operator: Client, valkey: redis.Redis) -> None:
    at = time.time()
    streams, reads, preempted, ended = (GenerationFactory(state="running") for _ in range(4))
    told = make_snapshot(
        at, decoding=2, prefills=1, rows=[writing(streams.id), writing(ended.id)], parked=[reading(reads.id)]
    )
    beat = make_heartbeat(at, worker=WorkerFactory().id.hex, decoding=2, prefilling=1, scheduler=told)
    heartbeats.beat(valkey, beat)

    def page() -> tuple[Now, str]:
        answer = as_operator.get(reverse("admin:index"))
        return answer.context["now"], answer.content.decode()

    def end(*generations: Generation) -> None:
        with every_tenant("test"):
            these = Generation.objects.filter(id__in=[one.id for one in generations])
            these.update(state="completed", ended_at=timezone.now())

    end(ended)
    now, text = page()
    assert {one.generation.id: one.doing for one in now.running} == {
        streams.id: Doing.WRITING,
        reads.id: Doing.READING,
        preempted.id: Doing.NOTHING,
    }
    assert "1 writing, 1 reading their prompt, room for 6 more" in text
    assert "<td>in no slot</td>" in text

    end(streams, reads, preempted)
    now, text = page()
    assert [(worker.taken, worker.state) for worker in now.workers or ()] == [(0, WorkerState.IDLE)]
    assert "Nothing in its slots, room for 8" in text
    assert "Nothing runs." in text


def test_who_holds_the_speculative_slot_or_waits_for_it_is_told_of_too() -> None:
    holds, waits, reads = (uuid.uuid4() for _ in range(3))
    slot = SlotSnapshot(
        holder=SlotHolder(**_whose(holds), tokens=3),
        waiting=[SlotWaiter(**_whose(waits), tokens=1, started=True), SlotWaiter(**_whose(reads))],
    )
    beat = make_heartbeat(0, decoding=2, prefilling=1, scheduler=make_snapshot(0, slot=slot))
    assert told_by(beat) == {holds: Doing.WRITING, waits: Doing.WRITING, reads: Doing.READING}
    left = without_ended(beat, {holds, reads})
    assert (left.decoding, left.prefilling) == (1, 1)


def test_rows_beyond_those_that_a_heartbeat_names_are_counted_all_the_same() -> None:
    named = uuid.uuid4()
    beat = make_heartbeat(0, scheduler=make_snapshot(0, decoding=70, rows=[writing(named)]))
    assert without_ended(beat, {named}).decoding == 70
    assert without_ended(beat, set()).decoding == 69


def test_a_worker_that_has_not_ticked_yet_is_taken_at_its_word() -> None:
    beat = make_heartbeat(0, decoding=2)
    assert without_ended(beat, set()) == beat
