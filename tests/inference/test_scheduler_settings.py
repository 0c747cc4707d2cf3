"""What a worker schedules by: an operator's settings, and never less fair ones by mistake."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError, connection, transaction
from django.utils import timezone
from structlog.testing import capture_logs

from accounts.models import AuditEvent
from inference import scheduler_settings
from inference.language_models import change_settings
from inference.models import DrafterKind, LanguageModel, Speculation
from inference.scheduler_settings import SchedulerSettings, SpeculationSettings, settings_of
from inference.scheduling.speculation import SpeculationMode
from inference.scheduling.tick import PrefillLimits
from tests.factories import ACTOR, LanguageModelFactory

MIB = 2**20

SETTINGS: dict[str, Any] = {
    "slots": 8,
    "kv_budget_mib": None,
    "kv_watermark_percent": 5,
    "prefix_cache_mib": None,
    "prefill_chunk_tokens": 256,
    "longest_stall_ms": None,
    "prefill_interval": 4,
    "itl_target": None,
    "lane_floor": 4,
    "preemption": True,
    "speculation": "measured",
    "drafter": "suffix_pool",
    "draft_model": None,
    "draft_tokens": 4,
    "grant_rounds": 8,
    "speculate_undecided": True,
    "default_max_tokens": 1024,
}

FAIR = settings_of(LanguageModel(name="new"))


@pytest.fixture(autouse=True)
def _nothing_was_reported_before() -> None:
    scheduler_settings._report.cache_clear()


def test_a_new_model_is_scheduled_fairly() -> None:
    assert FAIR.limits.interval > 0
    assert (FAIR.lane_floor, FAIR.preemption, FAIR.kv_watermark_percent) == (4, True, 5)
    assert (FAIR.kv_budget_bytes, FAIR.prefix_cache_bytes) == (None, None)


def test_a_new_model_speculates_where_it_was_measured_to_pay_and_everybody_gets_a_turn() -> None:
    assert FAIR.speculation == SpeculationSettings(
        mode=SpeculationMode.MEASURED,
        drafter=DrafterKind.SUFFIX_POOL,
        draft_model=None,
        draft_model_dir=None,
        draft_tokens=4,
        grant_rounds=8,
        speculate_undecided=True,
    )
    assert FAIR.speculation.drafter_key == "suffix_pool"


def test_settings_are_what_the_operator_set_in_the_scheduler_s_units() -> None:
    model = LanguageModel(
        name="m",
        slots=3,
        kv_budget_mib=100,
        kv_watermark_percent=7,
        prefix_cache_mib=0,
        prefill_chunk_tokens=64,
        longest_stall_ms=200,
        prefill_interval=9,
        itl_target=1.5,
        lane_floor=2,
        preemption=False,
        speculation="on",
        drafter="draft_model",
        draft_model=LanguageModel(name="small", directory="models/small"),
        draft_tokens=16,
        grant_rounds=0,
        speculate_undecided=False,
    )
    settings = settings_of(model)
    assert settings.speculation.drafter_key == "draft_model:small"
    assert settings == SchedulerSettings(
        slots=3,
        limits=PrefillLimits(chunk_tokens=64, interval=9),
        longest_stall_ms=200,
        itl_target=1.5,
        kv_budget_bytes=100 * MIB,
        kv_watermark_percent=7,
        prefix_cache_bytes=0,
        preemption=False,
        lane_floor=2,
        speculation=SpeculationSettings(
            mode=SpeculationMode.ON,
            drafter=DrafterKind.DRAFT_MODEL,
            draft_model="small",
            draft_model_dir="models/small",
            draft_tokens=16,
            grant_rounds=0,
            speculate_undecided=False,
        ),
    )


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("slots", 0),
        ("slots", 100_000),
        ("slots", "eight"),
        ("slots", None),
        ("kv_budget_mib", 0),
        ("kv_watermark_percent", 90),
        ("prefix_cache_mib", -1),
        ("prefill_chunk_tokens", 0),
        ("prefill_chunk_tokens", 8192),
        ("prefill_interval", -1),
        ("longest_stall_ms", 0),
        ("itl_target", 1.0),
        ("itl_target", float("nan")),
        ("itl_target", float("inf")),
        ("lane_floor", 0),
        ("preemption", "perhaps"),
        ("speculation", "sometimes"),
        ("speculation", ""),
        ("drafter", "oracle"),
        ("drafter", "draft_model"),
        ("draft_tokens", 0),
        ("draft_tokens", 17),
        ("grant_rounds", -1),
        ("grant_rounds", 257),
        ("speculate_undecided", "perhaps"),
    ],
)
def test_what_cannot_be_used_becomes_the_fair_default_and_is_logged_once(setting: str, value: Any) -> None:
    with capture_logs() as logs:
        for _ in range(3):
            assert settings_of(LanguageModel(name="m", **{setting: value})) == FAIR
    [entry] = logs
    assert (entry["event"], entry["log_level"]) == ("scheduler_setting_unusable", "error")
    if value != "draft_model":  # which can be used; that no draft model is named cannot
        assert (entry["model"], entry["setting"], entry["value"]) == ("m", setting, repr(value))


def test_a_draft_model_that_cannot_draft_is_replaced_by_the_default_drafter_and_never_by_none() -> None:
    retired = LanguageModel(name="small", retired_at=timezone.now())
    itself = LanguageModel(name="m", drafter="draft_model")
    itself.draft_model = itself
    for model in (LanguageModel(name="m", drafter="draft_model", draft_model=retired), itself):
        with capture_logs() as logs:
            assert settings_of(model) == FAIR
        [entry] = logs
        assert (entry["setting"], entry["used"]) == ("draft_model", "'suffix_pool'")


def test_no_drafter_and_no_speculation_are_what_an_operator_may_choose() -> None:
    with capture_logs() as logs:
        settings = settings_of(LanguageModel(name="m", drafter="", speculation="off")).speculation
    assert (settings.drafter, settings.mode, logs) == (DrafterKind.NONE, SpeculationMode.OFF, [])


def test_an_unusable_target_does_not_fall_back_to_starving_prompts() -> None:
    assert settings_of(LanguageModel(name="m", prefill_interval=0)).limits.interval == 0
    assert settings_of(LanguageModel(name="m", prefill_interval=0, itl_target=0.5)) == FAIR


def test_a_prefix_cache_is_never_larger_than_the_budget_it_lies_in() -> None:
    settings = settings_of(LanguageModel(name="m", kv_budget_mib=10, prefix_cache_mib=11))
    assert settings.prefix_cache_bytes == settings.kv_budget_bytes == 10 * MIB


@pytest.mark.django_db
def test_what_was_written_past_everything_is_read_as_the_fair_default() -> None:
    model = LanguageModelFactory()
    LanguageModel.objects.filter(id=model.id).update(slots=30_000, prefill_chunk_tokens=100_000)
    model.refresh_from_db()
    assert settings_of(model) == FAIR


@pytest.mark.django_db
@pytest.mark.parametrize(
    "changes",
    [
        {"kv_budget_mib": 0},
        {"kv_watermark_percent": 51},
        {"kv_budget_mib": 10, "prefix_cache_mib": 11},
        {"longest_stall_ms": 0},
        {"itl_target": 1.0},
        {"itl_target": 101.0},
        {"lane_floor": 0},
        {"lane_floor": 65},
        {"speculation": "sometimes"},
        {"drafter": "oracle"},
        {"drafter": "draft_model"},
        {"draft_tokens": 0},
        {"draft_tokens": 17},
        {"grant_rounds": 257},
    ],
)
def test_the_database_refuses_settings_out_of_range(changes: dict[str, Any]) -> None:
    model = LanguageModelFactory()
    with pytest.raises(IntegrityError), transaction.atomic():
        LanguageModel.objects.filter(id=model.id).update(**changes)


@pytest.mark.django_db
def test_the_database_takes_a_cache_of_any_size_beside_a_budget_that_the_worker_chooses() -> None:
    LanguageModelFactory(prefix_cache_mib=1024)
    LanguageModelFactory(kv_budget_mib=1024, prefix_cache_mib=1024)
    assert connection.check_constraints() is None


@pytest.mark.django_db
def test_the_database_takes_a_draft_model_where_it_drafts_only_and_never_the_model_itself() -> None:
    model, small = LanguageModelFactory(), LanguageModelFactory()
    row = LanguageModel.objects.filter(id=model.id)
    for changes in (
        {"drafter": "suffix_pool", "draft_model": small},
        {"drafter": "", "draft_model": small},
        {"drafter": "draft_model", "draft_model": model},
    ):
        with pytest.raises(IntegrityError), transaction.atomic():
            row.update(**changes)
    assert row.update(drafter="draft_model", draft_model=small) == 1


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"slots": 0}, "slots"),
        ({"itl_target": 1.0}, "itl_target"),
        ({"kv_budget_mib": 10, "prefix_cache_mib": 11}, "prefix_cache_mib"),
        ({"prefill_interval": 0}, "prefill_interval"),
        ({"speculation": "sometimes"}, "speculation"),
        ({"drafter": "oracle"}, "drafter"),
        ({"drafter": "draft_model"}, "draft_model"),
        ({"draft_tokens": 17}, "draft_tokens"),
        ({"grant_rounds": 257}, "grant_rounds"),
    ],
)
def test_a_refused_change_changes_and_records_nothing(changes: dict[str, Any], field: str) -> None:
    model = LanguageModelFactory()
    with pytest.raises(ValidationError) as refusal:
        change_settings(model=model, actor=ACTOR, **{**SETTINGS, "slots": 5, **changes})
    assert refusal.value.message_dict.keys() == {field}
    model.refresh_from_db()
    assert model.slots == 8
    assert not AuditEvent.objects.exists()


@pytest.mark.django_db
def test_a_confirmed_starvation_is_recorded_like_any_change() -> None:
    model = LanguageModelFactory()
    changed = change_settings(
        model=model, actor=ACTOR, **{**SETTINGS, "prefill_interval": 0}, may_starve_prompts=True
    )
    assert changed.starves_prompts
    event = AuditEvent.objects.get()
    assert event.after is not None
    assert event.after["prefill_interval"] == 0


def test_the_rows_and_the_rules_have_the_same_modes() -> None:
    assert Speculation.values == [mode.value for mode in SpeculationMode]
