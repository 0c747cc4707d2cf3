from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponseBase
from django.template.response import TemplateResponse
from django.urls import path
from unfold.decorators import action, display
from unfold.enums import ActionVariant

from accounts.actors import actor_of
from accounts.admin.base import Question, SiteModelAdmin
from accounts.admin.filters import RetiredFilter
from accounts.formatting import EMPTY, code, counted, exactly, file_size, number
from inference import language_models, speculation_verdicts
from inference.admin.kv_alarm import kv_alarm
from inference.admin.now import living
from inference.admin.scheduler import scheduler_now
from inference.admin.scheduler_form import FOLLOWED, SchedulerForm, in_use
from inference.admin.speculation_verdicts import VerdictsOfModel
from inference.models import LanguageModel


def _in_use(setting: str) -> Callable[[Any, Any], str]:
    """A read-only field of the page: what the model's workers use for ``setting`` now."""

    def shown(page: Any, model: Any) -> str:
        return in_use(setting, model.beats)

    shown.short_description = "In use now"  # type: ignore[attr-defined]
    return shown


def _drafts_no_longer(model: LanguageModel) -> list[str]:
    """What retiring it means for those that it drafts for."""
    names = ", ".join(model.drafts_for.values_list("name", flat=True))
    return (
        [f"It no longer drafts for {names}: the suffix pool does instead, until you choose."] if names else []
    )


def _rows(*settings: str) -> tuple[tuple[str, str], ...]:
    return tuple((setting, f"{setting}_in_use") for setting in settings)


@admin.register(LanguageModel)
class LanguageModelAdmin(SiteModelAdmin):
    may_change = True
    form = SchedulerForm
    change_form_outer_before_template = "admin/model_alarms.html"

    class Media:
        css = {"all": ("signalbox/admin/scheduler.css",)}

    list_before_template = "admin/adding_models.html"
    list_display = ("named", "state", "serving", "context", "longest", "weights", "size", "slots")
    list_display_links = ("named",)
    list_filter = (RetiredFilter, "architecture", "quantization")
    search_fields = ("name", "architecture", "source")
    search_help_text = "By name, architecture or source"
    inlines = (VerdictsOfModel,)
    actions_detail = ("scheduler", "profile_again", "retire")
    fieldsets = (
        (
            "Room",
            {
                "fields": (
                    *_rows("slots", "kv_budget_mib", "kv_watermark_percent", "prefix_cache_mib"),
                    "longest",
                ),
                "description": "How much runs at once. Beside each setting: what the running workers use. They follow "
                "a change within seconds, between two ticks; every change is in the audit.",
            },
        ),
        (
            "Prompts next to streams",
            {
                "fields": (
                    *_rows("prefill_chunk_tokens", "longest_stall_ms", "prefill_interval", "itl_target"),
                    "may_starve_prompts",
                ),
                "description": "While a chunk of a prompt is run, all streams wait. The chunk sets how long, the "
                "interval how often. Set both by numbers, or say what streams may suffer and let the worker measure.",
            },
        ),
        (
            "Lanes",
            {
                "fields": _rows("lane_floor", "preemption"),
                "description": "High lanes go first. The floor sees to it that low ones get on as well, and only "
                "strictly higher lanes displace anything.",
            },
        ),
        (
            "Speculation",
            {
                "fields": _rows(
                    "speculation",
                    "drafter",
                    "draft_model",
                    "draft_tokens",
                    "grant_rounds",
                    "speculate_undecided",
                ),
                "description": "A drafter guesses what comes next, and the model verifies several guesses in one step. "
                "Where they hold the answer comes sooner, and it is always the same answer. One stream at a time has "
                "the drafter. What was measured stands under Speculation verdicts.",
            },
        ),
        (
            "Answers",
            {
                "fields": ("default_max_tokens",),
                "description": "Holds for the next request.",
            },
        ),
        (
            "What it is",
            {
                "fields": ("name", "state", "architecture", "context", "weights", "size", "chat"),
                "description": "Read from the model's files when it was prepared. Models are added and prepared on "
                "the command line: manage.py model add.",
            },
        ),
        ("Where it came from", {"fields": ("source", "directory", "checksum_code", "added", "retired")}),
    )
    readonly_fields = (
        *(f"{setting}_in_use" for setting in FOLLOWED),
        "longest",
        "name",
        "state",
        "architecture",
        "context",
        "weights",
        "size",
        "chat",
        "source",
        "directory",
        "checksum_code",
        "added",
        "retired",
    )

    slots_in_use = _in_use("slots")
    kv_budget_mib_in_use = _in_use("kv_budget_mib")
    kv_watermark_percent_in_use = _in_use("kv_watermark_percent")
    prefix_cache_mib_in_use = _in_use("prefix_cache_mib")
    prefill_chunk_tokens_in_use = _in_use("prefill_chunk_tokens")
    longest_stall_ms_in_use = _in_use("longest_stall_ms")
    prefill_interval_in_use = _in_use("prefill_interval")
    itl_target_in_use = _in_use("itl_target")
    lane_floor_in_use = _in_use("lane_floor")
    preemption_in_use = _in_use("preemption")
    speculation_in_use = _in_use("speculation")
    drafter_in_use = _in_use("drafter")
    draft_model_in_use = _in_use("draft_model")
    draft_tokens_in_use = _in_use("draft_tokens")
    grant_rounds_in_use = _in_use("grant_rounds")
    speculate_undecided_in_use = _in_use("speculate_undecided")

    @display(description="Model", header=True, ordering="name")
    def named(self, model: LanguageModel) -> list[str]:
        return [model.name, model.architecture]

    @display(
        description="State",
        label={
            "Offered": "success",
            "Retired": "warning",
            "Too little KV memory": "danger",
            "Streams starve prompts": "danger",
        },
    )
    def state(self, model: LanguageModel) -> str:
        if model.retired_at:
            return "Retired"
        if model.lacks_kv_memory:
            return "Too little KV memory"
        return "Streams starve prompts" if model.starves_prompts else "Offered"

    @display(description="Workers now")
    def serving(self, model: Any) -> str:
        return EMPTY if model.living_workers is None else number(model.living_workers)

    @display(description="Context", ordering="context_length")
    def context(self, model: LanguageModel) -> str:
        return f"{number(model.context_length)} tokens"

    @display(description="Longest sequence")
    def longest(self, model: LanguageModel) -> str:
        """Of prompt and answer together, as the workers' memory and the context allow it."""
        return EMPTY if model.kv_capacity_tokens is None else f"{number(model.longest_sequence)} tokens"

    @display(description="Weights", ordering="quantization")
    def weights(self, model: LanguageModel) -> str:
        return model.quantization or model.dtype

    @display(description="Size", ordering="size_bytes")
    def size(self, model: LanguageModel) -> str:
        return file_size(model.size_bytes)

    @display(description="Chats", boolean=True)
    def chat(self, model: LanguageModel) -> bool:
        return model.has_chat_template

    @display(description="Checksum")
    def checksum_code(self, model: LanguageModel) -> str:
        return code(model.checksum)

    @display(description="Added")
    def added(self, model: LanguageModel) -> str:
        return exactly(model.created_at)

    @display(description="Retired")
    def retired(self, model: LanguageModel) -> str:
        return exactly(model.retired_at) if model.retired_at else EMPTY

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        page = super().get_changelist_instance(request)
        page.result_list = list(page.result_list)
        beats = living()
        for model in page.result_list:
            model.living_workers = None if beats is None else sum(beat.model == model.name for beat in beats)
        return page

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        model = super().get_object(request, object_id, from_field)
        if model is not None:
            beats = living()
            model.beats = None if beats is None else [beat for beat in beats if beat.model == model.name]
            model.kv_alarm = kv_alarm(model, beats)
        return model

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        values = {name: form.cleaned_data[name] for name in (*language_models.SETTINGS, "may_starve_prompts")}
        language_models.change_settings(model=obj, **values, actor=actor_of(request))

    def get_actions_detail(self, request: HttpRequest, object_id: Any) -> list[Any]:
        model = self.get_object(request, object_id)
        hidden = set()
        if model is None or model.retired_at is not None:
            hidden.add("retire")
        if model is None or not model.speculation_verdicts.exists():
            hidden.add("profile_again")
        return [
            item
            for item in super().get_actions_detail(request, object_id)
            if item.method.original_function_name not in hidden
        ]

    def get_urls(self) -> list[Any]:
        every = self.admin_site.admin_view(self.every_scheduler)
        return [path("scheduler/", every, name="inference_scheduler"), *super().get_urls()]

    def every_scheduler(self, request: HttpRequest) -> HttpResponseBase:
        """The schedulers of all models that are offered, and of the retired ones that have something to do."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        return self._schedulers(request, language_models.in_service(living() or ()), title="Scheduler")

    @action(description="Scheduler now", icon="speed", url_path="scheduler", permissions=["view"])
    def scheduler(self, request: HttpRequest, object_id: str) -> HttpResponseBase:
        model = self.object_or_404(request, object_id)
        return self._schedulers(request, [model], title=f"Scheduler of {model}")

    def _schedulers(
        self, request: HttpRequest, models: list[LanguageModel], *, title: str
    ) -> HttpResponseBase:
        now = scheduler_now(models)
        if request.headers.get("HX-Request"):
            return TemplateResponse(request, "admin/scheduler_panels.html", {"scheduler": now})
        context = {**self.admin_site.each_context(request), "title": title, "scheduler": now}
        return TemplateResponse(request, "admin/scheduler.html", context)

    @action(description="Profile again", icon="refresh", url_path="profile-again", permissions=["operate"])
    def profile_again(self, request: HttpRequest, object_id: str) -> HttpResponseBase:
        model = self.object_or_404(request, object_id)
        question = Question(
            title=f"Measure anew whether speculation pays for {model}?",
            meaning=[
                "What was measured is forgotten, on every hardware and for every drafter. The next generations are "
                "timed, a few rounds of each; their answers stay the same.",
                "What runs is not disturbed.",
            ],
            submit="Profile again",
        )

        def forget(values: dict[str, Any]) -> str:
            count = speculation_verdicts.profile_again(model=model, actor=actor_of(request))
            return f"{counted(count, 'verdict')} of {model} forgotten: it is profiled again."

        return self.ask(request, model, question, forget)

    @action(
        description="Retire",
        icon="archive",
        url_path="retire",
        permissions=["operate"],
        variant=ActionVariant.DANGER,
    )
    def retire(self, request: HttpRequest, object_id: str) -> HttpResponseBase:
        model = self.object_or_404(request, object_id)
        question = Question(
            title=f"Retire {model}?",
            meaning=[
                "It is no longer offered, and requests for it are refused. What runs or waits keeps it and may finish.",
                "Adding it again on the command line offers it again.",
                *_drafts_no_longer(model),
            ],
            submit="Retire the model",
            danger=True,
        )

        def retire(values: dict[str, Any]) -> str:
            language_models.retire(model.name, actor=actor_of(request))
            return f"{model} is retired."

        return self.ask(request, model, question, retire)
