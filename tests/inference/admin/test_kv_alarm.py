"""A model whose workers have too little memory for an ordinary answer: said wherever an operator looks."""

from __future__ import annotations

import time
from typing import Any

import pytest
import redis
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from inference.admin.kv_alarm import kv_alarm
from inference.dispatch import heartbeats
from inference.models import LanguageModel
from tests.factories import LanguageModelFactory
from tests.heartbeats import make_heartbeat

MIB = 2**20
NOW = "admin:index"


def _text(client: Client, name: str, *arguments: object) -> str:
    return client.get(reverse(name, args=arguments)).content.decode()


def test_settings_that_switch_a_model_off_are_an_alarm_on_every_page_of_it(
    as_operator: Client, valkey: redis.Redis
) -> None:
    model = LanguageModelFactory(name="org/large", kv_budget_mib=16, kv_capacity_tokens=0)
    alarm = "org/large: there is KV memory for 0 tokens of prompt and answer"
    listed = "admin:inference_languagemodel_changelist"
    page = "admin:inference_languagemodel_change"
    for text in (_text(as_operator, NOW), _text(as_operator, page, model.pk)):
        assert alarm in text
        assert "The KV budget is 16.0\xa0MiB. Raise the KV budget" in text
    assert "Too little KV memory" in _text(as_operator, listed)
    LanguageModel.objects.update(kv_capacity_tokens=2000)
    assert alarm not in _text(as_operator, NOW)
    for text in (_text(as_operator, page, model.pk), _text(as_operator, listed)):
        assert alarm not in text
        assert "Too little KV memory" not in text
        assert "2,000 tokens" in text


@pytest.mark.parametrize(
    ("changes", "alarms"),
    [
        ({"kv_capacity_tokens": None}, False),
        ({"kv_capacity_tokens": 1023}, True),
        ({"kv_capacity_tokens": 1024}, False),
        # A short context is no fault of the memory's.
        ({"kv_capacity_tokens": 512, "context_length": 512}, False),
        ({"kv_capacity_tokens": 511, "context_length": 512}, True),
        ({"kv_capacity_tokens": 0, "retired_at": timezone.now()}, False),
    ],
)
def test_it_is_one_where_an_answer_of_the_default_length_finds_no_memory(
    changes: dict[str, Any], alarms: bool
) -> None:
    model = LanguageModel(**{"name": "m", "context_length": 4096, "default_max_tokens": 1024, **changes})
    assert bool(kv_alarm(model, [])) == model.lacks_kv_memory == alarms


@pytest.mark.parametrize(
    ("settings", "slot_bytes", "cause", "remedy"),
    [
        (
            {"kv_budget_mib": 16},
            0,
            "The KV budget is 16.0\xa0MiB.",
            "Raise the KV budget (it is in MiB: 16 GiB are 16384).",
        ),
        (
            {"kv_budget_mib": 8192, "slots": 256},
            32 * MIB,
            "The KV budget is 8.0\xa0GiB; 8.0\xa0GiB of it are set aside for 256 slots.",
            "Raise the KV budget (it is in MiB: 16 GiB are 16384), or lower the slots.",
        ),
        ({"slots": 1}, MIB, "what its device's memory leaves; 1.0\xa0MiB", "Give the worker more memory."),
        (
            {"draft_model": LanguageModel(name="small")},
            0,
            "The KV budget is empty, so that the worker takes what its device's memory leaves.",
            "Give the worker more memory, or choose a drafter that is no model.",
        ),
    ],
)
def test_it_names_the_settings_that_leave_too_little_and_what_to_do(
    settings: dict[str, Any], slot_bytes: int, cause: str, remedy: str
) -> None:
    model = LanguageModel(
        name="m", context_length=4096, default_max_tokens=1024, kv_capacity_tokens=0, **settings
    )
    beats = [
        make_heartbeat(time.time(), slot_bytes=slot_bytes),
        make_heartbeat(time.time(), model="another", slot_bytes=999 * MIB),
    ]
    text = kv_alarm(model, beats)
    assert cause in text
    assert text.endswith(remedy)
    assert "as its workers reckoned" not in text
    assert "as its workers reckoned" in kv_alarm(model, None)


def test_what_its_worker_tells_is_in_the_alarm(as_operator: Client, valkey: redis.Redis) -> None:
    model = LanguageModelFactory(slots=256, kv_budget_mib=1024, kv_capacity_tokens=0)
    heartbeats.beat(valkey, make_heartbeat(time.time(), model=model.name, slot_bytes=4 * MIB))
    assert "set aside for 256 slots" in _text(as_operator, NOW)
