"""What records about one generation have in common in the admin: its id, shown and searched for."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest
from unfold.decorators import display

from accounts.admin.base import RecordAdmin
from accounts.admin.filters import generation_id_in
from accounts.formatting import code, short_generation


class GenerationRecordAdmin(RecordAdmin):
    """A record whose row names its generation by ``generation_id``."""

    @display(description="Generation")
    def short(self, record: Any) -> str:
        return short_generation(record.generation_id)

    @display(description="Generation")
    def generation(self, record: Any) -> str:
        return code(f"gen_{record.generation_id.hex}")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        generation_id = generation_id_in(search_term)
        if generation_id is not None:
            return queryset.filter(generation_id=generation_id), False
        found: tuple[QuerySet[Any], bool] = super().get_search_results(request, queryset, search_term)
        return found
