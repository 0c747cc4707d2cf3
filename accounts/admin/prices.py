from __future__ import annotations

from typing import Any, cast

from django import forms
from django.contrib import admin, messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.utils import timezone
from unfold.decorators import action, display
from unfold.enums import ActionVariant
from unfold.widgets import UnfoldAdminSelectWidget

from accounts import model_names, prices
from accounts.actors import actor_of
from accounts.admin.base import Question, SiteModelAdmin
from accounts.admin.filters import titled
from accounts.formatting import ago, exactly, time_field
from accounts.models import PRICED_TOKENS, Price

_EVERY_LANE = "every lane"


class PriceForm(forms.ModelForm):  # type: ignore[type-arg]
    """A new price. A model is chosen among those that are offered: one that is mistyped would cost nothing."""

    model = forms.ChoiceField(widget=UnfoldAdminSelectWidget)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "model" in self.fields:
            self.fields["model"].choices = [  # type: ignore[attr-defined]
                (name, name) for name in model_names.offered()
            ]
        if "lane" in self.fields:
            self.fields["lane"].empty_label = f"{_EVERY_LANE} that has no price of its own"  # type: ignore[attr-defined]
        if "valid_from" in self.fields:
            self.fields["valid_from"].required = False


@admin.register(Price)
class PriceAdmin(SiteModelAdmin):
    may_add = True
    form = PriceForm
    list_display = ("named", "of_prompt", "of_cached", "of_completion", "currency", "state", "when")
    list_display_links = ("named",)
    list_filter = (
        ("lane", admin.RelatedOnlyFieldListFilter),
        ("model", titled("model", admin.AllValuesFieldListFilter)),
    )
    list_select_related = ("lane",)
    search_fields = ("model",)
    search_help_text = "By model"
    actions_detail = ("withdraw",)
    add_fieldsets = (
        (
            "Of what",
            {
                "fields": ("model", "lane"),
                "description": "A price is followed by another, never changed: what was used keeps the cost that it "
                "had. Usage without a price is counted in tokens only.",
            },
        ),
        (
            f"What {PRICED_TOKENS:,} tokens cost",
            {
                "fields": ("currency", "prompt", "cached", "completion", "valid_from"),
                "description": "Leave the time empty for a price that holds from now on.",
            },
        ),
    )
    fieldsets = (
        ("Of what", {"fields": ("model", "lane_words")}),
        (
            f"What {PRICED_TOKENS:,} tokens cost",
            {"fields": ("currency", "prompt", "cached", "completion", "from_exactly", "state_words")},
        ),
    )
    readonly_fields = ("lane_words", "from_exactly", "state_words")

    from_exactly = time_field("valid_from", "For generations that end from")

    @display(description="Model", header=True, ordering="model")
    def named(self, price: Price) -> list[str]:
        return [price.model, self.lane_words(price)]

    @display(description="Lane")
    def lane_words(self, price: Price) -> str:
        return str(price.lane_id or _EVERY_LANE)

    @display(description="Prompt")
    def of_prompt(self, price: Price) -> str:
        return str(price.prompt)

    @display(description="Cached")
    def of_cached(self, price: Price) -> str:
        return str(price.cached)

    @display(description="Answer")
    def of_completion(self, price: Price) -> str:
        return str(price.completion)

    @display(description="State", label={"Holds": "success", "To come": "info"})
    def state(self, price: Price) -> str:
        return _state_of(price)

    @display(description="State")
    def state_words(self, price: Price) -> str:
        return _state_of(price)

    @display(description="From", ordering="valid_from")
    def when(self, price: Price) -> str:
        return ago(price.valid_from)

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        return self.add_fieldsets if obj is None else self.fieldsets

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return () if obj is None else self.readonly_fields

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        names = ("model", "lane", "currency", "prompt", "cached", "completion", "valid_from")
        added = prices.add(**{name: form.cleaned_data[name] for name in names}, actor=actor_of(request))
        obj.pk = added.pk

    @action(
        description="Withdraw",
        icon="undo",
        url_path="withdraw",
        permissions=["operate"],
        variant=ActionVariant.DANGER,
    )
    def withdraw(self, request: HttpRequest, object_id: str) -> HttpResponseBase:
        price = self.object_or_404(request, object_id)
        question = Question(
            title=f"Withdraw the price of {price.model} from {exactly(price.valid_from)} on?",
            meaning=["It does not hold yet, so nothing has a cost by it. The audit keeps that it was set."],
            submit="Withdraw the price",
            danger=True,
        )

        def withdraw(values: dict[str, Any]) -> HttpResponseBase:
            prices.withdraw(price=price, actor=actor_of(request))
            messages.success(request, "The price is withdrawn.")
            return redirect(self.list_url())

        return self.ask(request, price, question, withdraw)

    def get_actions_detail(self, request: HttpRequest, object_id: Any) -> list[Any]:
        price = self.get_object(request, object_id)
        holds = price is None or price.valid_from <= timezone.now()
        return [] if holds else cast(list[Any], super().get_actions_detail(request, object_id))


def _state_of(price: Price) -> str:
    now = timezone.now()
    if price.valid_from > now:
        return "To come"
    later = Price.objects.filter(
        model=price.model, lane=price.lane_id, valid_from__gt=price.valid_from, valid_from__lte=now
    )
    return "Followed" if later.exists() else "Holds"
