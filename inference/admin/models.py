from __future__ import annotations

from typing import Any, cast

from django.contrib import admin
from django.http import HttpRequest, HttpResponseBase
from django.template.defaultfilters import filesizeformat
from unfold.decorators import action, display
from unfold.enums import ActionVariant

from accounts.actors import actor_of
from accounts.admin.base import Question, SiteModelAdmin
from accounts.admin.filters import RetiredFilter
from accounts.formatting import EMPTY, code, exactly, number
from inference import language_models
from inference.admin.now import living
from inference.models import LanguageModel

_SETTINGS = ("slots", "prefill_chunk_tokens", "prefill_interval", "default_max_tokens")


@admin.register(LanguageModel)
class LanguageModelAdmin(SiteModelAdmin):
    may_change = True
    list_display = ("named", "state", "serving", "context", "weights", "size", "slots")
    list_display_links = ("named",)
    list_filter = (RetiredFilter, "architecture", "quantization")
    search_fields = ("name", "architecture", "source")
    search_help_text = "By name, architecture or source"
    actions_detail = ("retire",)
    fieldsets = (
        (
            "How workers schedule it",
            {
                "fields": _SETTINGS,
                "description": "A running worker follows a change within seconds: limits between two ticks, slots as "
                "they become free. Every change is in the audit.",
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

    @display(description="Model", header=True, ordering="name")
    def named(self, model: LanguageModel) -> list[str]:
        return [model.name, model.architecture]

    @display(description="State", label={"Offered": "success", "Retired": "warning"})
    def state(self, model: LanguageModel) -> str:
        return "Retired" if model.retired_at else "Offered"

    @display(description="Workers now")
    def serving(self, model: Any) -> str:
        return EMPTY if model.living_workers is None else number(model.living_workers)

    @display(description="Context", ordering="context_length")
    def context(self, model: LanguageModel) -> str:
        return f"{number(model.context_length)} tokens"

    @display(description="Weights", ordering="quantization")
    def weights(self, model: LanguageModel) -> str:
        return model.quantization or model.dtype

    @display(description="Size", ordering="size_bytes")
    def size(self, model: LanguageModel) -> str:
        return filesizeformat(model.size_bytes)

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

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        values = {name: form.cleaned_data[name] for name in _SETTINGS}
        language_models.change_settings(model=obj, **values, actor=actor_of(request))

    def get_actions_detail(self, request: HttpRequest, object_id: Any) -> list[Any]:
        model = self.get_object(request, object_id)
        offered = model is not None and model.retired_at is None
        return cast(list[Any], super().get_actions_detail(request, object_id)) if offered else []

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
            ],
            submit="Retire the model",
            danger=True,
        )

        def retire(values: dict[str, Any]) -> str:
            language_models.retire(model.name, actor=actor_of(request))
            return f"{model} is retired."

        return self.ask(request, model, question, retire)
