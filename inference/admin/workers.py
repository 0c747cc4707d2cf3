from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from unfold.decorators import action, display

from accounts.admin.base import RecordAdmin
from accounts.admin.filters import titled
from accounts.formatting import EMPTY, ago, exactly, link
from inference.admin.missing_workers import missing
from inference.admin.now import WorkerState, living, state_of
from inference.models import Worker


class StoppedFilter(admin.SimpleListFilter):
    title = "state"
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("live", "Not stopped"), ("stopped", "Stopped")]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        return queryset.filter(stopped_at__isnull=self.value() == "live") if self.value() else queryset


@admin.register(Worker)
class WorkerAdmin(RecordAdmin):
    list_display = ("named", "state", "load", "model_link", "device", "started", "seen")
    list_display_links = ("named",)
    list_filter = (
        StoppedFilter,
        ("model", admin.RelatedOnlyFieldListFilter),
        ("hostname", titled("host", admin.AllValuesFieldListFilter)),
        ("started_at", titled("started", admin.DateFieldListFilter)),
    )
    list_select_related = ("model",)
    search_fields = ("hostname", "pid", "model__name")
    search_help_text = "By host, process id or model"
    sortable_by = ()
    fieldsets = (
        (
            "Now",
            {
                "fields": ("state", "load", "progress"),
                "description": "From its heartbeat, which it sends about once a second.",
            },
        ),
        ("What it is", {"fields": ("host", "process", "model_link", "device", "blas_name")}),
        ("Its life", {"fields": ("started_exactly", "seen_exactly", "stopped_exactly")}),
    )
    actions_detail = ("scheduler",)
    readonly_fields = (
        "state",
        "load",
        "progress",
        "host",
        "process",
        "model_link",
        "blas_name",
        "started_exactly",
        "seen_exactly",
        "stopped_exactly",
    )

    @display(description="Worker", header=True)
    def named(self, worker: Worker) -> list[str]:
        return [worker.hostname, f"process {worker.pid}"]

    @display(
        description="State",
        label={
            "serving": "success",
            "idle": "success",
            "starting": "info",
            "draining": "info",
            "stuck": "danger",
            "silent": "danger",
            "unknown": "warning",
        },
    )
    def state(self, worker: Any) -> str:
        if worker.heartbeat is not None:
            return state_of(worker.heartbeat, timezone.now().timestamp()).value
        if worker.stopped_at:
            return WorkerState.STOPPED.value
        if not worker.is_missed:
            return WorkerState.ENDED.value
        return (WorkerState.SILENT if worker.was_listened_to else WorkerState.UNKNOWN).value

    @display(description="Slots taken")
    def load(self, worker: Any) -> str:
        beat = worker.heartbeat
        return f"{beat.decoding + beat.prefilling} of {beat.slots}" if beat else EMPTY

    @display(description="Last progress")
    def progress(self, worker: Any) -> str:
        if worker.heartbeat is None:
            return EMPTY if worker.was_listened_to else "Not known: Valkey cannot be reached."
        beat = worker.heartbeat
        age = max(0.0, timezone.now().timestamp() - beat.progressed_at)
        return f"{age:.1f} s ago; {beat.decoding} writing, {beat.prefilling} reading their prompt"

    @display(description="Host")
    def host(self, worker: Worker) -> str:
        return worker.hostname

    @display(description="Process id")
    def process(self, worker: Worker) -> str:
        return str(worker.pid)

    @display(description="Linear algebra")
    def blas_name(self, worker: Worker) -> str:
        return worker.blas or EMPTY

    @display(description="Model")
    def model_link(self, worker: Worker) -> str:
        return link(worker.model)

    @display(description="Started")
    def started(self, worker: Worker) -> str:
        return ago(worker.started_at)

    @display(description="Last seen")
    def seen(self, worker: Worker) -> str:
        return ago(worker.stopped_at or worker.last_seen_at)

    @display(description="Started")
    def started_exactly(self, worker: Worker) -> str:
        return exactly(worker.started_at)

    @display(description="Last seen (to some seconds)")
    def seen_exactly(self, worker: Worker) -> str:
        return exactly(worker.last_seen_at)

    @display(description="Stopped")
    def stopped_exactly(self, worker: Worker) -> str:
        return exactly(worker.stopped_at) if worker.stopped_at else EMPTY

    @action(description="Scheduler now", icon="speed", url_path="scheduler", permissions=["view"])
    def scheduler(self, request: HttpRequest, object_id: str) -> HttpResponseBase:
        worker = self.object_or_404(request, object_id)
        page = reverse("admin:inference_languagemodel_scheduler", args=(worker.model_id,))
        return redirect(f"{page}#worker-{worker.id.hex}")

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        page = super().get_changelist_instance(request)
        page.result_list = list(page.result_list)
        if not _attach_heartbeats(page.result_list):
            messages.warning(request, "Valkey cannot be reached, so nobody knows what the workers do.")
        return page

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        worker = super().get_object(request, object_id, from_field)
        if worker is not None:
            _attach_heartbeats([worker])
        return worker


def _attach_heartbeats(workers: list[Any]) -> bool:
    """Put beside each worker what it says now, and whether it is missed; whether Valkey could be asked."""
    living_now = living()
    beats = {beat.worker: beat for beat in living_now or ()}
    missed = {worker.pk for worker in missing(beats, timezone.now())}
    for worker in workers:
        worker.heartbeat = beats.get(worker.id.hex)
        worker.is_missed = worker.pk in missed
        worker.was_listened_to = living_now is not None
    return living_now is not None
