from __future__ import annotations

from typing import Any, Final

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from unfold.decorators import display

from accounts.admin.base import LookInline, SiteModelAdmin
from accounts.admin.filters import titled
from accounts.formatting import EMPTY, ago, link, number, time_field
from inference.admin.drafter_words import drafter_name
from inference.models import SpeculationRuling, SpeculationVerdict

_LABELS: Final = {
    SpeculationRuling.ENABLED.label: "success",
    SpeculationRuling.DECLINED.label: "warning",
    SpeculationRuling.UNDECIDED.label: "info",
}


class _VerdictInWords:
    """The columns and fields that say what a verdict says; its model's name and setting belong to that."""

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request)  # type: ignore[misc]
        return rows.select_related("language_model")

    @display(description="Verdict", label=_LABELS, ordering="verdict")
    def ruling(self, verdict: SpeculationVerdict) -> str:
        return str(verdict.get_verdict_display())

    @display(description="Drafter", ordering="drafter")
    def drafted_by(self, verdict: SpeculationVerdict) -> str:
        return drafter_name(verdict.drafter)

    @display(description="Speed", ordering="speedup")
    def gain(self, verdict: SpeculationVerdict) -> str:
        return f"{verdict.speedup:.2f} times"

    @display(description="Why")
    def why(self, verdict: SpeculationVerdict) -> str:
        return why(verdict)

    @display(description="Measured", ordering="measured_at")
    def when(self, verdict: SpeculationVerdict) -> str:
        return ago(verdict.measured_at)


class VerdictsOfModel(_VerdictInWords, LookInline):
    model = SpeculationVerdict
    fields = readonly_fields = ("ruling", "drafted_by", "draft_tokens", "hardware", "gain", "why", "when")


@admin.register(SpeculationVerdict)
class SpeculationVerdictAdmin(_VerdictInWords, SiteModelAdmin):
    list_display = ("pairing", "drafting", "ruling", "gain", "why", "when")
    list_display_links = ("ruling",)
    list_filter = (
        ("verdict", titled("verdict", admin.ChoicesFieldListFilter)),
        ("language_model", admin.RelatedOnlyFieldListFilter),
    )
    search_fields = ("language_model__name", "drafter", "hardware")
    search_help_text = "By model, drafter or hardware"
    fieldsets = (
        (
            "What was measured",
            {
                "fields": ("ruling", "gain", "why", "plain_token", "whole_round", "held", "load", "samples"),
                "description": "By a worker, on the first generations of this pairing. It holds until it is to be "
                "measured again: Profile again, on the model's page.",
            },
        ),
        (
            "Of what",
            {"fields": ("model_link", "drafted_by", "draft_tokens", "hardware", "measured_exactly")},
        ),
    )
    readonly_fields = (
        "ruling",
        "gain",
        "why",
        "plain_token",
        "whole_round",
        "held",
        "load",
        "model_link",
        "drafted_by",
        "measured_exactly",
    )
    measured_exactly = time_field("measured_at", "Measured")

    @display(description="Model", header=True, ordering="language_model__name")
    def pairing(self, verdict: SpeculationVerdict) -> list[str]:
        return [verdict.language_model.name, verdict.hardware]

    @display(description="Drafter", header=True, ordering="drafter")
    def drafting(self, verdict: SpeculationVerdict) -> list[str]:
        return [drafter_name(verdict.drafter), f"{verdict.draft_tokens} tokens at most"]

    @display(description="Model")
    def model_link(self, verdict: SpeculationVerdict) -> str:
        return link(verdict.language_model)

    @display(description="A token without")
    def plain_token(self, verdict: SpeculationVerdict) -> str:
        return _milliseconds(verdict.classic_ms)

    @display(description="A round")
    def whole_round(self, verdict: SpeculationVerdict) -> str:
        return _milliseconds(verdict.round_ms)

    @display(description="Guesses that hold")
    def held(self, verdict: SpeculationVerdict) -> str:
        return f"{verdict.accepted_per_round:.2f} of a round's {number(verdict.draft_tokens)} or fewer"

    @display(description="Under load")
    def load(self, verdict: SpeculationVerdict) -> str:
        if verdict.batch_cost is None:
            return EMPTY
        return f"one more stream makes a decode tick {verdict.batch_cost:.0%} longer"


def why(verdict: SpeculationVerdict) -> str:
    """What a verdict rests on, and what follows where it does not decide."""
    tokens = verdict.accepted_per_round + 1
    compared = (
        f"A round takes {_milliseconds(verdict.round_ms)} and yields {tokens:.1f} tokens, which take "
        f"{_milliseconds(tokens * verdict.classic_ms)} without."
    )
    match verdict.verdict:
        case SpeculationRuling.DECLINED:
            return f"{compared} Too few guesses hold for what a round costs."
        case SpeculationRuling.UNDECIDED:
            used = "used all the same" if verdict.language_model.speculate_undecided else "not used"
            return f"{compared} Too little to be sure of: as the model is set, it is {used}."
        case _:
            return compared


def _milliseconds(value: float) -> str:
    return f"{value:.1f} ms" if value < 10 else f"{value:.0f} ms"
