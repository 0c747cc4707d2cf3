from __future__ import annotations

from datetime import datetime
from typing import Any, Final, cast

from django.contrib import admin
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from unfold.decorators import action, display
from unfold.enums import ActionVariant

from accounts import audit
from accounts.actors import actor_of
from accounts.admin.base import Question, RecordAdmin
from accounts.admin.filters import generation_id_in, titled
from accounts.audience import Audience, sees
from accounts.formatting import EMPTY, ago, badge, code, exactly, lasted, link, number, unbroken
from accounts.models import AssignmentReason, LaneAssignment
from inference.admin.timeline import Run, Story, draw
from inference.cancellation import cancel
from inference.messages import CancelReason
from inference.models import Generation, GenerationRun, GenerationState, RunOutcome
from inference.models.generation import LIVE_STATES

_ROUTES = {
    "ws.chat": "the chat page",
    "chat.completions": "the API, chat completions",
    "completions": "the API, completions",
}


def route_in_words(route: str) -> str:
    """Where a generation came in."""
    return _ROUTES.get(route, route)


class RouteFilter(admin.SimpleListFilter):
    title = "came in by"
    parameter_name = "route"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return list(_ROUTES.items())

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(route=self.value()) if self.value() else queryset


#: Why a generation has a lower lane than it asked for, in a word for lists.
_LOWERED: Final = {
    AssignmentReason.NOT_ENTITLED: "not entitled to more",
    AssignmentReason.NOT_ALLOWED_BY_KEY: "its key allows no more",
    AssignmentReason.STEPPED_DOWN: "stepped down",
}


@admin.register(Generation)
class GenerationAdmin(RecordAdmin):
    audience = Audience.STAFF_AND_AUDITORS
    list_display = (
        "named",
        "state_label",
        "tenant_link",
        "model",
        "lane_badge",
        "tokens",
        "took",
        "accepted",
    )
    list_display_links = ("named",)
    list_filter = (
        "state",
        "lane",
        ("model", admin.RelatedOnlyFieldListFilter),
        ("tenant", admin.RelatedOnlyFieldListFilter),
        RouteFilter,
        ("created_at", titled("accepted", admin.DateFieldListFilter)),
    )
    list_select_related = ("tenant", "model", "lane")
    search_fields = ("tenant__name", "tenant__slug", "api_key__prefix", "user__username")
    search_help_text = "By id (gen_…, chatcmpl-…), request id (req_…), tenant, key prefix or user"
    sortable_by = ()
    actions_detail = ("cancel",)
    change_form_outer_before_template = "admin/timeline.html"
    fieldsets = (
        (
            "What",
            {
                "fields": (
                    "identifier",
                    "state_label",
                    "ended_because",
                    "model_link",
                    "came_in",
                    "request_code",
                )
            },
        ),
        (
            "Whose, and in which lane",
            {
                "fields": ("tenant_link", "who", "lane", "asked", "why"),
                "description": "As the lane assignment says that was written when the generation was accepted.",
            },
        ),
        (
            "Tokens",
            {"fields": ("prompt_count", "cached_count", "completion_count", "drafted", "speed")},
        ),
        (
            "Its way",
            {
                "fields": ("accepted_at", "waited", "first_token", "took", "claims", "cancel_asked"),
                "description": "A generation is claimed again when its worker falls silent; it goes on where it was.",
            },
        ),
        ("Kept", {"fields": ("unattended", "keep_output"), "classes": ("collapse",)}),
    )

    class Media:
        css = {"all": ("signalbox/admin/timeline.css",)}

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return [name for _, options in self.fieldsets for name in options["fields"]]

    @display(description="Generation", header=True)
    def named(self, generation: Generation) -> list[str]:
        return [f"gen_{generation.id.hex[:12]}…", route_in_words(generation.route)]

    @display(description="Came in by")
    def came_in(self, generation: Generation) -> str:
        return route_in_words(generation.route)

    @display(description="Id")
    def identifier(self, generation: Generation) -> str:
        return code(f"gen_{generation.id.hex}")

    @display(
        description="State",
        label={
            "Queued": "info",
            "Running": "primary",
            "Completed": "success",
            "Cancelled": "warning",
            "Failed": "danger",
            "Expired": "danger",
        },
    )
    def state_label(self, generation: Generation) -> str:
        return str(generation.get_state_display())

    @display(description="Because")
    def ended_because(self, generation: Generation) -> str:
        if generation.failure_code:
            return f"{generation.failure_code}: {generation.failure_message}"
        return (generation.cancel_reason or generation.finish_reason or EMPTY).replace("_", " ")

    @display(description="Model")
    def model_link(self, generation: Generation) -> str:
        return link(generation.model)

    @display(description="Request id")
    def request_code(self, generation: Generation) -> str:
        return code(generation.request_id)

    @display(description="Tenant")
    def tenant_link(self, generation: Generation) -> str:
        return link(generation.tenant)

    @display(description="By")
    def who(self, generation: Generation) -> str:
        return link(generation.api_key or generation.user)

    @display(description="Lane asked for")
    def asked(self, generation: Any) -> str:
        assignment = generation.assignment
        return (assignment.requested_lane or "none") if assignment else EMPTY

    @display(description="Why this lane")
    def why(self, generation: Any) -> str:
        assignment = generation.assignment
        if not assignment:
            return EMPTY
        reason = str(assignment.get_reason_display())
        return link(assignment, reason) if generation.explained else reason

    @display(description="Lane")
    def lane_badge(self, generation: Any) -> str:
        lowered = _LOWERED.get(generation.assignment.reason) if generation.assignment else None
        if lowered is None:
            return str(generation.lane_id)
        return format_html("{} {}", generation.lane_id, badge(lowered, "warning"))

    @display(description="Prompt + answer")
    def tokens(self, generation: Generation) -> str:
        # An answer is counted when it has ended.
        live = generation.state in LIVE_STATES
        answer = EMPTY if live else number(generation.completion_tokens)
        return unbroken(f"{number(generation.prompt_tokens)} + {answer}")

    @display(description="Prompt")
    def prompt_count(self, generation: Generation) -> str:
        return number(generation.prompt_tokens)

    @display(description="Cached")
    def cached_count(self, generation: Generation) -> str:
        return number(generation.cached_tokens)

    @display(description="Answer")
    def completion_count(self, generation: Generation) -> str:
        limit = f" of at most {number(generation.max_tokens)}"
        if generation.state in LIVE_STATES:
            return f"not counted before the end,{limit.removeprefix(' of')}"
        return number(generation.completion_tokens) + limit

    @display(description="Drafted")
    def drafted(self, generation: Generation) -> str:
        """Of the slot's rounds; an answer that decoded plainly has none."""
        kept, in_vain = generation.accepted_prediction_tokens, generation.rejected_prediction_tokens
        if not kept + in_vain:
            return EMPTY
        share = kept / (kept + in_vain)
        return f"{number(kept + in_vain)}, of which {number(kept)} ({share:.0%}) were kept and are part of the answer"

    @display(description="Speed")
    def speed(self, generation: Generation) -> str:
        if not generation.first_token_at or not generation.ended_at or generation.completion_tokens < 2:
            return EMPTY
        seconds = (generation.ended_at - generation.first_token_at).total_seconds()
        return f"{(generation.completion_tokens - 1) / seconds:.1f} tokens/s" if seconds > 0 else EMPTY

    @display(description="Accepted")
    def accepted(self, generation: Generation) -> str:
        return ago(generation.created_at)

    @display(description="Accepted")
    def accepted_at(self, generation: Generation) -> str:
        return exactly(generation.created_at)

    @display(description="Waited for a worker")
    def waited(self, generation: Generation) -> str:
        waited = _between(generation.created_at, generation.claimed_at)
        return f"{waited}, until its last claim" if generation.claimed_at and generation.epoch > 1 else waited

    @display(description="First token after")
    def first_token(self, generation: Generation) -> str:
        return _between(generation.created_at, generation.first_token_at)

    @display(description="Took")
    def took(self, generation: Generation) -> str:
        return unbroken(_between(generation.created_at, generation.ended_at))

    @display(description="Claimed by a worker")
    def claims(self, generation: Generation) -> str:
        if generation.claimed_at is None:
            return "not yet" if generation.state in LIVE_STATES else "never"
        return {1: "once"}.get(generation.epoch, f"{generation.epoch} times")

    @display(description="Cancel asked for")
    def cancel_asked(self, generation: Generation) -> str:
        return exactly(generation.cancel_requested_at) if generation.cancel_requested_at else EMPTY

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        page = super().get_changelist_instance(request)
        page.result_list = list(page.result_list)
        _attach_assignments(page.result_list)
        return page

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        generation = super().get_object(request, object_id, from_field)
        if generation is not None:
            _attach_assignments([generation])
            generation.explained = sees(request.user, Audience.AUDITORS)
        return generation

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, obj: Any = None, **kwargs: Any
    ) -> HttpResponse:
        if obj is not None:
            context["timeline"] = draw(_story_of(obj))
        page: HttpResponse = super().render_change_form(request, context, *args, obj=obj, **kwargs)
        return page

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        generation_id = generation_id_in(search_term)
        if generation_id is not None:
            by_request = queryset.filter(request_id=search_term.strip())
            return queryset.filter(id=generation_id) | by_request, False
        found: tuple[QuerySet[Any], bool] = super().get_search_results(request, queryset, search_term)
        return found

    def get_actions_detail(self, request: HttpRequest, object_id: Any) -> list[Any]:
        generation = self.get_object(request, object_id)
        live = generation is not None and generation.state in LIVE_STATES
        return cast(list[Any], super().get_actions_detail(request, object_id)) if live else []

    @action(
        description="Stop generation",
        icon="stop_circle",
        url_path="cancel",
        permissions=["operate"],
        variant=ActionVariant.DANGER,
    )
    def cancel(self, request: HttpRequest, object_id: str) -> HttpResponseBase:
        generation = self.object_or_404(request, object_id)
        question = Question(
            title=f"Stop {generation}?",
            meaning=[
                "It ends within a tick, wherever it is, and its client is told that an operator ended it.",
                "What it has produced so far is settled.",
            ],
            submit="Stop the generation",
            danger=True,
        )

        def end(values: dict[str, Any]) -> str:
            with transaction.atomic():
                state = GenerationState(generation.state)
                audit.record(actor_of(request), "generation.cancel", generation, {"state": state}, None)
            cancel(generation.id, CancelReason.OPERATOR_REQUESTED)
            return f"{generation} is being stopped."

        return self.ask(request, generation, question, end)


def _attach_assignments(generations: list[Any]) -> None:
    assignments = LaneAssignment.objects.in_bulk([generation.id for generation in generations])
    for generation in generations:
        generation.assignment = assignments.get(generation.id)


def _story_of(generation: Generation) -> Story:
    def after(at: datetime | None) -> float | None:
        return None if at is None else (at - generation.created_at).total_seconds()

    live = generation.state in LIVE_STATES
    runs = GenerationRun.objects.filter(generation=generation).order_by("epoch")
    return Story(
        lane=generation.lane_id,
        lane_rank=generation.lane.rank,
        epoch=generation.epoch,
        live=live,
        until=after(timezone.now() if live else generation.ended_at) or 0.0,
        claimed=after(generation.claimed_at),
        cancel_asked=after(generation.cancel_requested_at),
        runs=[
            Run(
                epoch=run.epoch,
                worker=run.worker_name,
                worker_url=reverse("admin:inference_worker_change", args=(run.worker_id,))
                if run.worker_id
                else "",
                claimed=after(run.claimed_at) or 0.0,
                ended=after(run.ended_at) or 0.0,
                outcome=RunOutcome(run.outcome),
                events=run.events,
            )
            for run in runs
        ],
    )


def _between(start: datetime, end: datetime | None) -> str:
    return EMPTY if end is None else lasted((end - start).total_seconds())
