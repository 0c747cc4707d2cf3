"""The form in which an operator sets how a model is scheduled."""

from __future__ import annotations

import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import redis
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from accounts.audit.reading import disclose
from accounts.models import AuditEvent
from inference import language_models
from inference.admin.scheduler_form import FOLLOWED, in_use
from inference.dispatch import heartbeats
from inference.messages import Heartbeat, SlotHolder, SlotSnapshot
from inference.models import LanguageModel
from signalbox import store
from tests.factories import LanguageModelFactory
from tests.fixtures.admin import save
from tests.heartbeats import make_heartbeat, make_snapshot
from tests.inference.engine.tiny_model import make_tiny_model

#: What a browser sends for a new model that nobody has touched; an unticked box is not sent.
UNTOUCHED = {
    "slots": "8",
    "kv_budget_mib": "",
    "kv_watermark_percent": "5",
    "prefix_cache_mib": "",
    "prefill_chunk_tokens": "256",
    "longest_stall_ms": "",
    "prefill_interval": "4",
    "itl_target": "",
    "lane_floor": "4",
    "preemption": "on",
    "speculation": "measured",
    "drafter": "suffix_pool",
    "draft_model": "",
    "draft_tokens": "4",
    "grant_rounds": "8",
    "speculate_undecided": "on",
    "default_max_tokens": "1024",
}


def _page(model: LanguageModel) -> str:
    return reverse("admin:inference_languagemodel_change", args=(model.pk,))


def _save(client: Client, model: LanguageModel, **changes: Any) -> Any:
    return save(client, _page(model), {**UNTOUCHED, **changes})


def _errors(answer: Any) -> dict[str, list[str]]:
    assert answer.status_code == 200
    return dict(answer.context["adminform"].form.errors)


def _beat(model: LanguageModel, worker: str = "a" * 32, **scheduler: Any) -> Heartbeat:
    now = time.time()
    snapshot: dict[str, Any] = {
        "interval": 9,
        "decode_ms": 5.0,
        "chunk_ms": 90.0,
        "kv_budget": 512 * 2**20,
        "kv_watermark": 26 * 2**20,
        "kv_cache_budget": 128 * 2**20,
        "lane_floor": 7,
        "preemption": False,
    }
    return make_heartbeat(
        now,
        worker=worker,
        model=model.name,
        slots=3,
        scheduler=make_snapshot(now, **{**snapshot, **scheduler}),
    )


def test_saving_what_is_there_changes_and_records_nothing(as_operator: Client) -> None:
    model = LanguageModelFactory()
    assert _save(as_operator, model).status_code == 302
    assert not AuditEvent.objects.exists()


def test_every_setting_is_changed_and_audited_with_what_it_was(as_operator: Client) -> None:
    model = LanguageModelFactory()
    values = {
        "slots": 4,
        "kv_budget_mib": 2048,
        "kv_watermark_percent": 10,
        "prefix_cache_mib": 0,
        "prefill_chunk_tokens": 128,
        "longest_stall_ms": 250,
        "prefill_interval": 2,
        "itl_target": 1.5,
        "lane_floor": 8,
        "speculation": "on",
        "drafter": "",
        "draft_tokens": 3,
        "grant_rounds": 0,
        "default_max_tokens": 256,
    }
    answer = save(as_operator, _page(model), values)  # boxes that are not ticked are not sent
    assert answer.status_code == 302, _errors(answer)
    model.refresh_from_db()
    assert {name: getattr(model, name) for name in language_models.SETTINGS} == {
        **values,
        "preemption": False,
        "draft_model": None,
        "speculate_undecided": False,
    }
    event = AuditEvent.objects.get()
    assert (event.action, disclose(event).actor_name) == ("scheduler_settings.change", "operator")
    assert event.before is not None
    assert event.after is not None
    assert (event.before["itl_target"], event.after["itl_target"]) == (None, "1.5")
    assert (event.before["preemption"], event.after["preemption"]) == (True, False)


@pytest.mark.parametrize(
    "changes",
    [
        {"slots": 0},
        {"slots": 257},
        {"slots": "many"},
        {"prefill_chunk_tokens": 0},
        {"prefill_interval": 4097},
        {"longest_stall_ms": 0},
        {"itl_target": 1},
        {"itl_target": 0.5},
        {"itl_target": "nan"},
        {"kv_budget_mib": 0},
        {"kv_watermark_percent": 51},
        {"prefix_cache_mib": -1},
        {"lane_floor": 0},
        {"lane_floor": 65},
        {"speculation": "sometimes"},
        {"drafter": "oracle"},
        {"draft_tokens": 0},
        {"draft_tokens": 17},
        {"grant_rounds": 257},
        {"default_max_tokens": 0},
    ],
)
def test_settings_out_of_range_are_refused_at_their_field(
    as_operator: Client, changes: dict[str, Any]
) -> None:
    model = LanguageModelFactory()
    assert _errors(_save(as_operator, model, **changes)).keys() == changes.keys()
    assert not AuditEvent.objects.exists()


def test_a_prefix_cache_larger_than_the_budget_is_refused_with_the_budget(as_operator: Client) -> None:
    errors = _errors(_save(as_operator, LanguageModelFactory(), kv_budget_mib=100, prefix_cache_mib=101))
    assert errors == {"prefix_cache_mib": ["It lies within the KV budget, which is 100 MiB: at most that."]}


def test_streams_starve_prompts_only_after_a_confirmation(as_operator: Client) -> None:
    model = LanguageModelFactory()
    [message] = _errors(_save(as_operator, model, prefill_interval=0))["prefill_interval"]
    assert "Confirm" in message
    model.refresh_from_db()
    assert not model.starves_prompts

    assert _save(as_operator, model, prefill_interval=0, may_starve_prompts="on").status_code == 302
    model.refresh_from_db()
    assert model.starves_prompts
    # Confirmed once: what is changed beside it later needs no second confirmation.
    assert _save(as_operator, model, prefill_interval=0, slots=2).status_code == 302


def test_an_interval_of_0_that_a_target_replaces_starves_nobody(as_operator: Client) -> None:
    model = LanguageModelFactory()
    assert _save(as_operator, model, prefill_interval=0, itl_target=1.5).status_code == 302
    # Taking the target away would.
    assert _errors(_save(as_operator, model, prefill_interval=0)).keys() == {"prefill_interval"}


def test_starving_prompts_is_warned_of_as_long_as_it_holds(as_operator: Client) -> None:
    model = LanguageModelFactory(prefill_interval=0)
    listed = reverse("admin:inference_languagemodel_changelist")
    assert "Streams starve prompts" in as_operator.get(listed).content.decode()
    assert "no new prompt is run, and requests wait" in as_operator.get(_page(model)).content.decode()
    _save(as_operator, model)
    assert "Streams starve prompts" not in as_operator.get(listed).content.decode()
    assert "no new prompt is run, and requests wait" not in as_operator.get(_page(model)).content.decode()


def test_beside_each_setting_stands_what_the_workers_use(as_operator: Client, valkey: redis.Redis) -> None:
    model = LanguageModelFactory()
    page = as_operator.get(_page(model))
    # The length of an answer is the web's: no worker reads it.
    followed = [setting for setting in language_models.SETTINGS if setting != "default_max_tokens"]
    assert set(FOLLOWED) == set(followed)
    assert page.content.decode().count("no worker runs") == len(followed)

    heartbeats.beat(valkey, _beat(model))
    heartbeats.beat(valkey, _beat(LanguageModelFactory(), "b" * 32, chunk=4096))
    text = as_operator.get(_page(model)).content.decode()
    for value in (
        "64 tokens",
        "90 ms a chunk",
        "9 ticks",
        "3.0 times beside one prompt",
        "512.0\xa0MiB",
        "26.0\xa0MiB",
        "128.0\xa0MiB",
        "off",
    ):
        assert f">{value}<" in text
    assert "4,096 tokens" not in text

    heartbeats.beat(valkey, _beat(model, "c" * 32, chunk=128))
    assert ">64 tokens, 128 tokens<" in as_operator.get(_page(model)).content.decode()


def test_beside_speculation_stands_what_the_workers_measured(
    as_operator: Client, valkey: redis.Redis
) -> None:
    model = LanguageModelFactory()
    holder = SlotHolder(generation="g", tenant="t", lane="normal", budget=6)
    slot = SlotSnapshot(
        holder=holder, drafter="suffix_pool", draft_length=3, state="settled", verdict="declined", speedup=0.9
    )
    heartbeats.beat(valkey, _beat(model, slot=slot))
    text = as_operator.get(_page(model)).content.decode()
    for value in ("it does not pay, 0.90 times as fast", "Suffix pool", "3 tokens", "6 rounds"):
        assert f">{value}<" in text
    heartbeats.beat(valkey, _beat(model, slot=SlotSnapshot(state="profiling", samples=1, draft_length=1)))
    text = as_operator.get(_page(model)).content.decode()
    for value in ("measuring: 1 generation timed", "1 token"):
        assert f">{value}<" in text


@pytest.mark.parametrize(
    ("told", "drafter", "draft_model", "undecided"),
    [
        (
            {"drafter": "draft_model:org/small", "speculate_undecided": False},
            "Draft model org/small",
            "org/small",
            "off",
        ),
        ({"drafter": "prompt_lookup", "speculate_undecided": True}, "Prompt lookup", "–", "on"),
        ({"drafter_fault": "It cannot be loaded."}, "None. It cannot be loaded.", "–", "–"),
    ],
)
def test_beside_the_drafter_stands_the_one_that_workers_have_whatever_is_set(
    told: dict[str, Any], drafter: str, draft_model: str, undecided: str
) -> None:
    beats = [_beat(LanguageModel(name="m"), slot=SlotSnapshot(state="settled", **told))]
    shown = [in_use(setting, beats) for setting in ("drafter", "draft_model", "speculate_undecided")]
    assert shown == [drafter, draft_model, undecided]


def test_a_draft_model_of_the_same_vocabulary_is_chosen_and_another_is_refused_at_its_field(
    as_operator: Client, tmp_path: Path
) -> None:
    model, small, foreign = (
        LanguageModelFactory(name=name, directory=str(make_tiny_model(tmp_path / name)))
        for name in ("large", "small", "foreign")
    )
    file = tmp_path / "foreign" / "tokenizer.json"
    file.write_text(file.read_text().replace("<|im_end|>", "<|eot_id|>"))
    [message] = _errors(_save(as_operator, model, drafter="draft_model", draft_model=foreign.pk))[
        "draft_model"
    ]
    assert "foreign has another vocabulary than large" in message
    [message] = _errors(_save(as_operator, model, drafter="draft_model"))["draft_model"]
    assert message == "Choose the model that guesses, or another drafter."
    [message] = _errors(_save(as_operator, model, draft_model=small.pk))["draft_model"]
    assert message == "The drafter is not a draft model: choose that one, or name no model here."
    assert _save(as_operator, model, drafter="draft_model", draft_model=small.pk).status_code == 302
    model.refresh_from_db()
    assert model.draft_model == small
    retiring = as_operator.get(reverse("admin:inference_languagemodel_retire", args=(small.pk,)))
    assert "It no longer drafts for large" in retiring.content.decode()


def test_retired_models_and_the_model_itself_are_not_offered_as_draft_models(as_operator: Client) -> None:
    model, other = LanguageModelFactory(), LanguageModelFactory()
    LanguageModelFactory(retired_at=timezone.now())
    choices = as_operator.get(_page(model)).context["adminform"].form.fields["draft_model"].queryset
    assert list(choices) == [other]


@pytest.mark.slow
def test_the_form_works_while_valkey_is_away(as_operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = redis.Redis(unix_socket_path="/nowhere/valkey.sock")
    monkeypatch.setattr(store, "shared_client", lambda: nowhere)
    model = LanguageModelFactory()
    assert "Valkey cannot be reached" in as_operator.get(_page(model)).content.decode()


def test_who_may_only_look_sees_settings_and_what_is_in_use(as_onlooker: Client, valkey: redis.Redis) -> None:
    model = LanguageModelFactory(itl_target=1.7)
    heartbeats.beat(valkey, _beat(model))
    text = as_onlooker.get(_page(model)).content.decode()
    assert ">1.7<" in text
    assert ">64 tokens<" in text
    assert _save(as_onlooker, model, slots=2).status_code == 403


#: What each field says that it gives, and what that costs. What gives in one direction costs in the other.
EXPLAINED = {
    "slots": (
        "more is produced in all",
        "each stream is slower, and each takes as much of the KV budget as the longest",
    ),
    "kv_budget_mib": (
        "more and longer generations run together",
        "nothing is left for the weights and the system",
    ),
    "kv_watermark_percent": ("running streams are disturbed less often", "Lower: more is admitted"),
    "prefix_cache_mib": ("the next turn of a chat does not run them again", "more memory is taken"),
    "prefill_chunk_tokens": ("prompts are done sooner", "streams wait while a chunk is run"),
    "longest_stall_ms": ("Longer: prompts are done sooner", "Shorter: streams run more evenly"),
    "prefill_interval": ("Higher: smoother streams", "Lower: earlier first tokens"),
    "itl_target": ("Nearer to 1: smoother streams", "Higher: earlier first tokens"),
    "may_starve_prompts": ("streams run as if alone", "no new prompt is run, and whoever sent it waits"),
    "lane_floor": ("low lanes wait less", "high lanes are held up less often"),
    "preemption": ("it is served at once", "at the cost of running them once more"),
    "speculation": ("comes sooner", "at the cost of work for guesses that do not hold"),
    "drafter": ("it guesses best", "takes memory and time for each guess"),
    "draft_model": ("more guesses hold", "less memory on every worker"),
    "draft_tokens": ("more is gained where guesses hold", "less is run in vain where they do not"),
    "grant_rounds": ("the drafter changes hands less often", "streams that wait for it wait less"),
    "speculate_undecided": ("answers may come a little sooner", "no guess is run in vain"),
    "default_max_tokens": ("fewer answers are cut off", "holds back less of its budget and of the KV memory"),
}


class _Helps(HTMLParser):
    """The text of each element that describes a field, by the id that the field points to."""

    def __init__(self) -> None:
        super().__init__()
        self.by_id: dict[str, str] = {}
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._open:
            self._open.append(self._open[-1])
        elif tag == "div" and (id_ := dict(attrs).get("id") or "").endswith("_helptext"):
            self._open.append(id_)

    def handle_endtag(self, tag: str) -> None:
        if self._open:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        if self._open:
            self.by_id[self._open[-1]] = self.by_id.get(self._open[-1], "") + data


def test_each_setting_says_on_the_page_what_it_gives_and_what_it_costs(as_operator: Client) -> None:
    assert EXPLAINED.keys() == {*language_models.SETTINGS, "may_starve_prompts"}
    page = _Helps()
    page.feed(as_operator.get(_page(LanguageModelFactory())).content.decode())
    for field, parts in EXPLAINED.items():
        said = " ".join(page.by_id[f"id_{field}_helptext"].split())
        assert [part for part in parts if part not in said] == [], field
