from __future__ import annotations

from typing import Any, cast

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponseBase
from django.template.defaultfilters import truncatechars
from unfold.decorators import action, display
from unfold.enums import ActionVariant

from accounts.actors import actor_of
from accounts.admin.base import Question, SiteModelAdmin
from accounts.admin.filters import EndedFilter
from accounts.formatting import ago, link, number, time_field
from inference import published_prefixes
from inference.models import LanguageModel, PublishedPrefix


class WithdrawnFilter(EndedFilter):
    """Of what was published."""

    ended_by = "withdrawn_at"
    words = ("Published", "Withdrawn")


@admin.register(PublishedPrefix)
class PublishedPrefixAdmin(SiteModelAdmin):
    may_add = True
    list_display = ("name", "model_link", "state", "size", "beginning", "since")
    list_filter = (WithdrawnFilter, ("language_model", admin.RelatedOnlyFieldListFilter))
    list_select_related = ("language_model",)
    search_fields = ("name", "language_model__name")
    search_help_text = "By name or model"
    actions_detail = ("withdraw",)
    add_fieldsets = (
        (
            None,
            {
                "description": "Tenants share nothing in a model's prefix cache, so that nobody can tell what others "
                "ask. A system prompt that you publish is the exception: the first request that begins with it runs "
                "it, and those that follow, of all tenants, find it. Use it for a long prompt that an application "
                "sends for everybody.",
                "fields": ("language_model", "name"),
            },
        ),
        (
            "What all share",
            {
                "description": "Every tenant can notice that this text is in use, by how soon an answer to it begins, "
                "and so find out that it is published. Publish nothing that one tenant wrote for itself, and nothing "
                "that is a secret.",
                "fields": ("text",),
            },
        ),
    )
    fieldsets = (
        (None, {"fields": ("name", "model_link", "state")}),
        ("What all share", {"fields": ("text", "size")}),
        ("When", {"fields": ("published_exactly", "withdrawn_exactly")}),
    )
    readonly_fields = ("model_link", "state", "size", "published_exactly", "withdrawn_exactly")
    published_exactly = time_field("published_at", "Published")
    withdrawn_exactly = time_field("withdrawn_at", "Withdrawn")

    @display(description="Model", ordering="language_model__name")
    def model_link(self, prefix: PublishedPrefix) -> str:
        return link(prefix.language_model)

    @display(description="State", label={"Published": "success", "Withdrawn": "warning"})
    def state(self, prefix: PublishedPrefix) -> str:
        return "Withdrawn" if prefix.withdrawn_at else "Published"

    @display(description="Characters")
    def size(self, prefix: PublishedPrefix) -> str:
        return number(len(prefix.text))

    @display(description="Begins with")
    def beginning(self, prefix: PublishedPrefix) -> str:
        return truncatechars(prefix.text, 60)

    @display(description="Since", ordering="published_at")
    def since(self, prefix: PublishedPrefix) -> str:
        return ago(prefix.published_at)

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        field = super().formfield_for_dbfield(db_field, request, **kwargs)
        if db_field.name == "text" and field is not None:
            field.strip = False  # to the letter
        return field

    def formfield_for_foreignkey(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        offered: QuerySet[LanguageModel] = LanguageModel.objects.filter(
            retired_at=None, has_chat_template=True
        )
        return super().formfield_for_foreignkey(db_field, request, **{"queryset": offered, **kwargs})

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        values = form.cleaned_data
        published = published_prefixes.publish(
            model=values["language_model"], name=values["name"], text=values["text"], actor=actor_of(request)
        )
        obj.pk = published.pk

    def get_actions_detail(self, request: HttpRequest, object_id: Any) -> list[Any]:
        prefix = self.get_object(request, object_id)
        live = prefix is not None and prefix.withdrawn_at is None
        return cast(list[Any], super().get_actions_detail(request, object_id)) if live else []

    @action(
        description="Withdraw",
        icon="block",
        url_path="withdraw",
        permissions=["operate"],
        variant=ActionVariant.DANGER,
    )
    def withdraw(self, request: HttpRequest, object_id: str) -> HttpResponseBase:
        prefix = self.object_or_404(request, object_id)
        question = Question(
            title=f"Withdraw {prefix}?",
            meaning=[
                "Workers forget it within seconds, and no tenant finds what another has run of it any more. Tenants "
                "that have used it keep it for themselves until it makes way.",
                "What runs goes on. It can be published again at any time.",
            ],
            submit="Withdraw the prefix",
            danger=True,
        )

        def withdraw(values: dict[str, Any]) -> str:
            published_prefixes.withdraw(prefix=prefix, actor=actor_of(request))
            return f"{prefix} is withdrawn."

        return self.ask(request, prefix, question, withdraw)
