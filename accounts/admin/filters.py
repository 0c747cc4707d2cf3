"""How the admin's lists are narrowed: by a row's life, and by a generation's id."""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

from django.contrib.admin import FieldListFilter, RelatedFieldListFilter, SimpleListFilter
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.safestring import SafeString

from accounts.key_words import NO_DEFAULT_LANE


class _Standing(SimpleListFilter):
    title = "state"
    parameter_name = "state"
    ended_by = ""
    words = ("Standing", "Ended")

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("live", self.words[0]), ("ended", self.words[1])]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        match self.value():
            case "live":
                return queryset.filter(**{f"{self.ended_by}__isnull": True})
            case "ended":
                return queryset.filter(**{f"{self.ended_by}__isnull": False})
            case _:
                return queryset


class EndedFilter(_Standing):
    """Of rows that are ended."""

    ended_by = "ended_at"


class ClosedFilter(_Standing):
    """Of rows that are closed."""

    ended_by = "closed_at"
    words = ("Open", "Closed")


class RetiredFilter(_Standing):
    """Of rows that are retired."""

    ended_by = "retired_at"
    words = ("Offered", "Retired")


class KeyStateFilter(SimpleListFilter):
    """Of keys: which still give access."""

    title = "state"
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("works", "Works"), ("expired", "Expired"), ("revoked", "Revoked"), ("unused", "Never used")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        now = timezone.now()
        match self.value():
            case "works":
                return queryset.filter(
                    Q(expires_at=None) | Q(expires_at__gt=now), revoked_at=None, tenant__closed_at=None
                )
            case "expired":
                return queryset.filter(expires_at__lte=now, revoked_at=None)
            case "revoked":
                return queryset.filter(revoked_at__isnull=False)
            case "unused":
                return queryset.filter(last_used_at=None)
            case _:
                return queryset


class DefaultLaneFilter(RelatedFieldListFilter):
    """Of keys: by the lane of requests that ask for none."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.empty_value_display = SafeString(NO_DEFAULT_LANE)


def titled(title: str, kind: type[FieldListFilter]) -> type[FieldListFilter]:
    """``kind`` under a title for people, where the field's own name is not one."""

    class Titled(kind):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.title = title

    return Titled


def generation_id_in(text: str) -> UUID | None:
    """The generation that a search box was given: its id, with or without a prefix like ``gen_`` or ``chatcmpl-``."""
    match = re.fullmatch(r"(?:[a-z]+[_-])?([0-9a-f]{32})", text.strip())
    return UUID(match[1]) if match else None
